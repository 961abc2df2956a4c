"""LiteRT files of a Keras model: by TensorFlow's converter in float32, float16, int8 and int16 with int8, and by
LiteRT's own quantizer with weights in int8 or int4, with one scale for each channel or block.

For integers, attention masks are made quantizable: huge masking constants are replaced by small ones. Attention adds a
number such as -1e9 at masked positions. In int8, one scale has to cover this number and the other logits, which then
all collapse to one value. -16 usually masks a position just as well.

Source: https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/post_training_quantization
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.compressing.call_signature import SIGNATURE_KEY, CallSignature, traced
from tfaccel.compressing.litert.conversion import Conversion, ConversionChild, ConversionError, write_rows
from tfaccel.compressing.litert.file import dense_layers, named_operations, operations, signature_names, slim
from tfaccel.compressing.litert.model import LitertModel, relative_error
from tfaccel.compressing.litert.unsupported_layers import check_no_loops, refusal
from tfaccel.compressing.methods import FLOAT32
from tfaccel.errors import CompressionError, VersionError, in_one_line
from tfaccel.training.private.private_api import all_layers, lookup_tables, tf_variable
from tfaccel.training.private.private_tensorflow import parse_saved_model

# Recurrent layers are unrolled up to this many steps; each adds a dozen operations to the file.
MAX_STEPS = 256
# Mask values are compared by the outputs for this many examples.
_MAX_COMPARED = 50
# Constants of this magnitude and above are masks; these replacements are tried.
_MIN_HUGE = 1e6
_MASK_VALUES = (16.0, 32.0, 64.0)
_GRAPH = "saved_model.pb"
_COPY = "masks_at_"  # prefix of the folders of copies
# In int8, per-kernel scales must make a file smaller by this fraction to be tried; the output error may grow by this
# factor at most.
_MIN_SAVING = 0.01
_MAX_ERROR = 1.1
_QUANTIZER = "litert_quantizer"  # the package
BLOCK = 32  # weights along the inputs of a unit that share a scale

Rows = Sequence[Mapping[str, np.ndarray]]


class Converter:
    """Converts one model by several methods; the model is traced once.

    A converted file takes one example at a time through the signature `serving_default`, with the model's input dtypes
    (float or integer). Operations without an integer kernel stay in float.

    Args:
        model: a built Keras model that computes in float32.
        signature: its call signature.
        folder: an empty folder, needed for the converter's lifetime.
        child: runs the conversions.
    """

    def __init__(
        self, model: keras.Model, signature: CallSignature, folder: str | Path, *, child: ConversionChild
    ) -> None:
        self._child = child
        self._rows_files: dict[int, tuple[Rows, str]] = {}
        self._model = model
        self._signature = signature
        self._folder = str(folder)
        self._masks: tuple[str, str] | None = None  # the SavedModel with quantizable masks, and a note
        names = signature.output_names

        def named(outputs: Any) -> dict[str, Any]:
            return dict(zip(names, keras.tree.flatten(outputs), strict=True))

        self._function = traced(model, signature, named)
        module = tf.Module()
        module.kept = [
            *(tf_variable(variable) for variable in model.variables),
            *self._function.graph.variables,
            *lookup_tables(model),
        ]
        with quiet_conversion():
            tf.saved_model.save(module, self._folder, signatures={SIGNATURE_KEY: self._function})

    @functools.cached_property
    def float_content(self) -> bytes:
        """The file in float32."""
        return self._converted(Conversion(self._folder, FLOAT32))

    @functools.cached_property
    def without_loops(self) -> Converter:
        """A converter of the same model with unrolled recurrent layers; itself if there are no loops.

        TensorFlow's converter cannot calibrate activations inside loops: it would crash the process.
        """
        longest = max((tensor.shape[0] for tensor in self._signature.inputs if tensor.shape), default=0)
        if "WHILE" not in operations(self.float_content) or longest > MAX_STEPS:
            return self
        folder = Path(self._folder) / "unrolled"
        folder.mkdir()
        with unrolled(self._model):
            return Converter(self._model, self._signature, folder, child=self._child)

    def convert(self, method: str, rows: Rows = (), *, one_scale: bool = False) -> bytes:
        """The LiteRT file made by a method.

        Args:
            method: "float32", "float16", "dynamic", "int8" or "int16x8".
            rows: representative examples, arrays by name of shape (1, ...), for the last two.
            one_scale: one scale per kernel instead of one per channel; for "int8".

        Raises:
            CompressionError: for layers that LiteRT cannot convert; the message names them.
        """
        if method == FLOAT32:
            return self.float_content
        if not rows:
            return self._converted(Conversion(self._folder, method, one_scale=one_scale))
        whole = self.without_loops
        return whole._converted(replace(whole.prepared(method, rows), one_scale=one_scale))

    def int8(self, rows: Rows) -> tuple[bytes, str]:
        """The model in int8, and a note on its scales: one for each channel of a kernel, or one for each kernel.

        Per-channel scales usually keep outputs closest to the float model's, but take 24 bytes a channel, which is much
        in a small model. Per-kernel scales are used if their output error on the representative examples is at most a
        tenth larger, and the file more than 1 % smaller.
        """
        by_channel = self.convert("int8", rows)
        by_kernel = self.convert("int8", rows, one_scale=True)
        if len(slim(by_kernel)) > (1 - _MIN_SAVING) * len(slim(by_channel)):
            return by_channel, "one scale for each channel of a kernel"
        expected = self._outputs(self.float_content, rows)
        errors = [relative_error(expected, self._outputs(content, rows)) for content in (by_kernel, by_channel)]
        told = (
            f"the outputs for representative examples move by {errors[0]:.1%} with one scale for each kernel, by "
            f"{errors[1]:.1%} with one for each channel"
        )
        if errors[0] <= _MAX_ERROR * errors[1]:
            return by_kernel, f"one scale for each kernel: {told}"
        return by_channel, f"one scale for each channel of a kernel: {told}"

    def prepared(self, method: str, rows: Rows) -> Conversion:
        """The conversion by a method; representative examples are ordered as the float file's inputs."""
        check_no_loops(named_operations(self.float_content), self._model, method)
        return self._with_rows(method, rows, self._with_masks(rows)[0])

    def quantize(self, conversion: Conversion, kept: Sequence[str]) -> bytes:
        """The LiteRT file of a prepared conversion, with these operations kept in float."""
        with quiet_conversion():
            return self._child.convert(conversion, kept)

    def mask_note(self, rows: Rows) -> str:
        """A note on masks that were changed when calibrating with `rows`; "" if none was."""
        return self.without_loops._with_masks(rows)[1]

    def _with_masks(self, rows: Rows) -> tuple[str, str]:
        """The SavedModel with quantizable masks, made once, and a note on it."""
        if self._masks is None:
            few = rows[:_MAX_COMPARED]
            expected = self._outputs(self.float_content, few)
            folders: dict[float | None, str] = {None: self._folder}

            def get_error(value: float | None) -> float:
                if value is not None:
                    folders[value] = str(Path(self._folder) / f"{_COPY}{value:g}")
                    _copy_with_mask_value(Path(self._folder), Path(folders[value]), value)
                content = self._converted(self._with_rows("int8", few, folders[value]))
                return relative_error(expected, self._outputs(content, few))

            has_masks = any(_is_huge(array).any() for _, array in _constants(_read_graph(Path(self._folder))))
            best, note = _best_mask_value(get_error) if has_masks else (None, "")
            self._masks = folders[best], note
        return self._masks

    def _outputs(self, content: bytes, rows: Rows) -> list[dict[str, np.ndarray]]:
        model = LitertModel(content, self._signature)
        return [model.run(row) for row in rows]

    def _with_rows(self, method: str, rows: Rows, folder: str) -> Conversion:
        if id(rows) not in self._rows_files:  # Rows are kept alive, so that their id is not reused.
            path = str(Path(self._folder) / f"rows_{len(self._rows_files)}.npz")
            write_rows(path, rows)
            self._rows_files[id(rows)] = rows, path
        return Conversion(folder, method, self._rows_files[id(rows)][1], tuple(signature_names(self.float_content)[0]))

    def _converted(self, conversion: Conversion) -> bytes:
        with quiet_conversion():
            try:
                return self._child.convert(conversion)
            except ConversionError as error:
                method = conversion.method
                text = _without_range(str(error), method) or refusal(error, self._function.graph, self._model, method)
                raise CompressionError(text) from error


