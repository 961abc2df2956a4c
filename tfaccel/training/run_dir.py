"""The run directory: what `train` writes, and the check that it holds no other run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tfaccel.errors import RunDirError
from tfaccel.training.files import write_json, write_json_lines

_POSITION = ("epoch", "step", "seconds")  # what a row holds beside metrics


class RunDir:
    """The directory of one training run.

    Args:
        path: where; made by `start`, not before.
        config: what identifies the run (JSON-serialisable); a resumed run must have the same.
        resume: "never": the directory must be new or empty; "auto": go on if it holds this very run.
        writes: False on workers that are not the chief: nothing is written.

    Raises:
        RunDirError: if the path is a file, or holds another run or other files.
    """

    def __init__(self, path: str | os.PathLike[str], config: dict[str, Any], *, resume: str = "never",
                 writes: bool = True) -> None:  # fmt: skip
        if resume not in ("never", "auto"):
            raise RunDirError(f'`resume` must be "never" or "auto". Received: resume={resume!r}.')
        self.path = Path(path)
        self.config = config
        self.writes = writes
        self.resumes = False
        self.rows: list[dict[str, Any]] = []
        if self.path.exists() and not self.path.is_dir():
            raise RunDirError(f"The run directory is a file: {self.path}. Give the path of a directory.")
        if self.path.is_dir() and any(self.path.iterdir()):
            self._check_holds_this_run(resume)
            self.resumes = True

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints stand."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """Where TensorBoard's event files stand."""
        return self.path / "tensorboard"

    @property
    def model_file(self) -> Path:
        """The finished model."""
        return self.path / "model.keras"

    def start(self, plan: dict[str, Any]) -> None:
        """Makes the directory and writes what the run is."""
        if self.writes:
            self.make(self.checkpoints, self.tensorboard, plan=plan)

    def make(self, *folders: Path, **files: dict[str, Any]) -> None:
        """Makes the directory, with `config.json`, folders in it, and JSON files by name.

        Raises:
            RunDirError: if it cannot be written.
        """
        try:
            for folder in (self.path, *folders):
                folder.mkdir(parents=True, exist_ok=True)
            for name, data in {"config": self.config, **files}.items():
                write_json(self.path / f"{name}.json", data)
        except OSError as error:
            raise RunDirError(
                f"The run directory {self.path} cannot be written: {error}. Choose another one."
            ) from error

    def keep_rows(self, num_epochs: int) -> None:
        """Reads the metrics of the epochs before `num_epochs`; later ones will be trained again."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        self.rows = [row for row in map(json.loads, lines) if row["epoch"] < num_epochs]

    def history(self) -> dict[str, list[float | None]]:
        """The metrics of every epoch by name."""
        names = [name for name in (self.rows[0] if self.rows else {}) if name not in _POSITION]
        return {name: [row.get(name) for row in self.rows] for name in names}

    def add_row(self, row: dict[str, Any]) -> None:
        """Adds the metrics of one epoch."""
        self.rows.append(row)
        if self.writes:
            write_json_lines(self.path / "metrics.jsonl", self.rows)

    def result(self) -> dict[str, Any] | None:
        """The outcome of a run that is complete; None where it is not."""
        file = self.path / "result.json"
        return dict(json.loads(file.read_text())) if self.resumes and file.exists() else None

    def write_raw_input(self, raw_input: Any) -> None:
        """Writes what raw inputs are, if that is known."""
        if self.writes and raw_input is not None:
            write_json(self.path / "raw_input.json", raw_input.to_json())

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes the outcome of the run."""
        if self.writes:
            write_json(self.path / "result.json", result)

    def _check_holds_this_run(self, resume: str) -> None:
        file = self.path / "config.json"
        if not file.exists():
            raise RunDirError(
                f"The run directory {self.path} is not empty and holds no run of tfaccel. Choose a new directory."
            )
        if resume == "never":
            raise RunDirError(
                f"The run directory {self.path} holds a run already. Choose a new one, or go on with that run: "
                'resume="auto" (--resume=auto).'
            )
        try:
            found = json.loads(file.read_text())
        except ValueError as error:
            raise RunDirError(f"{file} cannot be read ({error}). Choose a new run directory.") from error
        found, wanted = _flat(found), _flat(json.loads(json.dumps(self.config)))
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                raise RunDirError(
                    f"The run directory {self.path} holds another run: {name} is {found.get(name)!r} there and "
                    f"{wanted.get(name)!r} here. Choose a new directory, or resume with the same settings."
                )


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """The config with `options` brought up to its own level, as `options.name`."""
    options = {f"options.{name}": value for name, value in config.get("options", {}).items()}
    return {**{name: value for name, value in config.items() if name != "options"}, **options}
