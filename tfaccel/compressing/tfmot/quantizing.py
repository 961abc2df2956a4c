"""Quantization-aware training by TFMOT: the fake-quantized layers, and the LiteRT file. In a child process only."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfaccel.compressing.tfmot import private_tfmot
from tfaccel.compressing.tfmot.translation_graph import FlatGraph, tensors_in
from tfaccel.compressing.tfmot.translation_kept import kept_layer_class
from tfaccel.compressing.tfmot.translation_model import TranslatedLayers, assemble
from tfaccel.errors import CompressionError

# Activations that TFMOT can quantize.
_ACTIVATIONS = ("relu", "swish", "gelu", "linear", "softmax", "sigmoid", "tanh")
# Replaced by two convolutions, which are quantized.
_SPLIT = ("SeparableConv1D", "SeparableConv2D")
# A batch normalization after one of these is folded into it. (After a dense layer, LiteRT would keep both in float.)
_FOLDING = ("Conv2D", "DepthwiseConv2D")
SIGNATURE_KEY = "serving_default"


@dataclass
class Quantized:
    """A fake-quantized model.

    Args:
        model: the `tf_keras` model to train.
        notes: which layers stay in float.
    """

    model: Any
    notes: list[str] = field(default_factory=list)


def quantized_model(graph: FlatGraph, layers: TranslatedLayers, method: str) -> Quantized:
    """A model whose layers are fake-quantized where TFMOT supports it; others stay in float.

    Args:
        graph, layers: the translated model.
        method: "qat"; "pqat" keeps zero weights zero, "cqat" keeps equal weights equal.

    Raises:
        CompressionError: if TFMOT cannot quantize any layer with weights.
    """
    import tensorflow_model_optimization as tfmot

    private_tfmot.allow_lambdas()
    scheme = _scheme(method)
    chosen = _quantizable(graph, layers, scheme.get_quantize_registry())
    with_weights = [path for path, layer in layers.by_path.items() if layer.trainable_weights]
    if not any(path in chosen for path in with_weights):
        raise CompressionError(
            f"TFMOT can quantize none of the layers with weights ({_described(layers, with_weights)}). Use a "
            "post-training method (dynamic, int8, int16x8), or prune or cluster."
        )
    consumers, output_only = _consumers(graph), private_tfmot.output_config_class()()
    numbers = itertools.count()  # a layer that is called several times has several ranges

    def wrap(path: str, layer: Any) -> Any:
        return tfmot.quantization.keras.quantize_annotate_layer(layer) if path in chosen else layer

    def after(path: str, index: int, tensor: Any) -> Any:
        """Quantizes the output of a float layer that a quantized one takes."""
        if path in chosen or not tensor.dtype.is_floating or not consumers.get((path, index), set()) & chosen:
            return tensor
        return _identity(f"{layers.by_path[path].name}_range_{next(numbers)}", output_only)(tensor)

    with _custom_objects(tfmot):
        model = assemble(graph, layers, wrap, after)
        quantized = tfmot.quantization.keras.quantize_apply(model, scheme)
    left = [path for path in layers.by_path if path not in chosen]
    notes = [f"annotated as not quantized: {_described(layers, left)}"] if left else []
    return Quantized(quantized, notes)


def litert_file(model: Any, graph: FlatGraph, names: Mapping[str, Sequence[str]]) -> bytes:
    """The quantized model as a LiteRT file that takes one example at a time, by the signature `serving_default`.

    Args:
        model: a trained model with its ranges.
        graph: gives the shapes of the inputs.
        names: the signature's names of "inputs" and "outputs", in the order of the graph.

    Raises:
        CompressionError: if LiteRT cannot convert the model.
    """
    import tensorflow as tf

    specs = [
        tf.TensorSpec((1, *one.batch_shape[1:]), one.dtype, name=name)
        for one, name in zip(graph.inputs, names["inputs"], strict=True)
    ]

    def serve(*arrays: Any) -> dict[str, Any]:
        outputs = tf.nest.flatten(model(list(arrays) if len(arrays) > 1 else arrays[0], training=False))
        return dict(zip(names["outputs"], outputs, strict=True))

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
            text = " ".join(str(error).split())[:300]
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


def _custom_objects(tfmot: Any) -> Any:
    config, kept = private_tfmot.output_config_class(), kept_layer_class()
    return tfmot.quantization.keras.quantize_scope({kept.__name__: kept, config.__name__: config})


def _identity(name: str, config: Any) -> Any:
    """An identity layer, whose output is quantized."""
    import tensorflow_model_optimization as tfmot
    import tf_keras

    layer = tf_keras.layers.Activation("linear", name=name)
    return tfmot.quantization.keras.quantize_annotate_layer(layer, config)


def _quantizable(graph: FlatGraph, layers: TranslatedLayers, registry: Any) -> set[str]:
    """Paths of the layers that TFMOT can quantize."""
    chosen, masked = set(), _masked(graph, layers)
    for path, layer in layers.by_path.items():
        kind = type(layer).__name__
        if path in layers.kept:
            continue
        activation = getattr(getattr(layer, "activation", None), "__name__", "linear")
        supported = activation in _ACTIVATIONS and (kind in _SPLIT or registry.supports(layer))
        if supported and path not in masked and not _takes_integers(graph, path):
            chosen.add(path)
    chosen |= {path for path in _folded_normalizations(graph, layers) if _source(graph, path) in chosen}
    return chosen


def _masked(graph: FlatGraph, layers: TranslatedLayers) -> set[str]:
    """Paths of the layers with a masked input: TFMOT's wrappers do not propagate masks."""
    consumers, found = _consumers(graph), set()

    def after(path: str, index: int, tensor: Any) -> Any:
        if private_tfmot.has_mask(tensor):
            found.update(consumers.get((path, index), set()))
        return tensor

    assemble(graph, layers, after=after)
    return found