def _without_range(text: str, method: str) -> str:
    """The advice if the converter wants a range for integers, as it does for int16; "" for another error.

    Example:
        >>> _without_range("Empty min/max for tensor serving_default_words:0", "int16x8")[:69]
        "int16x8 does not support the integer input 'words', which is looked u"
    """
    found = re.search(r"Empty min/max for tensor (?:serving_default_)?([\w/]+)", text)
    if found is None:
        return ""
    return (
        f"{method} does not support the integer input {found[1]!r}, which is looked up in an embedding or a gather: "
        "TensorFlow's converter wants a range for it. Use int8, dynamic or weight_int8."
    )


@contextlib.contextmanager
def make_converter(model: keras.Model, signature: CallSignature) -> Iterator[Converter]:
    """A converter with a temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="tfaccel-convert-") as folder,
        contextlib.closing(ConversionChild()) as child,
    ):
        yield Converter(model, signature, folder, child=child)


@contextlib.contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
    """Unrolls recurrent layers inside the context."""
    layers = [layer for layer in all_layers(model) if getattr(layer, "unroll", None) is False]
    try:
        for layer in layers:
            layer.unroll = True
        yield
    finally:
        for layer in layers:
            layer.unroll = False


@contextlib.contextmanager
def quiet_conversion() -> Iterator[None]:
    """Silences output of TensorFlow's converter that users cannot act on, some of it written by C++."""
    loggers = [logging.getLogger("tensorflow"), logging.getLogger("absl")]
    levels = [logger.level for logger in loggers]
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _copy_with_mask_value(folder: Path, target: Path, value: float) -> None:
    """Copies a SavedModel; huge constants in its graph become `value`, keeping their sign."""
    ignored = shutil.ignore_patterns(f"{_COPY}*", _GRAPH)
    shutil.copytree(folder, target, ignore=ignored, copy_function=os.link)  # Weights are linked, not copied.
    model = _read_graph(folder)
    for node, array in _constants(model):
        huge = _is_huge(array)
        if huge.any():
            changed = np.where(huge, np.sign(array) * value, array).astype(np.float32)
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(changed, shape=array.shape))
    (target / _GRAPH).write_bytes(model.SerializeToString())


