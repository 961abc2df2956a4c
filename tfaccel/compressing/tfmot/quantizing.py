"""Quantization-aware training by TFMOT: the fake-quantized layers, and the LiteRT file. In a child process only."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.compressing.call_signature import SIGNATURE_KEY
from tfaccel.compressing.tfmot import private_tfmot
from tfaccel.compressing.tfmot.flat_model import FlatModel
from tfaccel.compressing.tfmot.translation import TranslatedLayers, assemble, kept_layer_class
from tfaccel.errors import CompressionError, in_one_line
from tfaccel.graph_function import graph_function

# Activations that TFMOT can quantize.
_ACTIVATIONS = ("relu", "swish", "gelu", "linear", "softmax", "sigmoid", "tanh")
# Replaced by two convolutions, which are quantized.
_SPLIT = ("SeparableConv1D", "SeparableConv2D")
# A batch normalization after one of these is folded into it. (After a dense layer, LiteRT would keep both in float.)
_FOLDING = ("Conv2D", "DepthwiseConv2D")
# The update rate of ranges in TFMOT's MovingAverageQuantizer (tensorflow-model-optimization 0.8.1).
_STEP = 0.001
_OF_INPUTS = "QuantizeLayer"  # its range covers all values seen so far, and -6..6
_MAX_PASSES = 10
_SMALL_CHANGE = 0.05  # fraction of a range's width: passes end once all changes are smaller


def quantized_model(flat: FlatModel, layers: TranslatedLayers, method: str) -> tuple[Any, list[str]]:
    """A model whose layers are fake-quantized where TFMOT supports it; others stay in float.

    Args:
        flat, layers: the translated model.
        method: "qat"; "pqat" keeps zero weights zero, "cqat" keeps equal weights equal.

    Returns:
        The `tf_keras` model to train, and notes on which layers stay in float.
    """
    import tensorflow_model_optimization as tfmot
    import tf_keras

    private_tfmot.allow_lambdas()
    scheme = _scheme(method)
    chosen = _quantizable(flat, layers, scheme.get_quantize_registry())
    with_weights = [path for path, layer in layers.by_path.items() if layer.trainable_weights]
    if not any(path in chosen for path in with_weights):
        raise CompressionError(
            f"TFMOT can quantize none of the layers with weights ({_described(layers, with_weights)}). Use a "
            "post-training method (dynamic, int8, int16x8), or prune or cluster."
        )
    consumers, output_only, kept = _consumers(flat), private_tfmot.output_config_class(), kept_layer_class()
    numbers = itertools.count()  # a layer that is called several times has several ranges

    def wrap(path: str, layer: Any) -> Any:
        return tfmot.quantization.keras.quantize_annotate_layer(layer) if path in chosen else layer

    def after(path: str, index: int, tensor: Any) -> Any:
        """Quantizes the output of a float layer that a quantized one takes."""
        if path in chosen or not tensor.dtype.is_floating or not consumers.get((path, index), set()) & chosen:
            return tensor
        identity = tf_keras.layers.Activation("linear", name=f"{layers.by_path[path].name}_range_{next(numbers)}")
        return tfmot.quantization.keras.quantize_annotate_layer(identity, output_only())(tensor)

    with tfmot.quantization.keras.quantize_scope({one.__name__: one for one in (kept, output_only)}):
        model = assemble(flat, layers, wrap, after)
        quantized = tfmot.quantization.keras.quantize_apply(model, scheme)
    left = [path for path in layers.by_path if path not in chosen]
    notes = [f"annotated as not quantized: {_described(layers, left)}"] if left else []
    return quantized, notes


def litert_file(model: Any, flat: FlatModel, input_names: Sequence[str], output_names: Sequence[str]) -> bytes:
    """The quantized model as a LiteRT file that takes one example at a time, by the signature `serving_default`.

    Args:
        model: a trained model with its ranges.
        flat: gives the shapes of the inputs.
        input_names, output_names: of the signature, in the order of the model.
    """
    specs = [
        tf.TensorSpec((1, *one.shape[1:]), one.dtype, name=name)
        for one, name in zip(flat.inputs, input_names, strict=True)
    ]

    def serve(*arrays: Any) -> dict[str, Any]:
        outputs = tf.nest.flatten(model(list(arrays) if len(arrays) > 1 else arrays[0], training=False))
        return dict(zip(output_names, outputs, strict=True))

    function = tf.function(serve, input_signature=specs, autograph=False).get_concrete_function()
    module = tf.Module()
    module.kept = list(function.graph.variables)
    with tempfile.TemporaryDirectory(prefix="tfaccel-convert-") as folder:
        tf.saved_model.save(module, folder, signatures={SIGNATURE_KEY: function})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            return bytes(converter.convert())
        except Exception as error:
            text = in_one_line(error, 300)
            raise CompressionError(
                f"LiteRT cannot convert the model after quantization-aware training: {type(error).__name__}: {text}. "
                "Use a post-training method."
            ) from error


def _scheme(method: str) -> Any:
    """TFMOT's scheme; those that preserve sparsity or clusters would fail on layers without weights."""
    import tensorflow_model_optimization as tfmot

    default = tfmot.quantization.keras.default_8bit.Default8BitQuantizeScheme()
    if method == "qat":
        return default
    if method == "pqat":
        scheme = tfmot.experimental.combine.Default8BitPrunePreserveQuantizeScheme()
    else:
        scheme = tfmot.experimental.combine.Default8BitClusterPreserveQuantizeScheme(preserve_sparsity=False)
    known, registry = default.get_quantize_registry(), scheme.get_quantize_registry()
    own_supports = registry.supports
    registry.supports = lambda layer: known.supports(layer) and own_supports(layer)
    scheme.get_quantize_registry = lambda: registry
    return scheme


