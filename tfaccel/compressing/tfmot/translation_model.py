"""Builds a `tf_keras` model from a Keras 3 model's flat graph and weights. Used in a child process only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfaccel.compressing.tfmot.translation_graph import Call, FlatGraph, replaced
from tfaccel.compressing.tfmot.translation_kept import deserialize_constants, kept_layer_class, numbered, restored
from tfaccel.compressing.tfmot.translation_layers import UntranslatableError, call_arguments, native_layer
from tfaccel.errors import CompressionError

_OWN = "own_"  # prefix of the names of a model's own layers
TOLERANCE = 1e-5  # largest difference of outputs, relative to the largest output


@dataclass
class TranslatedLayers:
    """The `tf_keras` layers of a graph, by path, and why some are kept as Keras 3 layers.

    Args:
        by_path: the layers.
        kept: path -> why the layer is kept as a Keras 3 layer.
    """

    by_path: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def get_layer_weights(self, path: str) -> list[np.ndarray]:
        """A layer's weights, in Keras 3's order."""
        layer = self.by_path[path]
        weights = layer.keras_layer.get_weights() if path in self.kept else layer.get_weights()
        return [np.asarray(array) for array in weights]

    def set_weights(self, path: str, weights: Sequence[np.ndarray]) -> None:
        """Sets a layer's weights, given in Keras 3's order.

        Raises:
            CompressionError: if they do not match the layer's.
        """
        layer = self.by_path[path]
        try:
            (layer.keras_layer if path in self.kept else layer).set_weights(list(weights))
        except ValueError as error:
            raise CompressionError(f"Layer {path!r} cannot be translated, its weights differ: {error}") from error


def translate(
    graph: FlatGraph, weights: Mapping[str, Sequence[np.ndarray]], check_inputs: Sequence[np.ndarray]
) -> TranslatedLayers:
    """The layers of a graph in `tf_keras`, each compared on a real batch with its Keras 3 layer.

    A layer without an equivalent, or with different outputs, is kept as a Keras 3 layer.

    Args:
        graph: the model.
        weights: path -> the layer's weights in Keras 3's order, for layers that have some.
        check_inputs: a batch, one array for each input.
    """
    import tensorflow as tf

    names = tf_names(graph)
    layers = TranslatedLayers()
    keras_layers = {path: restored(layer) for path, layer in graph.layers.items()}
    for path, arrays in weights.items():
        _set_keras_weights(path, keras_layers[path], arrays)
    tensors = {f"in:{number}": tf.convert_to_tensor(array) for number, array in enumerate(check_inputs)}
    for number, call in enumerate(graph.calls):
        expected = _called_in_keras(keras_layers[call.path], call, tensors)
        reason = layers.kept.get(call.path) or _made_natively(graph, layers, call, names, weights, tensors, expected)
        if reason is not None and call.path not in layers.kept:
            layers.kept[call.path] = reason
            layers.by_path[call.path] = _kept(graph, call.path, names[call.path])
            if call.path in weights:
                layers.set_weights(call.path, weights[call.path])
        for index, tensor in enumerate(tf.nest.flatten(expected)):
            tensors[f"{number}:{index}"] = tensor
    return layers


def assemble(
    graph: FlatGraph,
    layers: TranslatedLayers,
    wrap: Callable[[str, Any], Any] = lambda path, layer: layer,
    after: Callable[[str, int, Any], Any] = lambda path, index, tensor: tensor,
) -> Any:
    """The `tf_keras` model: its inputs and outputs are lists, in the order of the graph's.

    Args:
        graph, layers: the model and its layers; layers are used, not copied.
        wrap: `wrap(path, layer)` returns the layer to call instead; called once for each layer.
        after: `after(path, index, tensor)` returns the replacement of each output tensor of a layer.
    """
    import tensorflow as tf
    import tf_keras

    inputs = [
        tf_keras.Input(one.batch_shape[1:], batch_size=one.batch_shape[0], dtype=one.dtype, name=_plain(one.name))
        for one in graph.inputs
    ]
    tensors = {f"in:{number}": tensor for number, tensor in enumerate(inputs)}
    wrapped: dict[str, Any] = {}
    for number, call in enumerate(graph.calls):
        layer = layers.by_path[call.path]
        if call.path not in wrapped:
            wrapped[call.path] = wrap(call.path, layer)
        first, named = _tf_arguments(layer, call, tensors, kept=call.path in layers.kept)
        outputs = wrapped[call.path](first, **named)
        for index, tensor in enumerate(tf.nest.flatten(outputs)):
            tensors[f"{number}:{index}"] = after(call.path, index, tensor)
    return tf_keras.Model(inputs, [tensors[name] for name in graph.outputs])


def tf_names(graph: FlatGraph) -> dict[str, str]:
    """A valid `tf_keras` name for each layer: path -> name.

    TFMOT finds weights by name, so names never equal automatic ones ("conv2d_1"), which layers added by TFMOT get.
    """
    names: dict[str, str] = {}
    taken = {_plain(one.name) for one in graph.inputs}
    for path in graph.layers:
        name, number = f"{_OWN}{_plain(path)}", 1
        while name in taken:
            name, number = f"{_OWN}{_plain(path)}_{number}", number + 1
        names[path] = name
        taken.add(name)
    return names


def largest_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest difference of outputs, relative to the largest output (or to 1e-3 if that is larger)."""
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
            return float("inf")
        if a.size:
            scale = max(1e-3, float(np.nanmax(np.abs(b))) if not np.isnan(b).all() else 1.0)
            largest = max(largest, float(np.nan_to_num(np.abs(a - b)).max()) / scale)
    return largest


