"""The parent's side of TFMOT's child process: starts it, sends batches, reads reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.errors import CompressionError
from tfaccel.processes.child import last_words
from tfaccel.processes.connection import ConnectedChild

_PROGRAM = "tfaccel.compressing.tfmot.program"
_LAST_LINES = 3

Parts = Sequence[Callable[[], Iterable[Sequence[np.ndarray]]]]


def run_child(folder: Path, parts: Parts, on_report: Callable[[dict[str, Any]], None]) -> None:
    """Runs the job in a folder to its end.

    Args:
        folder: holds the job; see `tfmot_program`.
        parts: functions that give the batches of each part, called in order as the child consumes them.
        on_report: called with each report.

    Raises:
        CompressionError: if the job failed, or the child died.
    """
    with ConnectedChild(_PROGRAM, str(folder), environment=_ENVIRON) as child:
        sender = _Sender(child, parts)
        try:
            sender.start()
            end = _listen(child, on_report)
        finally:
            child.kill()
            sender.join()
        if sender.error is not None:
            raise sender.error
        if end is None:
            words = last_words(child.output(), _LAST_LINES)
            raise CompressionError(f"TFMOT's process {child.how_it_ended()}. Its last output: {words}")
        if end.get("unexpected"):
            raise CompressionError(
                f"TFMOT's process failed: {end['error']}. Use a post-training method, or other options."
            )
        if "error" in end:
            raise CompressionError(str(end["error"]))


# TFMOT looks up recurrent cells in `tf.keras`, which has to be Keras 2; `keras` stays Keras 3.
_ENVIRON = {
    "TF_USE_LEGACY_KERAS": "1",
    "KERAS_BACKEND": "tensorflow",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class _Sender(threading.Thread):
    """Sends the batches of all parts, None after each; ends early if the child stops reading."""

    def __init__(self, child: ConnectedChild, parts: Parts) -> None:
        super().__init__(daemon=True, name="tfaccel-tfmot-batches")
        self._child = child
        self._parts = parts
        self.error: BaseException | None = None

    def run(self) -> None:
        """Sends."""
        try:
            for part in self._parts:
                for batch in part():
                    if not self._child.send([np.asarray(array) for array in batch]):
                        return
                self._child.send(None)
        except Exception as error:
            self.error = error
            self._child.kill()


def _listen(child: ConnectedChild, on_report: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """The last report: done, or an error; None if the child ended without one."""
    while True:
        try:
            report: dict[str, Any] = child.receive()
        except EOFError:
            return None
        if "done" in report or "error" in report:
            return report
        on_report(report)
