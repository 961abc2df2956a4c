"""An ONNX file of a Keras model, by Keras's own export."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import keras

from tfaccel.errors import ExportError, VersionError

_NEEDED = ("onnx", "tf2onnx", "onnxruntime")
_OPSET = 18  # which onnxruntime knows from 1.14 on
_LONGEST_REASON = 300  # characters


def check_onnx_packages() -> None:
    """Raises VersionError if a package that ONNX files need is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise VersionError(f"ONNX files need {', '.join(missing)}. Install: pip install 'tfaccel[onnx]'")


def write_onnx(path: Path, model: keras.Model) -> None:
    """Writes an ONNX file that takes batches of any size.

    Arguments:
        path: of the new file.
        model: a built Keras model in float32.

    Raises:
        ExportError: for a model that cannot be written so; the message is the converter's.
        VersionError: if a package is missing.
    """
    check_onnx_packages()
    with _quiet():
        try:
            model.export(str(path), format="onnx", verbose=False, opset_version=_OPSET)
        except Exception as error:  # The converter raises errors of many kinds.
            reason = " ".join(str(error).split())[:_LONGEST_REASON]
            raise ExportError(
                f"The model cannot be written as ONNX ({type(error).__name__}): {reason} Leave onnx out of --formats."
            ) from error
    if not path.is_file():
        raise ExportError("Keras wrote no ONNX file. Leave onnx out of --formats.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what the converter tells of itself."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            # Keras mends tf2onnx for numpy 2, and asks whether numpy still has `np.object`.
            warnings.filterwarnings("ignore", "In the future `np", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