def _quantizable(flat: FlatModel, layers: TranslatedLayers, registry: Any) -> set[str]:
    """Paths of the layers that TFMOT can quantize."""
    chosen, masked = set(), _masked(flat, layers)
    for path, layer in layers.by_path.items():
        kind = type(layer).__name__
        if path in layers.kept:
            continue
        activation = getattr(getattr(layer, "activation", None), "__name__", "linear")
        supported = activation in _ACTIVATIONS and (kind in _SPLIT or registry.supports(layer))
        if supported and path not in masked and not _takes_integers(flat, path):
            chosen.add(path)
    chosen |= {path for path in _folded_normalizations(flat, layers) if _source(flat, path) in chosen}
    return chosen


def _masked(flat: FlatModel, layers: TranslatedLayers) -> set[str]:
    """Paths of the layers with a masked input: TFMOT's wrappers do not propagate masks."""
    consumers, found = _consumers(flat), set()

    def after(path: str, index: int, tensor: Any) -> Any:
        if private_tfmot.has_mask(tensor):
            found.update(consumers.get((path, index), set()))
        return tensor

    assemble(flat, layers, after=after)
    return found


def _takes_integers(flat: FlatModel, path: str) -> bool:
    """Whether a layer takes a non-float input of the model."""
    tensors = [tensor for call in flat.calls if call.path == path for tensor in call.tensors]
    return any("float" not in flat.inputs[tensor.index].dtype for tensor in tensors if tensor.call is None)


def _folded_normalizations(flat: FlatModel, layers: TranslatedLayers) -> list[str]:
    """Batch normalizations that are the only consumer of a convolution or dense layer."""
    consumers = _consumers(flat)
    found = []
    for path, layer in layers.by_path.items():
        source = _source(flat, path)
        if type(layer).__name__ != "BatchNormalization" or path in layers.kept or source is None:
            continue
        before = layers.by_path[source]
        linear = getattr(getattr(before, "activation", None), "__name__", "") == "linear"
        once = sum(call.path == source for call in flat.calls) == 1 and consumers.get((source, 0)) == {path}
        if source not in layers.kept and type(before).__name__ in _FOLDING and linear and once:
            found.append(path)
    return found


