"""What TFMOT's process is given: a copy of a Keras 3 model in float32, its calls, its weights by path, and a job.

The copy is made from JSON (`keras.saving.serialize_keras_object`), which is sent to the other process. There, the same
graph is walked: Keras 3 runs beside `tf_keras`.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
import numpy as np

from tfaccel.compressing.methods import TfmotOptions
from tfaccel.errors import CompressionError, in_one_line
from tfaccel.training.private.private_api import all_layers, get_graph, get_nodes, name_of_maker

_MODELS = ("Functional", "Sequential", "Model")
HALF = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")  # dtypes and policies
_KNOWN = ("keras", "builtins", "")  # packages whose objects Keras finds itself
_POST_TRAINING = "or use a post-training method (float16, dynamic, int8)"


@dataclass(frozen=True)
class Tensor:
    """Stands for a tensor among the arguments of a call.

    Args:
        call: the number of the call that made it; None for an input of the model.
        index: which output of the call, or which input.
    """

    call: int | None
    index: int


@dataclass(frozen=True)
class Call:
    """A call of a layer or operation.

    Args:
        path: the layer's path, through the models that contain it: "block_0/conv2d".
        operation: the Keras 3 layer or operation.
        args, kwargs: its arguments, with a `Tensor` for each tensor.
    """

    path: str
    operation: Any
    args: Any
    kwargs: Any

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [leaf for leaf in keras.tree.flatten((self.args, self.kwargs)) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class FlatModel:
    """A functional or sequential model as calls in topological order, with the models in it inlined.

    Args:
        model: the model, which computes in float32.
        serialized: the same as JSON.
        calls: its calls.
        outputs: the tensors of its outputs, in order.
    """

    model: keras.Model
    serialized: Mapping[str, Any]
    calls: tuple[Call, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def make(cls, model: keras.Model, serialized: Mapping[str, Any]) -> Self:
        """The calls of a model."""
        inputs = get_graph(model).inputs
        for one in inputs:
            if one.sparse or getattr(one, "ragged", False):
                raise CompressionError(
                    f"Input {name_of_maker(one)!r} is sparse or ragged; only dense inputs can be translated."
                )
        calls: list[Call] = []
        outputs = _add_calls(calls, model, [Tensor(None, index) for index in range(len(inputs))])
        return cls(model, serialized, tuple(calls), tuple(outputs))

    @classmethod
    def from_json(cls, serialized: Mapping[str, Any]) -> Self:
        """The model that another process has serialized.

        Raises:
            CompressionError: if a layer's class cannot be found or deserialized; the message names the layer.
        """
        try:
            return cls.make(_rebuild(serialized), serialized)
        except (TypeError, ValueError, ImportError, AttributeError):
            for saved in get_layer_configs(serialized).values():
                _check_that_it_can_be_rebuilt(saved)
            raise

    @property
    def inputs(self) -> list[keras.KerasTensor]:
        """The symbolic inputs, in order."""
        return list(get_graph(self.model).inputs)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in order."""
        return [name_of_maker(one) for one in self.inputs]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        if isinstance(self.model, keras.Sequential):
            return [self.model.layers[-1].name]
        structure = self.model.output
        if isinstance(structure, Mapping) and all(len(keras.tree.flatten(one)) == 1 for one in structure.values()):
            return sorted(structure)
        return [name_of_maker(one) for one in self.model.outputs]

    @property
    def modules(self) -> list[str]:
        """The modules of its layers' classes, which are imported before it is rebuilt."""
        return sorted({module for saved in _saved_objects(self.serialized) if (module := _get_module(saved))})

    def weights(self) -> dict[str, list[np.ndarray]]:
        """The weights of each layer that has some, by path."""
        return _get_weights(self.model)

    def with_weights(self, weights: Mapping[str, Sequence[np.ndarray]]) -> keras.Model:
        """The model, with these weights."""
        for path, layer in leaf_layers(self.model):
            if path in weights:
                try:
                    layer.set_weights(list(weights[path]))
                except ValueError as error:
                    raise CompressionError(
                        f"Layer {path!r} ({type(layer).__name__}) cannot be rebuilt in another process: its "
                        "weights then differ. Create all of them in `build`, or use a post-training method."
                    ) from error
        return self.model

    def get_inputs(self, x: Any) -> list[Any]:
        """The leaves of a batch's inputs, in the order of the model's inputs."""
        names = self.input_names
        if isinstance(x, Mapping) and all(name in x for name in names):
            return [x[name] for name in names]
        leaves = keras.tree.flatten(x)
        if len(leaves) != len(names):
            raise CompressionError(
                f"The model takes {len(names)} inputs ({', '.join(names)}). Received: a batch with {len(leaves)}."
            )
        return leaves

    def get_outputs(self, structure: Any) -> list[Any]:
        """The leaves of targets or outputs, in the order of the model's outputs."""
        names = self.output_names
        if isinstance(structure, Mapping) and set(structure) == set(names):
            return [structure[name] for name in names]
        return list(keras.tree.flatten(structure))


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """One stage of training.

    Args:
        losses: for each output the loss as `saved_loss` gives it, or None.
        loss_weights: one for each output.
        optimizer: class name and config of the Keras 3 optimizer.
        learning_rate: the peak; it decays to 0 over all steps.
        steps_per_epoch, epochs: the length.
        num_sample_weights: arrays of sample weights in each batch.
    """

    losses: Sequence[Any]
    loss_weights: Sequence[float]
    optimizer: Mapping[str, Any]
    learning_rate: float
    steps_per_epoch: int
    epochs: int
    num_sample_weights: int

    @property
    def num_steps(self) -> int:
        """Total number of steps."""
        return self.steps_per_epoch * self.epochs


