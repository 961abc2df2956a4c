"""Which run a directory holds: each run has an id, which its config and each of its checkpoints record."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.errors import RunDirError

CONFIG_FILE = "config.json"
RUN_ID = "run_id"  # the key of the id in the config, and in the header of a checkpoint


@dataclass(frozen=True)
class RunIdentity:
    """A run, and the directory that it writes to.

    Attributes:
        path: the directory.
        run_id: differs between any two runs, even of the same settings; None for a run of an earlier version.
    """

    path: Path
    run_id: str | None = field(default_factory=lambda: uuid.uuid4().hex)

    def holds(self) -> bool:
        """Whether the directory still holds this run: it may have been moved away, and another run begun there."""
        try:
            return read_config(self.path).get(RUN_ID) == self.run_id
        except RunDirError:
            return False

    def check(self) -> None:
        """Raises RunDirError if the directory no longer holds this run; call it before writing or deleting there."""
        if self.holds():
            return
        if not self.path.is_dir():
            raise RunDirError(
                f"The run directory {self.path} is gone. Training stops. Put it back and resume the run, or start it "
                "again in a new one."
            )
        raise RunDirError(
            f"The run directory {self.path} no longer holds this run: it was moved or emptied, and may hold another "
            "run now. Training stops, and leaves everything there as it is. Resume this run where its directory is "
            "now, or start it again in a new one."
        )

    def check_checkpoint(self, place: Path, run_id: str | None) -> None:
        """Raises RunDirError for a checkpoint that another run has saved."""
        if run_id != self.run_id:
            raise RunDirError(
                f"The checkpoint {place} belongs to another run than {self.path}, which cannot be continued from it. "
                f"Move {place.name} away, so that an older checkpoint is used, or choose a new run directory."
            )


def read_identity(path: Path) -> RunIdentity | None:
    """The identity of the run in a directory; None if there is none.

    Raises:
        RunDirError: if its config cannot be read.
    """
    return RunIdentity(path, read_config(path).get(RUN_ID)) if (path / CONFIG_FILE).exists() else None


def read_config(path: Path) -> dict[str, Any]:
    """The config of the run in a directory.

    Raises:
        RunDirError: if it cannot be read.
    """
    file = path / CONFIG_FILE
    try:
        found = dict(json.loads(file.read_text()))
        found["options"] = dict(found.get("options", {}))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RunDirError(f"{file} cannot be read ({error}). Choose a new run directory.") from error
    return found
