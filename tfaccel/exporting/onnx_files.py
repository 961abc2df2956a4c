"""Exports a Keras model to ONNX, with Keras's own exporter."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import ExportError, VersionError, in_one_line
from tfaccel.training.private.private_api import all_layers
from tfaccel.training.steps.overrides import instance_attributes

_NEEDED = ("onnx", "tf2onnx", "onnxruntime")
_OPSET = 18  # supported by onnxruntime since 1.14
_MAX_REASON_LENGTH = 300  # characters
_DOUBLE = 11  # ONNX's number of this dtype
_WITH_TABLES = (keras.layers.IntegerLookup, keras.layers.StringLookup, keras.layers.TextVectorization)
_UNSUPPORTED = (
    "ONNX does not support these parts of the model: {}; tf2onnx cannot convert the operations in parentheses. Replace "
    "them, or leave onnx out of --formats."
)
_UNKNOWN = re.compile(r"op \[(\S+): (\w+)\] is not supported")


def check_onnx_packages() -> None:
    """Raises VersionError if a package needed for ONNX is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise VersionError(f"ONNX files need {', '.join(missing)}. Install: pip install 'tfaccel[onnx]'")


def write_onnx(path: Path, model: keras.Model) -> None:
    """Writes an ONNX file that accepts batches of any size.

    Raises:
        ExportError: if the model cannot be converted; with the converter's message.
        VersionError: if a package is missing.
    """
    check_onnx_packages()
    add_operations()
    with _messages() as unknown, _exportable_layers(model):
        tables = [one.name for one in all_layers(model) if isinstance(one, _WITH_TABLES)]
        if tables:  # an invalid file would be written, and the converter would warn of it from then on
            raise ExportError(_UNSUPPORTED.format(", ".join(f"{name!r} (a lookup table)" for name in tables)))
        try:
            model.export(str(path), format="onnx", verbose=False, opset_version=_OPSET)
        except Exception as error:  # the converter raises many kinds of errors
            reason = in_one_line(error, _MAX_REASON_LENGTH)
            raise ExportError(
                f"Cannot convert the model to ONNX ({type(error).__name__}): {reason} Leave onnx out of --formats."
            ) from error
    if unknown:
        named = ", ".join(dict.fromkeys(f"{place!r} ({kind})" for place, kind in unknown))
        raise ExportError(_UNSUPPORTED.format(named))
    if not path.is_file():
        raise ExportError("Keras wrote no ONNX file. Leave onnx out of --formats.")


@contextlib.contextmanager
def _exportable_layers(model: keras.Model) -> Iterator[None]:
    """Replaces attributes of layers that the converter takes otherwise than the model does.

    Tensors, which would become inputs of the ONNX file, are NumPy arrays; layers that augment by default, such as
    `RandomFlip`, are called as at inference: Keras exports them as trained.
    """
    with contextlib.ExitStack() as stack:
        for layer in all_layers(model):
            own: dict[str, Any] = {
                name: value.numpy() for name, value in vars(layer).items() if isinstance(value, tf.Tensor)
            }
            training = inspect.signature(layer.call).parameters.get("training")
            if training is not None and training.default is True:
                own["call"] = _at_inference(layer.call)
            stack.enter_context(instance_attributes(layer, own))
        yield


def _at_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": False})

    return called


@contextlib.contextmanager
def _messages() -> Iterator[list[tuple[str, str]]]:
    """Yields the operations that the converter does not support, place in the model and type, and silences its log."""
    found: list[tuple[str, str]] = []

    def collect(record: logging.LogRecord) -> bool:
        unknown = _UNKNOWN.search(record.getMessage())
        if unknown is not None:
            found.append((unknown[1].rpartition("/")[0] or unknown[1], unknown[2]))
        return False  # nothing is shown

    logger, handler = logging.getLogger("tf2onnx"), logging.Handler(logging.ERROR)
    handler.addFilter(collect)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    try:
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        with warnings.catch_warnings():
            # Keras patches tf2onnx for NumPy 2, and checks whether NumPy still has `np.object`.
            warnings.filterwarnings("ignore", "In the future `np", FutureWarning)
            yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@functools.cache
def add_operations() -> None:
    """Registers `Erfc`, which Keras's exact GELU uses, with tf2onnx, as 1 - Erf(x).

    Source: https://github.com/onnx/tensorflow-onnx (`tf2onnx.handler.tf_op`).
    """
    from tf2onnx.handler import tf_op

    @tf_op("Erfc")
    class Erfc:
        """The complementary error function."""

        @classmethod
        def version_9(cls, context: Any, node: Any, **settings: Any) -> None:
            """Replaces the node by two."""
            del settings
            name, output = node.name, node.output[0]
            shape, dtype = context.get_shape(output), context.get_dtype(output)
            inputs = list(node.input)
            context.remove_node(name)
            kind = np.float64 if dtype == _DOUBLE else np.float32
            one = context.make_const(f"{name}_one", np.array(1.0, kind)).output[0]
            erf = context.make_node("Erf", inputs, name=f"{name}_erf", shapes=[shape], dtypes=[dtype])
            context.make_node("Sub", [one, erf.output[0]], name=name, outputs=[output], shapes=[shape], dtypes=[dtype])
