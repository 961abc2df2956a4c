"""Conversions to LiteRT that leak no memory: large ones run in a child process.

TensorFlow's converter leaks some of the memory of each conversion (tensorflow issue 122598). A few conversions of
small models run in this process, since a child takes seconds to start; all others run in a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfaccel.compressing.litert.conversion import Conversion, Converter
from tfaccel.errors import CompressionError
from tfaccel.processes.child import ConnectedChild

_PROGRAM = "tfaccel.compressing.litert.conversion_program"
# Total bytes that conversions in this process may leak; each is assumed to leak the model's size and a million bytes
# more.
_MAX_LEFT_BEHIND = 32 * 2**20
_LEFT_BY_EACH = 10**6
# The child is replaced after this many conversions, so that it does not grow either.
_MAX_CONVERSIONS_PER_CHILD = 20
_ENVIRON = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


class ConversionChild:
    """Converts SavedModels, in this process or in a child.

    Attributes:
        left_behind: estimate of the bytes leaked by conversions in this process.
    """

    left_behind = 0

    def __init__(self) -> None:
        self._child: ConnectedChild | None = None
        self._count = 0
        self._converter = Converter()

    def convert(self, conversion: Conversion) -> bytes:
        """The bytes of a LiteRT file.

        Raises:
            ConversionError: if the converter fails, with its message.
        """
        return self._made(conversion, None)

    def quantize(self, conversion: Conversion, kept: Sequence[str]) -> bytes:
        """The bytes of a LiteRT file with these operations kept in float.

        Raises:
            ConversionError: if the converter fails, with its message.
        """
        return self._made(conversion, list(kept))

    def close(self) -> None:
        """Ends the child."""
        self._converter = Converter()
        if self._child is not None:
            child, self._child, self._count = self._child, None, 0
            child.end()

    def _made(self, conversion: Conversion, kept: list[str] | None) -> bytes:
        size = sum(path.stat().st_size for path in Path(conversion.folder).rglob("*") if path.is_file())
        if ConversionChild.left_behind + size + _LEFT_BY_EACH <= _MAX_LEFT_BEHIND:
            ConversionChild.left_behind += size + _LEFT_BY_EACH
            return self._made_here(conversion, kept)
        return self._made_there(conversion, kept)

    def _made_here(self, conversion: Conversion, kept: list[str] | None) -> bytes:
        try:
            return self._converter.content(conversion, kept)
        except Exception as error:  # The converter raises many types of errors.
            raise ConversionError(str(error) or type(error).__name__) from error

    def _made_there(self, conversion: Conversion, kept: list[str] | None) -> bytes:
        if self._count >= _MAX_CONVERSIONS_PER_CHILD:
            self.close()
        if self._child is None:
            self._child = ConnectedChild(_PROGRAM, options=("-P", "-W", "ignore"), environment=_ENVIRON)
        self._count += 1
        self._child.send((conversion, kept))
        try:
            answer: bytes | str = self._child.receive()
        except EOFError:
            how = self._child.how_it_ended()
            self.close()
            raise ConversionError(f"TensorFlow's converter crashed: its process {how}") from None
        if isinstance(answer, str):
            raise ConversionError(answer)
        return answer


class ConversionError(CompressionError):
    """TensorFlow's converter failed; the message is the converter's."""