@dataclass(frozen=True, kw_only=True)
class TfmotJob:
    """What TFMOT's process is given before the batches.

    Args:
        model: the serialized model; see `FlatModel`.
        weights: its weights by path.
        inputs, outputs: a batch, and the model's outputs for it.
        stages: how to train, by method, in order.
        options: further ones of the methods.
        sys_path, modules: where the classes of layers and losses are found.
        input_names, output_names: of the LiteRT file's signature, in the order of the model.
    """

    model: Mapping[str, Any]
    weights: Mapping[str, Sequence[np.ndarray]]
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    stages: Mapping[str, TrainingStage]
    options: TfmotOptions
    sys_path: Sequence[str]
    modules: Sequence[str]
    input_names: Sequence[str]
    output_names: Sequence[str]


def flatten_model(model: keras.Model) -> FlatModel:
    """The calls of a model's copy in float32.

    Example:
        >>> layers = [keras.Input((4,)), keras.layers.Dense(2, name="scores", dtype="mixed_bfloat16")]
        >>> flat = flatten_model(keras.Sequential(layers))
        >>> [call.path for call in flat.calls], flat.model.dtype_policy.name
        (['scores'], 'float32')
    """
    _check_that_it_can_be_sent(model)
    try:
        saved = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    except (TypeError, ValueError, RuntimeError) as error:
        raise CompressionError(
            f"Model {model.name!r} cannot be serialized, so it cannot be translated: "
            f"{in_one_line(error, 300)}. Give its layers a get_config, {_POST_TRAINING}."
        ) from error
    saved.pop("compile_config", None)
    serialized = in_float32(saved)
    try:
        flat = FlatModel.make(_rebuild(serialized), serialized)
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        text = str(error).rpartition("Exception encountered:")[2].partition(" Full object config:")[0]
        raise CompressionError(
            f"Model {model.name!r} cannot be deserialized by Keras, and so cannot be translated: "
            f"{' '.join(text.split())[:400]} Register custom objects, give layers a get_config with all arguments of "
            f"their __init__, {_POST_TRAINING}."
        ) from error
    found = {path for path, _ in leaf_layers(flat.model)}
    for path, layer in leaf_layers(model):
        if path not in found:
            raise CompressionError(
                f"Layer {path!r} ({type(layer).__name__}) is saved without its name. Let its `__init__` pass **kwargs "
                "to super().__init__, and its `get_config` return {**super().get_config(), ...}, "
                + _POST_TRAINING
                + "."
            )
    flat.with_weights(_get_weights(model))
    return flat


