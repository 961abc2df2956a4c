"""Conversions to LiteRT by TensorFlow's converter, which leak no memory: large ones run in a child process.

The converter leaks some of the memory of each conversion (tensorflow issue 122598). A few conversions of small models
run in this process, since a child takes seconds to start; all others run in a child, where the leak ends with the
process. As a program, this module is the child.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tfaccel.errors import CompressionError
from tfaccel.processes.child import ConnectedChild, connect_to_parent
from tfaccel.training.private.private_tensorflow import one_scale_per_kernel

_PROGRAM = "tfaccel.compressing.litert.conversion"
# Total bytes that conversions in this process may leak; each is assumed to leak the model's size and a million bytes
# more.
_MAX_LEFT_BEHIND = 32 * 2**20
_LEFT_BY_EACH = 10**6
# The child is replaced after this many conversions, so that it does not grow either.
_MAX_CONVERSIONS_PER_CHILD = 20
_ENVIRON = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


class ConversionError(CompressionError):
    """TensorFlow's converter failed; the message is the converter's."""


@dataclass(frozen=True)
class Conversion:
    """One conversion: what to convert, and how.

    Args:
        folder: the SavedModel.
        method: "float32", "float16", "dynamic", "int8" or "int16x8".
        rows_file: a `.npz` file of representative examples, written by `write_rows`; "" for none.
        order: input names, in the order that the converter expects.
        one_scale: one scale per kernel instead of one per channel.
        signature: the only signature to convert; "" for all.
    """

    folder: str
    method: str
    rows_file: str = ""
    order: Sequence[str] = ()
    one_scale: bool = False
    signature: str = ""


def write_rows(path: str, rows: Sequence[Any]) -> None:
    """Writes representative examples: arrays by name, of shape (1, ...)."""
    np.savez(path, **{f"{number}:{name}": array for number, row in enumerate(rows) for name, array in row.items()})


class ConversionChild:
    """Converts SavedModels, in this process or in a child.

    Attributes:
        left_behind: estimate of the bytes leaked by conversions in this process.
    """

    left_behind = 0

    def __init__(self) -> None:
        self._child: ConnectedChild | None = None
        self._count = 0
        self._converter = _Converter()

    def convert(self, conversion: Conversion, kept: Sequence[str] | None = None) -> bytes:
        """The bytes of a LiteRT file.

        Args:
            conversion: what is converted, and how.
            kept: operations to keep in float (selective quantization); None to quantize all.
        """
        size = sum(path.stat().st_size for path in Path(conversion.folder).rglob("*") if path.is_file())
        if ConversionChild.left_behind + size + _LEFT_BY_EACH <= _MAX_LEFT_BEHIND:
            ConversionChild.left_behind += size + _LEFT_BY_EACH
            answer = self._converter.answer(conversion, kept)
        else:
            answer = self._answer_of_child(conversion, kept)
        if isinstance(answer, str):
            raise ConversionError(answer)
        return answer

    def close(self) -> None:
        """Ends the child."""
        self._converter = _Converter()
        if self._child is not None:
            child, self._child, self._count = self._child, None, 0
            child.end()

    def _answer_of_child(self, conversion: Conversion, kept: Sequence[str] | None) -> bytes | str:
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
            return f"TensorFlow's converter crashed: its process {how}"
        return answer


class _Converter:
    """TensorFlow's converter; calibrates the last conversion only once."""

    def __init__(self) -> None:
        self._debugger: tuple[Conversion, Any] | None = None

    def answer(self, conversion: Conversion, kept: Sequence[str] | None) -> bytes | str:
        """The bytes of the LiteRT file, or the message of the converter's error."""
        try:
            return self._content(conversion, kept)
        except Exception as error:  # The converter raises many types of errors.
            return str(error) or type(error).__name__

    def _content(self, conversion: Conversion, kept: Sequence[str] | None) -> bytes:
        if kept is None:
            return bytes(_make_converter(conversion).convert())
        options = tf.lite.experimental.QuantizationDebugOptions
        if self._debugger is None or self._debugger[0] != conversion:
            converter = _make_converter(conversion)
            debugger = tf.lite.experimental.QuantizationDebugger(converter=converter, debug_options=options())
            self._debugger = conversion, debugger
        debugger = self._debugger[1]
        debugger.options = options(denylisted_nodes=list(kept))
        return bytes(debugger.get_nondebug_quantized_model())


def _make_converter(conversion: Conversion) -> Any:
    keys = [conversion.signature] if conversion.signature else None
    converter = tf.lite.TFLiteConverter.from_saved_model(conversion.folder, signature_keys=keys)
    if conversion.signature:
        converter.experimental_enable_resource_variables = False
    ops, method = tf.lite.OpsSet, conversion.method
    converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS]
    if conversion.rows_file:
        converter.representative_dataset = lambda: _rows(conversion)
    if method != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if method == "float16":
        converter.target_spec.supported_types = [tf.float16]
    elif method == "int8":
        converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS_INT8, ops.TFLITE_BUILTINS]
    elif method == "int16x8":
        both = ops.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [both, ops.TFLITE_BUILTINS]
    if conversion.one_scale:
        one_scale_per_kernel(converter)
    return converter


def _rows(conversion: Conversion) -> Iterator[list[np.ndarray]]:
    with np.load(conversion.rows_file, allow_pickle=False) as arrays:
        for number in range(len(arrays.files) // len(conversion.order)):
            yield [arrays[f"{number}:{name}"] for name in conversion.order]


def main(argv: list[str]) -> NoReturn:
    """Answers each conversion with the file's content or an error message; exits with its parent."""
    parent = connect_to_parent(argv)
    converter = _Converter()
    while True:
        parent.send(converter.answer(*parent.recv()))


if __name__ == "__main__":
    main(sys.argv)