def _takes_integers(graph: FlatGraph, path: str) -> bool:
    """Whether a layer takes a non-float input of the model."""
    names = [name for call in graph.calls if call.path == path for name in tensors_in([call.args, call.kwargs])]
    kinds = [graph.inputs[int(name[3:])].dtype for name in names if name.startswith("in:")]
    return any("float" not in kind for kind in kinds)


def _folded_normalizations(graph: FlatGraph, layers: TranslatedLayers) -> list[str]:
    """Batch normalizations that are the only consumer of a convolution or dense layer."""
    consumers = _consumers(graph)
    found = []
    for path, layer in layers.by_path.items():
        source = _source(graph, path)
        if type(layer).__name__ != "BatchNormalization" or path in layers.kept or source is None:
            continue
        before = layers.by_path[source]
        linear = getattr(getattr(before, "activation", None), "__name__", "") == "linear"
        once = sum(call.path == source for call in graph.calls) == 1 and consumers.get((source, 0)) == {path}
        if source not in layers.kept and type(before).__name__ in _FOLDING and linear and once:
            found.append(path)
    return found


def _source(graph: FlatGraph, path: str) -> str | None:
    """The layer whose only output is the only input of a layer that is called once."""
    calls = [call for call in graph.calls if call.path == path]
    tensors = tensors_in([calls[0].args, calls[0].kwargs]) if len(calls) == 1 else []
    if len(tensors) != 1 or tensors[0].startswith("in:"):
        return None
    return graph.calls[int(tensors[0].split(":")[0])].path


def _consumers(graph: FlatGraph) -> dict[tuple[str, int], set[str]]:
    """(layer, number of its output) -> the layers that take it; "" where it is an output of the model."""
    found: dict[tuple[str, int], set[str]] = {}
    uses = [(name, call.path) for call in graph.calls for name in tensors_in([call.args, call.kwargs])]
    uses += [(name, "") for name in graph.outputs]
    for name, consumer in uses:
        number, index = name.split(":")
        if number != "in":
            found.setdefault((graph.calls[int(number)].path, int(index)), set()).add(consumer)
    return found


def _described(layers: TranslatedLayers, paths: Sequence[str]) -> str:
    """Layers by path and class."""

    def kind(path: str) -> str:
        layer = layers.by_path[path]
        return json.loads(layer.get_config()["saved"])["class_name"] if path in layers.kept else type(layer).__name__

    shown = ", ".join(f"{path} ({kind(path)})" for path in paths[:8])
    return shown + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
