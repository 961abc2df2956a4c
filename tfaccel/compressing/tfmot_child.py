"""The parent's side of the child process in which TFMOT runs: starts it, sends batches, listens to its reports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.compressing.tfmot_stream import write_batch, write_end
from tfaccel.errors import CompressionError

_PROGRAM = "tfaccel.compressing.tfmot_program"
_LAST_LINES = 3

Parts = Sequence[Callable[[], Iterable[Sequence[np.ndarray]]]]


def run_child(folder: Path, parts: Parts, on_report: Callable[[dict[str, Any]], None]) -> None:
    """Runs the job in a folder, and returns when it is done.

    Arguments:
        folder: holds the job; see `tfmot_program`.
        parts: functions that give the batches of each part, called one after the other as the child takes them.
        on_report: called with each report.

    Raises:
        CompressionError: if the job failed, or the child died.
    """
    batch_reader, batch_writer = os.pipe()
    report_reader, report_writer = os.pipe()
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, str(folder), str(batch_reader), str(report_writer)],
                env={**os.environ, **_ENVIRON}, pass_fds=[batch_reader, report_writer], stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(batch_reader)
            os.close(report_writer)
        sender = _Sender(batch_writer, parts)
        try:
            sender.start()
            end = _listen(report_reader, on_report)
            child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # it and its group may have ended
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            sender.join()
        if sender.error is not None:
            raise sender.error
        if end is None or "error" in end:
            raise CompressionError(_cause(end, child.returncode, output))


# TFMOT looks for cells of recurrent layers in `tf.keras`, which has to be Keras 2 for it; `keras` stays Keras 3.
_ENVIRON = {"TF_USE_LEGACY_KERAS": "1", "KERAS_BACKEND": "tensorflow", "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "TF_CPP_MIN_LOG_LEVEL": "2"}  # fmt: skip


class _Sender(threading.Thread):
    """Sends all parts; ends early where the child takes no more."""

    def __init__(self, writer: int, parts: Parts) -> None:
        super().__init__(daemon=True, name="tfaccel-tfmot-batches")
        self._writer = writer
        self._parts = parts
        self.error: BaseException | None = None

    def run(self) -> None:
        """Sends."""
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._writer, "wb") as stream:
            try:
                for part in self._parts:
                    for batch in part():
                        write_batch(stream, batch)
                    write_end(stream)
            except BrokenPipeError:
                raise
            except Exception as error:
                self.error = error


def _listen(reader: int, on_report: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """The last report: that the job is done, or an error; None if the child ended without."""
    end = None
    with os.fdopen(reader, "rb") as reports:
        for line in reports:
            report: dict[str, Any] = json.loads(line)
            if "done" in report or "error" in report:
                end = report
            else:
                on_report(report)
    return end


def _cause(end: dict[str, Any] | None, status: int, output: Any) -> str:
    if end is not None and not end.get("unexpected"):
        return str(end["error"])
    output.seek(0)
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    told = " | ".join(lines[-_LAST_LINES:])
    if end is not None:
        return f"TFMOT's process failed: {end['error']}. Use a post-training method, or other options."
    how = f"was killed by signal {-status} (out of memory?)" if status < 0 else f"ended with status {status}"
    return f"TFMOT's process {how}. Its last words: {told or 'none'}"