def _best_mask_value(get_error: Callable[[float | None], float]) -> tuple[float | None, str]:
    """The mask value with the smallest output error, and why; None to leave masks unchanged.

    Example:
        >>> _best_mask_value({None: 0.9, 16.0: 0.02, 32.0: 0.03, 64.0: 0.05}.get)
        (16.0, 'masks are at -16, which a range can hold: outputs move by 2.0%, with the masks as they were by 90.0%')
    """
    errors: dict[float | None, float] = {value: get_error(value) for value in (None, *_MASK_VALUES)}
    best = min(errors, key=lambda value: errors[value])
    if best is None:
        return None, ""
    return best, (
        f"masks are at -{best:g}, which a range can hold: outputs move by {errors[best]:.1%}, with the masks as they "
        f"were by {errors[None]:.1%}"
    )


def _read_graph(folder: Path) -> Any:
    return parse_saved_model((folder / _GRAPH).read_bytes())


def _constants(model: Any) -> Sequence[tuple[Any, np.ndarray]]:
    """The float32 constants of a SavedModel's graph and functions, with their values."""
    graph = model.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    found = [node for node in nodes if node.op == "Const" and node.attr["dtype"].type == tf.float32.as_datatype_enum]
    return [(node, tf.make_ndarray(node.attr["value"].tensor)) for node in found]