def check_outputs(model: Any, graph: FlatGraph, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Compares a translated model's outputs with the Keras 3 model's; returns the largest difference.

    Raises:
        CompressionError: if they differ by more than `TOLERANCE`.
    """
    import tensorflow as tf

    outputs = tf.nest.flatten(model([tf.convert_to_tensor(array) for array in inputs], training=False))
    difference = largest_difference(outputs, expected)
    if not difference <= TOLERANCE:
        raise CompressionError(
            f"The model translated to tf_keras has different outputs ({', '.join(graph.output_names)}): the largest "
            f"difference is {difference:.2g} of the largest output, more than {TOLERANCE:g}. A layer computes "
            "differently in each process, or depends on more than its inputs. Use a post-training method."
        )
    return difference


def _made_natively(
    graph: FlatGraph,
    layers: TranslatedLayers,
    call: Call,
    names: Mapping[str, str],
    weights: Mapping[str, Sequence[np.ndarray]],
    tensors: Mapping[str, Any],
    expected: Any,
) -> str | None:
    """Why a layer cannot be translated; None if it can, which adds the `tf_keras` layer to `layers`."""
    import tensorflow as tf

    try:
        layer = layers.by_path.get(call.path) or native_layer(graph.layers[call.path], names[call.path])
        first, named = _tf_arguments(layer, call, tensors, kept=False)
        outputs = layer(first, **named)
        if call.path not in layers.by_path and call.path in weights:
            layer.set_weights([np.asarray(array) for array in weights[call.path]])
            outputs = layer(first, **named)
    except UntranslatableError as error:
        return str(error)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        return f"tf_keras's {graph.layers[call.path]['class_name']} refuses it: {' '.join(str(error).split())[:120]}"
    difference = largest_difference(tf.nest.flatten(outputs), tf.nest.flatten(expected))
    if not difference <= TOLERANCE:
        layers.by_path.pop(call.path, None)
        return f"tf_keras's {graph.layers[call.path]['class_name']} has different outputs ({difference:.1g})"
    layers.by_path[call.path] = layer
    return None


def _kept(graph: FlatGraph, path: str, name: str) -> Any:
    """Keeps a Keras 3 layer or operation."""
    calls = [call for call in graph.calls if call.path == path]
    arguments = {numbered(call.args, call.kwargs)[0] for call in calls}
    if len(arguments) > 1:
        raise CompressionError(
            f"Layer {path!r} cannot be translated: it is called in {len(arguments)} ways ({sorted(arguments)}). Call "
            "it with the same arguments everywhere, or use a post-training method."
        )
    saved = graph.layers[path]
    trainable = bool(saved["config"].get("trainable", True))
    return kept_layer_class()(json.dumps(saved), arguments.pop(), name=name, trainable=trainable)


def _tf_arguments(layer: Any, call: Call, tensors: Mapping[str, Any], *, kept: bool) -> tuple[Any, dict[str, Any]]:
    if kept:
        _, names = numbered(call.args, call.kwargs)
        found = [tensors[name] for name in names]
        return (found[0] if len(found) == 1 else found), {}
    arguments = replaced([call.args, call.kwargs], lambda name: tensors[name])
    return call_arguments(layer, arguments[0], arguments[1])


def _called_in_keras(layer: Any, call: Call, tensors: Mapping[str, Any]) -> Any:
    """The outputs of a Keras 3 layer, in inference mode."""
    arguments, names = numbered(call.args, call.kwargs)
    given = replaced(json.loads(arguments), lambda number: tensors[names[number]])
    return layer(*deserialize_constants(given["args"]), **deserialize_constants(given["kwargs"]))


def _set_keras_weights(path: str, layer: Any, arrays: Sequence[np.ndarray]) -> None:
    try:
        layer.set_weights(list(arrays))
    except ValueError as error:
        raise CompressionError(
            f"Layer {path!r} ({type(layer).__name__}) cannot be rebuilt in another process: its "
            "weights then differ. Create all of them in `build`, or use a post-training method."
        ) from error


def _plain(name: str) -> str:
    """A valid TensorFlow name."""
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", name)
    return plain if plain[:1].isalnum() else f"x{plain}"
