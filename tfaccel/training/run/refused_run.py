"""A run that is refused before its first step leaves its directory as it was, so that the next command can use it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.training.run.run_dir import RunDir


@contextlib.contextmanager
def nothing_left_if_refused(directory: RunDir) -> Iterator[None]:
    """Removes what a new run has written, if its model or plan is refused before anything is trained.

    Args:
        directory: of a run that begins within the block, and is unlocked there.
    """
    was_there, is_new = directory.path.exists(), directory.writes and not directory.resumes
    try:
        yield
    except (PlanError, WorkloadError):
        if is_new and directory.is_own() and not directory.rows and not any(directory.checkpoints.glob("*")):
            for name in ("config.json", "plan.json"):
                (directory.path / name).unlink(missing_ok=True)
            for folder in (directory.checkpoints, directory.tensorboard):
                shutil.rmtree(folder, ignore_errors=True)
            if not was_there:
                with contextlib.suppress(OSError):  # something else has written to it
                    directory.path.rmdir()
        raise
