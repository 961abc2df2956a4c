"""Writes checkpoints in a thread, while training goes on, and tells what becomes of them."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.errors import RunDirError
from tfaccel.training.run.checkpoint_files import save_checkpoint
from tfaccel.training.run.run_dir import RESUME_BY_ARGUMENT
from tfaccel.training.run.run_identity import RunIdentity

logger = logging.getLogger("tfaccel")

MAX_FAILURES = 3


class CheckpointWriter:
    """Writes one checkpoint at a time.

    If one cannot be written, for example because the disk is full, this is logged, and the earlier ones stay as they
    are: training goes on, and the next one is tried. After three in a row, training stops.

    Args:
        folder: the folder of checkpoints.
        keep: number of the newest checkpoints to keep, besides the best.
        resume_by: how the user resumes the run, for messages.
        run: the run, if the folder is in a run directory.
    """

    def __init__(
        self, folder: Path, *, keep: int = 2, resume_by: str = RESUME_BY_ARGUMENT, run: RunIdentity | None = None
    ) -> None:
        self._folder, self._resume_by = folder, resume_by
        self._how: dict[str, Any] = {"keep": keep, "run": run}
        self._is_first = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._writing: Future[Path] | None = None
        self._num_failures = 0

    def write(self, arrays: dict[str, np.ndarray], position: dict[str, Any]) -> None:
        """Copies the arrays, and begins to write them; first waits for the checkpoint before.

        Args:
            arrays, position: as for `save_checkpoint`.

        Raises:
            RunDirError: if three checkpoints in a row could not be written.
        """
        self.wait()
        copies = {name: np.array(array, copy=True) for name, array in arrays.items()}
        if self._is_first:
            self._is_first = False
            size = sum(array.nbytes for array in copies.values()) / 1e6
            logger.info("A checkpoint holds %.1f MB. While it is written, its copy takes as much memory.", size)
        self._writing = self._thread.submit(save_checkpoint, self._folder, copies, position, **self._how)

    def wait(self) -> bool:
        """Waits until the newest checkpoint is written; returns whether it is.

        Raises:
            RunDirError: if three checkpoints in a row could not be written.
        """
        if self._writing is None:
            return True
        writing, self._writing = self._writing, None
        try:
            writing.result()
            self._num_failures = 0
            return True
        except OSError as error:
            self._num_failures += 1
            reason = f"{error.strerror or error}"
            if not self._folder.parent.is_dir():
                raise RunDirError(
                    f"The run directory {self._folder.parent} is gone, so no checkpoint can be written. Training "
                    "stops. Put it back and resume the run, or start it again in a new one."
                ) from error
            if self._num_failures >= MAX_FAILURES:
                raise RunDirError(
                    f"{self._num_failures} checkpoints in a row could not be written to "
                    f"{self._folder}: {reason}. Training stops, and earlier checkpoints are left as they are. Free "
                    f"space, and resume the run: {self._resume_by}."
                ) from error
            logger.warning(
                f"A checkpoint could not be written to {self._folder}: {reason}. Training goes on, the earlier "
                f"checkpoints are left as they are, and the next one is tried ({self._num_failures} of {MAX_FAILURES})."
            )
            return False

    def close(self) -> None:
        """Waits for the newest checkpoint, and ends the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
