"""Conversions to LiteRT that leave no memory behind: in a child process, where they would take much of this one's.

TensorFlow's converter leaks part of what a conversion takes (tensorflow issue 122598). A few conversions of small
models are done here, since a process takes seconds to start; all others in a child, which ends with its owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfaccel.compressing.conversion import Conversion, converted, debugger_of, quantized
from tfaccel.errors import CompressionError

_PROGRAM = "tfaccel.compressing.conversion_program"
# Bytes that conversions in this process may leave behind, all together; each is taken for one that leaves the model's
# size and a million more.
_MOST_LEFT_BEHIND = 32 * 2**20
_LEFT_BY_EACH = 10**6
# The child is let go after so many, so that it does not grow either.
_MOST_OF_A_CHILD = 20
_ENVIRON = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


class ConversionChild:
    """Converts SavedModels, in this process or in a child.

    Attributes:
        left_behind: bytes that conversions in this process may have left behind.
    """

    left_behind = 0

    def __init__(self) -> None:
        self._child: Any = None
        self._answers: Any = None
        self._count = 0
        self._debugger: tuple[Conversion, Any] | None = None

    def convert(self, conversion: Conversion) -> bytes:
        """The bytes of a LiteRT file.

        Raises:
            ConversionError: for what the converter cannot take, with its words.
        """
        return self._made(conversion, None)

    def quantize(self, conversion: Conversion, kept: Sequence[str]) -> bytes:
        """The bytes of a LiteRT file of which these operations are in float.

        Raises:
            ConversionError: for what the converter cannot take, with its words.
        """
        return self._made(conversion, list(kept))

    def close(self) -> None:
        """Ends the child."""
        self._debugger = None
        if self._child is None:
            return
        child, self._child, self._count = self._child, None, 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        self._answers.close()

    def _made(self, conversion: Conversion, kept: list[str] | None) -> bytes:
        size = sum(path.stat().st_size for path in Path(conversion.folder).rglob("*") if path.is_file())
        if ConversionChild.left_behind + size + _LEFT_BY_EACH <= _MOST_LEFT_BEHIND:
            ConversionChild.left_behind += size + _LEFT_BY_EACH
            return self._made_here(conversion, kept)
        return self._made_there(conversion, kept)

    def _made_here(self, conversion: Conversion, kept: list[str] | None) -> bytes:
        try:
            if kept is None:
                return converted(conversion)
            if self._debugger is None or self._debugger[0] != conversion:
                self._debugger = conversion, debugger_of(conversion)
            return quantized(self._debugger[1], kept)
        except Exception as error:  # The converter raises errors of many kinds.
            raise ConversionError(str(error) or type(error).__name__) from error

    def _made_there(self, conversion: Conversion, kept: list[str] | None) -> bytes:
        if self._count >= _MOST_OF_A_CHILD:
            self.close()
        child = self._started()
        self._count += 1
        with tempfile.TemporaryDirectory(prefix="tfaccel-conversion-") as folder:
            path = Path(folder) / "model.tflite"
            request = {"conversion": asdict(conversion), "kept": kept, "path": str(path)}
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
            line = self._answers.readline()
            if not line:
                status = child.wait()
                self.close()
                how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
                raise ConversionError(f"TensorFlow's converter crashed or ran out of memory: its process {how}")
            error = json.loads(line)["error"]
            if error:
                raise ConversionError(error)
            return path.read_bytes()

    def _started(self) -> Any:
        """The child; it ends when its standard input is closed, and so with this process."""
        if self._child is None:
            reader, writer = os.pipe()
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-W", "ignore", "-m", _PROGRAM, str(writer)], env={**os.environ, **_ENVIRON},
                    pass_fds=[writer], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    text=True, start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(writer)
            self._answers = os.fdopen(reader)
        return self._child


class ConversionError(CompressionError):
    """TensorFlow's converter cannot take a model; the message is its own."""
