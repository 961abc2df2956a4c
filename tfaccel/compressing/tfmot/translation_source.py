"""A Keras 3 model flattened for another process: its flat graph in float32, and its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.tfmot.saved_classes import rebuild, saved_modules
from tfaccel.compressing.tfmot.translation_graph import FlatGraph, flat_graph, in_float32, nameless
from tfaccel.errors import CompressionError

_POST_TRAINING = "or use a post-training method (float16, dynamic, int8)"


@dataclass(frozen=True)
class FlatModel:
    """A model in a form that another process can rebuild.

    Attributes:
        model: a copy that computes in float32.
        graph: its calls.
        modules: the modules of its layers, imported before it is rebuilt.
    """

    model: keras.Model
    graph: FlatGraph
    modules: tuple[str, ...]

    def weights(self) -> dict[str, list[np.ndarray]]:
        """The weights of each layer that has some, by path."""
        return {
            path: [np.asarray(array) for array in layer.get_weights()]
            for path, layer in leaf_layers(self.model)
            if path in self.graph.layers and layer.get_weights()
        }

    def with_weights(self, weights: Mapping[str, Sequence[np.ndarray]]) -> keras.Model:
        """The copy, with these weights."""
        for path, layer in leaf_layers(self.model):
            if path in weights:
                layer.set_weights(list(weights[path]))
        return self.model

    def get_inputs(self, x: Any) -> list[Any]:
        """The leaves of a batch's inputs, in the order of the graph's inputs.

        Raises:
            CompressionError: if their number does not match the model.
        """
        names = [one.name for one in self.graph.inputs]
        if isinstance(x, Mapping) and all(name in x for name in names):
            return [x[name] for name in names]
        leaves = keras.tree.flatten(x)
        if len(leaves) != len(names):
            raise CompressionError(
                f"The model takes {len(names)} inputs ({', '.join(names)}). Received: a batch with {len(leaves)}."
            )
        return leaves

    def get_outputs(self, structure: Any) -> list[Any]:
        """The leaves of targets or outputs, in the order of the graph's outputs."""
        names = self.graph.output_names
        if isinstance(structure, Mapping) and set(structure) == set(names):
            return [structure[name] for name in names]
        return list(keras.tree.flatten(structure))


def flatten_model(model: keras.Model) -> FlatModel:
    """The flat graph of a model, and a copy of it in float32.

    Raises:
        CompressionError: for a subclassed model, one that is not built, or a layer that cannot be saved; the message
            names it.

    Example:
        >>> layers = [keras.Input((4,)), keras.layers.Dense(2, name="scores", dtype="mixed_bfloat16")]
        >>> flat = flatten_model(keras.Sequential(layers))
        >>> list(flat.graph.layers), flat.model.dtype_policy.name
        (['scores'], 'float32')
    """
    _check_classes(model)
    if not model.built:
        raise CompressionError(f"Model {model.name!r} is not built: it has no weights yet. Train it, or call it once.")
    try:
        saved = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    except (TypeError, ValueError, RuntimeError) as error:
        raise CompressionError(
            f"Model {model.name!r} cannot be serialized, so it cannot be translated: "
            f"{' '.join(str(error).split())[:300]}. Give its layers a get_config, {_POST_TRAINING}."
        ) from error
    saved.pop("compile_config", None)
    serialized = in_float32(saved)
    graph = flat_graph(serialized)
    rebuilt = _rebuilt(model.name, serialized)
    found = {path for path, _ in leaf_layers(rebuilt)}
    for path, layer in leaf_layers(model):
        if path not in found:
            raise CompressionError(nameless(f"Layer {path!r} ({type(layer).__name__})"))
    rebuilt.set_weights(model.get_weights())
    return FlatModel(rebuilt, graph, tuple(sorted(saved_modules(serialized))))


def leaf_layers(model: keras.Model, prefix: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """The layers of a model by path; nested functional and sequential models are traversed.

    Example:
        >>> inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")], name="inner")
        >>> [path for path, _ in leaf_layers(keras.Sequential([keras.Input((4,)), inner]))]
        ['inner/dense']
    """
    for layer in model.layers:
        if type(layer).__name__ in ("Functional", "Sequential") and isinstance(layer, keras.Model):
            yield from leaf_layers(layer, f"{prefix}{layer.name}/")
        elif not isinstance(layer, keras.layers.InputLayer):
            yield f"{prefix}{layer.name}", layer


def _rebuilt(name: str, serialized: Mapping[str, Any]) -> keras.Model:
    """Deserializes the model.

    Raises:
        CompressionError: if a layer cannot be deserialized.
    """
    try:
        made: keras.Model = rebuild(serialized)
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        text = str(error).rpartition("Exception encountered:")[2].partition(" Full object config:")[0]
        raise CompressionError(
            f"Model {name!r} cannot be deserialized by Keras, and so cannot be translated: "
            f"{' '.join(text.split())[:400]} Register custom objects, give layers a get_config with all arguments of "
            f"their __init__, {_POST_TRAINING}."
        ) from error
    return made


def _check_classes(model: keras.Model) -> None:
    """Raises CompressionError for layers that another process cannot rebuild; the message names them."""
    if type(model).__name__ not in ("Functional", "Sequential", "Model"):
        flat_graph({"class_name": type(model).__name__, "config": {}})  # raises the error that names the class
    paths: dict[int, str] = {}
    for path, layer in leaf_layers(model):
        if paths.setdefault(id(layer), path) != path:
            raise CompressionError(
                f"Layer {path!r} is shared with {paths[id(layer)]!r} in another nested model; Keras "
                f"does not serialize that. Call the layer in one model only, {_POST_TRAINING}."
            )
        if type(layer).__module__ == "__main__":
            raise CompressionError(
                f"Layer {path!r} is of class {type(layer).__name__}, which is defined in the main program and cannot "
                f"be imported by another process. Move the class to a module, {_POST_TRAINING}."
            )
