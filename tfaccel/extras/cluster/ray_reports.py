"""What a run on Ray reports while it goes on: its metrics, and checkpoints, each as a run directory to resume from."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger("tfaccel")

_ROWS, _CHECKPOINTS, _RESULT = "metrics.jsonl", "checkpoints", "result.json"
_RUN_FILES = ("config.json", "plan.json", _ROWS, "raw_input.json")
_FINISHED_FILES = ("model.keras", _RESULT)
_NO_METRICS = ("performance",)  # of a row


@dataclass(frozen=True)
class RunReport:
    """What to report.

    Args:
        metrics: of the last epoch; `checkpoint_step` is the step of the checkpoint.
        folder: a temporary folder with the checkpoint; None for metrics alone.
    """

    metrics: dict[str, Any]
    folder: Path | None = None


class RunReports:
    """Finds what is new in a run directory.

    Args:
        run_dir: the directory, which need not exist yet.
        scratch: a folder for copies of checkpoints; on the disk of the run directory, these are links.

    Example:
        >>> RunReports(Path("no/such/run"), Path("logs")).news() is None
        True
    """

    def __init__(self, run_dir: Path, scratch: Path) -> None:
        self._run_dir = run_dir
        self._scratch = scratch
        self._last = self._state()

    def news(self) -> RunReport | None:
        """A report, if there is a checkpoint or a line of metrics more; only the newest of each is reported."""
        state = self._state()
        if state == self._last:
            return None
        newest, metrics, folder = state[0], self._metrics(), None
        if newest is not None and newest != self._last[0]:
            try:
                folder = self._copy(newest, _RUN_FILES)
                metrics["checkpoint_step"] = int(newest.partition("_")[2])
            except FileNotFoundError:  # a newer one has taken its place meanwhile
                return None
            except OSError as error:
                logger.warning(f"The checkpoint {newest} was not reported: {error}. Training goes on.")
        self._last = state
        return RunReport(metrics, folder)

    def final(self) -> RunReport:
        """The report of a run that has ended: if it is complete, the final metrics, and the run with its model."""
        if not (self._run_dir / _RESULT).is_file():
            return RunReport({})
        folder = self._copy(self._state()[0], (*_RUN_FILES, *_FINISHED_FILES))
        return RunReport(json.loads((self._run_dir / _RESULT).read_text())["final"], folder)

    def _state(self) -> tuple[str | None, int]:
        """The name of the newest checkpoint, and the size of the file of metrics."""
        names: list[str] = []
        size = 0
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(self._run_dir / _CHECKPOINTS) if name.startswith("step_")]
        with contextlib.suppress(OSError):
            size = (self._run_dir / _ROWS).stat().st_size
        return max((name for name in names if name.removeprefix("step_").isdecimal()), default=None), size

    def _metrics(self) -> dict[str, Any]:
        """The last row of metrics."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            row = json.loads((self._run_dir / _ROWS).read_text().splitlines()[-1])
            return {name: value for name, value in row.items() if name not in _NO_METRICS}
        return {}

    def _copy(self, checkpoint: str | None, files: tuple[str, ...]) -> Path:
        """A copy of a checkpoint and of files of the run, as a run directory.

        Raises:
            FileNotFoundError: if the checkpoint is being deleted.
        """
        folder = Path(tempfile.mkdtemp(prefix=".report-", dir=self._scratch))
        try:
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self._run_dir / name, folder)
            if checkpoint is not None:
                place = Path(_CHECKPOINTS, checkpoint)
                (folder / place).mkdir(parents=True)
                for file in sorted((self._run_dir / place).iterdir()):
                    _link(file, folder / place / file.name)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder


def _link(source: Path, target: Path) -> None:
    """Links a file, which is never changed, or copies it to another disk."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy(source, target)


def put_back(folder: Path, run_dir: Path) -> bool:
    """Makes a run directory that has no checkpoint one that can be resumed, from a reported one; whether it did.

    Args:
        folder: what was reported, on this machine.
        run_dir: where the run goes on.
    """
    if any(run_dir.glob(f"{_CHECKPOINTS}/step_*")):
        return False
    shutil.copytree(folder, run_dir, dirs_exist_ok=True)
    return True