def leaf_layers(model: keras.Model, prefix: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """The layers of a model by path; nested functional and sequential models are traversed.

    Example:
        >>> inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")], name="inner")
        >>> [path for path, _ in leaf_layers(keras.Sequential([keras.Input((4,)), inner]))]
        ['inner/dense']
    """
    for layer in model.layers:
        if _is_opened(layer):
            yield from leaf_layers(layer, f"{prefix}{layer.name}/")
        elif not isinstance(layer, keras.layers.InputLayer):
            yield f"{prefix}{layer.name}", layer


def get_layer_configs(serialized: Mapping[str, Any], prefix: str = "") -> dict[str, Mapping[str, Any]]:
    """Path -> the serialized layer or operation, of a serialized model."""
    found: dict[str, Mapping[str, Any]] = {}
    for saved in serialized["config"]["layers"]:
        path = f"{prefix}{saved.get('name') or saved['config'].get('name')}"
        if saved["class_name"] in _MODELS and "layers" in saved["config"]:
            found |= get_layer_configs(saved, f"{path}/")
        else:
            found[path] = saved
    return found


def in_float32(structure: Any) -> Any:
    """A serialized layer or model, with float32 in place of any half-precision dtype or dtype policy.

    Example:
        >>> in_float32({"units": 3, "dtype": {"class_name": "DTypePolicy", "config": {"name": "mixed_bfloat16"}}})
        {'units': 3, 'dtype': {'class_name': 'DTypePolicy', 'config': {'name': 'float32'}}}
    """
    if isinstance(structure, Mapping):
        is_policy = structure.get("class_name") == "DTypePolicy" and isinstance(structure.get("config"), Mapping)
        if is_policy and structure["config"].get("name") in HALF:
            return {**structure, "config": {"name": "float32"}}
        return {
            name: "float32" if name == "dtype" and isinstance(value, str) and value in HALF else in_float32(value)
            for name, value in structure.items()
        }
    return [in_float32(value) for value in structure] if isinstance(structure, (list, tuple)) else structure


def _check_that_it_can_be_sent(model: keras.Model) -> None:
    """Raises CompressionError for a model or layers that another process cannot rebuild; the message names them."""
    kind = type(model).__name__
    graph = get_graph(model) if kind in _MODELS else None
    if graph is None and not isinstance(model, keras.Sequential):
        raise CompressionError(
            f"The model is a {kind}, a subclassed model, whose calls Keras does not serialize. Only "
            "functional and sequential models can be translated: build the same layers with keras.Model(inputs, "
            f"outputs), {_POST_TRAINING}."
        )
    for layer in all_layers(model):
        if "Quantized" in type(layer.dtype_policy).__name__:
            name = layer.dtype_policy.name
            raise CompressionError(f"The model is already quantized ({name}). Give the model before `quantize`.")
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
    if not model.built:
        raise CompressionError(f"Model {model.name!r} is not built: it has no weights yet. Train it, or call it once.")
    if graph is None:
        raise CompressionError("The sequential model has no input shape. Put keras.Input(shape) first.")


def _add_calls(
    calls: list[Call], model: keras.Model, inputs: Sequence[Tensor], prefix: str = "", training: Any = None
) -> list[Tensor]:
    """Appends the calls of a model that is called with these tensors; returns those of its outputs."""
    if isinstance(model, keras.Sequential):  # its graph has operations for masks as well, which its layers make again
        tensors = list(inputs)
        for layer in model.layers:
            arguments = (tensors[0] if len(tensors) == 1 else tensors,)
            tensors = _add_call(calls, layer, f"{prefix}{layer.name}", arguments, {}, training) or [
                Tensor(len(calls) - 1, 0)
            ]
        return tensors
    graph = get_graph(model)
    values = {id(symbol): tensor for symbol, tensor in zip(graph.inputs, inputs, strict=True)}
    for node in get_nodes(graph):
        args, kwargs = node.arguments.fill_in(values)
        path = f"{prefix}{node.operation.name}"
        outputs = _add_call(calls, node.operation, path, args, kwargs, training)
        if outputs is None:
            outputs = [Tensor(len(calls) - 1, index) for index in range(len(node.outputs))]
        values |= {id(symbol): tensor for symbol, tensor in zip(node.outputs, outputs, strict=True)}
    return [values[id(symbol)] for symbol in graph.outputs]


def _add_call(
    calls: list[Call], operation: Any, path: str, args: Any, kwargs: dict[str, Any], training: Any
) -> list[Tensor] | None:
    """Appends the call of an operation, or those of a model; returns the tensors of a model's outputs."""
    in_training = training if kwargs.get("training") is None else kwargs["training"]
    if _is_opened(operation):
        given = _get_inputs(get_graph(operation), args[0] if args else kwargs["inputs"])
        return _add_calls(calls, operation, given, f"{path}/", in_training)
    if in_training is not None and isinstance(operation, keras.layers.Layer):
        kwargs = {**kwargs, "training": in_training}
    calls.append(Call(path, operation, args, kwargs))
    return None


def _get_inputs(graph: keras.Model, given: Any) -> list[Tensor]:
    """The tensors that a nested model is called with, in the order of its inputs, as Keras assigns them."""
    if isinstance(given, Mapping) and not isinstance(graph.input, Mapping):
        return [given[symbol.name] for symbol in graph.inputs]
    return list(keras.tree.flatten(given))


def _is_opened(layer: Any) -> bool:
    """Whether a layer is a model whose layers are translated one by one."""
    return isinstance(layer, keras.Model) and type(layer).__name__ in _MODELS and get_graph(layer) is not None


def _get_weights(model: keras.Model) -> dict[str, list[np.ndarray]]:
    found = {path: [np.asarray(array) for array in layer.get_weights()] for path, layer in leaf_layers(model)}
    return {path: arrays for path, arrays in found.items() if arrays}


def _rebuild(serialized: Mapping[str, Any]) -> Any:
    """Deserializes a model, layer or operation. Keras modifies its input, so it gets a copy."""
    objects = _saved_classes(serialized)
    return keras.saving.deserialize_keras_object(
        copy.deepcopy(dict(serialized)), custom_objects=objects, safe_mode=False
    )


def _check_that_it_can_be_rebuilt(saved: Mapping[str, Any]) -> None:
    """Raises CompressionError for a serialized layer that this process cannot deserialize."""
    try:
        _rebuild(saved)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        name = saved.get("config", {}).get("name")
        raise CompressionError(
            f"Layer {name!r} ({saved.get('class_name')}) cannot be rebuilt in another process: "
            f"{in_one_line(error, 300)}. Define its class at the top level of a module, with a get_config, "
            "or use a post-training method."
        ) from error


def _saved_classes(structure: Any) -> dict[str, Any]:
    """Name -> class or function, for `custom_objects` of Keras's deserialization; the modules must be importable.

    Keras finds only what was registered with `register_keras_serializable`; a class at the top level of a module can be
    found without registration.
    """
    found = {}
    for saved in _saved_objects(structure):
        is_function = saved["class_name"] == "function"
        name = saved["config"] if is_function else saved["class_name"]
        module = sys.modules.get(_get_module(saved))
        if isinstance(name, str) and hasattr(module, name):
            found[name if is_function else str(saved.get("registered_name") or name)] = getattr(module, name)
    return found


def _get_module(saved: Mapping[str, Any]) -> str:
    """The module of a class or function; "" for Keras's own. Keras does not record it for registered functions."""
    module = str(saved["module"])
    if saved["class_name"] == "function" and module == "builtins":
        module = str(getattr(keras.saving.get_registered_object(str(saved["config"])), "__module__", ""))
    return "" if module.split(".")[0] in _KNOWN else module


def _saved_objects(structure: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(structure, Mapping):
        if isinstance(structure.get("module"), str) and "class_name" in structure:
            yield structure
        for value in structure.values():
            yield from _saved_objects(value)
    elif isinstance(structure, (list, tuple)):
        for value in structure:
            yield from _saved_objects(value)