def _source(flat: FlatModel, path: str) -> str | None:
    """The layer whose only output is the only input of a layer that is called once."""
    calls = [call for call in flat.calls if call.path == path]
    tensors = calls[0].tensors if len(calls) == 1 else []
    if len(tensors) != 1 or tensors[0].call is None:
        return None
    return flat.calls[tensors[0].call].path


def _consumers(flat: FlatModel) -> dict[tuple[str, int], set[str]]:
    """(layer, number of its output) -> the layers that take it; "" where it is an output of the model."""
    found: dict[tuple[str, int], set[str]] = {}
    uses = [(tensor, call.path) for call in flat.calls for tensor in call.tensors]
    for tensor, consumer in [*uses, *((tensor, "") for tensor in flat.outputs)]:
        if tensor.call is not None:
            found.setdefault((flat.calls[tensor.call].path, tensor.index), set()).add(consumer)
    return found


def _described(layers: TranslatedLayers, paths: Sequence[str]) -> str:
    """Layers by path and class."""

    def kind(path: str) -> str:
        layer = layers.by_path[path]
        return type(layer.operation if path in layers.kept else layer).__name__

    shown = ", ".join(f"{path} ({kind(path)})" for path in paths[:8])
    return shown + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")


def begin_with_ranges(model: Any, inputs: Sequence[np.ndarray]) -> None:
    """Sets the ranges of activations to those of a batch; nothing else changes.

    TFMOT initializes every range to -6..6 and moves it by a thousandth of the difference in each step, so that after a
    short training ranges are far too wide or clip larger values. Here they are initialized from a batch. A layer's
    inputs depend on the ranges before it, so several passes are needed.

    Args:
        model: a `tf_keras` model that TFMOT has prepared for quantization-aware training.
        inputs: a batch of training data, one array for each input.
    """
    of_inputs = [variable for layer in model.layers if type(layer).__name__ == _OF_INPUTS for variable in layer.weights]
    ranges = [found for layer in model.layers if type(layer).__name__ != _OF_INPUTS for found in _get_ranges(layer)]
    others = [(variable, variable.numpy()) for variable in model.non_trainable_weights]
    tensors = [tf.convert_to_tensor(array) for array in inputs]
    forward = graph_function(lambda: model(tensors if len(tensors) > 1 else tensors[0], training=True))
    for variable in of_inputs:
        if not variable.shape.rank and variable.dtype.is_floating:
            variable.assign(0.0)  # covers all values from now on
    for _ in range(_MAX_PASSES):
        before = [(float(low), float(high)) for low, high, _ in ranges]
        forward()
        largest_change = 0.0
        for (low, high, part), (old_low, old_high) in zip(ranges, before, strict=True):
            least = old_low - (old_low - float(low)) / part
            most = old_high - (old_high - float(high)) / part
            if not most > least:  # all zeros: unchanged
                least, most = old_low, old_high
            low.assign(min(least, 0.0))
            high.assign(max(most, 0.0))
            change = max(abs(least - old_low), abs(most - old_high)) / (most - least)
            largest_change = max(largest_change, change)
        if largest_change < _SMALL_CHANGE:
            break
    known = {id(variable) for low, high, _ in ranges for variable in (low, high)} | {
        id(variable) for variable in of_inputs
    }
    for variable, value in others:
        if id(variable) not in known:
            variable.assign(value)


def _get_ranges(layer: Any) -> list[tuple[Any, Any, float]]:
    """Minimum and maximum of each range of activations, and the fraction by which a pass moves them.

    A layer that is called several times moves them as often; ranges of kernels are recomputed in each step.
    """
    part = 1.0 - (1.0 - _STEP) ** max(1, len(layer.inbound_nodes))
    named = {str(variable.name.split(":")[0]): variable for variable in layer.non_trainable_weights}
    return [
        (low, named[f"{name.removesuffix('_min')}_max"], part)
        for name, low in named.items()
        if name.endswith("_min") and not low.shape.rank and "kernel" not in name
    ]