def _is_huge(array: np.ndarray) -> np.ndarray:
    """Which constants are too large to share a quantization range with others."""
    return np.abs(array) >= _MIN_HUGE


def check_quantizer() -> None:
    """Raises VersionError if LiteRT's quantizer is not installed."""
    _quantizer_module("quantizer")


def quantize_weights(content: bytes, *, num_bits: int) -> bytes:
    """A LiteRT file with integer weights, one scale for each channel, which are dequantized to float32 before use.

    Raises:
        CompressionError: if LiteRT's quantizer cannot process the file.
        VersionError: if it is not installed.
    """
    return _quantize(
        content, getattr(_quantizer_module("recipe"), f"weight_only_wi{num_bits}_afp32")(), num_bits=num_bits
    )


def quantize_blocks(content: bytes) -> tuple[bytes, str]:
    """A LiteRT file with int4 weights: in dense layers, with one scale for each block of 32.

    LiteRT computes such layers with activations that are quantized to int8 at run time. Other layers, and those whose
    number of inputs is no multiple of 32, are as after `quantize_weights`.

    Returns:
        The file, and which layers have blocks.

    Raises:
        CompressionError: if no layer can have blocks, or LiteRT's quantizer cannot process the file.
        VersionError: if it is not installed.
    """
    layers = dense_layers(content)
    fitting = [name for name, inputs in layers.items() if inputs is not None and inputs % BLOCK == 0]
    if not fitting:
        raise CompressionError(
            f"weight_int4_blocks needs a dense layer whose number of inputs is a multiple of {BLOCK}. Use weight_int4."
        )
    manager, names = _quantizer_module("recipe_manager").RecipeManager(), _quantizer_module("qtyping")
    manager.add_weight_only_config(regex=".*", operation_name=names.TFLOperationName.ALL_SUPPORTED, num_bits=4)
    for name in fitting:
        manager.add_dynamic_config(
            regex=f"^{re.escape(name)};",
            operation_name=names.TFLOperationName.FULLY_CONNECTED,
            num_bits=4,
            granularity=names.QuantGranularity.BLOCKWISE_32,
        )
    note = (
        f"{len(fitting)} of {len(layers)} dense layers in blocks of {BLOCK}; the others have a scale for each channel"
    )
    return _quantize(content, manager.get_quantization_recipe(), num_bits=4), note


def _quantize(content: bytes, recipe: Any, *, num_bits: int) -> bytes:
    try:
        with quiet_conversion(), _without_monitor():
            quantizer = _quantizer_module("quantizer").Quantizer(bytearray(content), recipe)
            return bytes(quantizer.quantize(enable_progress_bar=False, enable_progress_report=False).quantized_model)
    except (ValueError, RuntimeError, KeyError) as error:
        text = in_one_line(error, 300)
        raise CompressionError(f"LiteRT's quantizer cannot process this model ({num_bits} bits): {text}") from error


@contextlib.contextmanager
def _without_monitor() -> Iterator[None]:
    """Stops the progress-bar monitor thread that the quantizer starts without showing a bar."""
    try:
        yield
    finally:
        bars = import_module("tqdm").tqdm
        if bars.monitor is not None:
            bars.monitor.exit()
            bars.monitor = None


def _quantizer_module(name: str) -> Any:
    try:
        return import_module(f"{_QUANTIZER}.{name}")
    except ImportError as error:
        raise VersionError(
            f"Weight-only quantization needs `litert-quantizer` ({error}). Install it: pip install litert-quantizer"
        ) from error
