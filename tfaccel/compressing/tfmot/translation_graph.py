"""A Keras 3 model as a flat list of calls, with nested models inlined.

The list is made from the serialized model (`keras.saving.serialize_keras_object`), which is JSON, so that another
process can rebuild the model with another library. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tfaccel.errors import CompressionError

TENSOR = "__tensor__"  # {TENSOR: name} stands for a tensor among the arguments of a call
_MODELS = ("Functional", "Sequential", "Model")
_HALF = re.compile(r"(mixed_)?b?float16")


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input of the model: name, shape with batch dimension (None if unknown), and dtype."""

    name: str
    batch_shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a layer or operation.

    Args:
        path: the layer's path, through the models that contain it: "block_0/conv2d".
        args, kwargs: the arguments; tensors are {"__tensor__": name}.
    """

    path: str
    args: Any
    kwargs: Any


@dataclass(frozen=True, kw_only=True)
class FlatGraph:
    """A model as calls in topological order.

    Args:
        inputs: the model's inputs, in order; the tensor of number i is called "in:i".
        layers: path -> the serialized layer or operation, in float32.
        calls: output number t of call number c is called "c:t".
        outputs: names of the output tensors, in order.
        output_names: names of the model's outputs, in the same order.
    """

    inputs: tuple[Input, ...]
    layers: Mapping[str, Mapping[str, Any]] = field(hash=False)
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]
    output_names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The graph that `to_json` gave."""
        inputs = tuple(Input(**{**one, "batch_shape": tuple(one["batch_shape"])}) for one in data["inputs"])
        calls = tuple(Call(**one) for one in data["calls"])
        lists = {name: tuple(data[name]) for name in ("outputs", "output_names")}
        return cls(inputs=inputs, layers=dict(data["layers"]), calls=calls, **lists)


def flat_graph(serialized: Mapping[str, Any]) -> FlatGraph:
    """The calls of a functional or sequential model.

    Args:
        serialized: the model, serialized by `keras.saving.serialize_keras_object`.

    Raises:
        CompressionError: for a subclassed model, or sparse or ragged inputs.

    Example:
        >>> inputs = {"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 4], "dtype": "float32"}}
        >>> dense = {"class_name": "Dense", "config": {"name": "dense", "units": 2}}
        >>> model = {"class_name": "Sequential", "config": {"name": "m", "layers": [inputs, dense]}}
        >>> [call.path for call in flat_graph(model).calls]
        ['dense']
    """
    kind, config = serialized["class_name"], serialized["config"]
    if kind not in _MODELS or "layers" not in config:
        raise CompressionError(
            f"The model is a {kind}, a subclassed model, whose calls Keras does not serialize. Only "
            "functional and sequential models can be translated: build the same layers with keras.Model(inputs, "
            "outputs), or use a post-training method (float16, dynamic, int8)."
        )
    inputs = _inputs(serialized)
    flattening = _Flattening()
    outputs = flattening.model(serialized, "", [f"in:{number}" for number in range(len(inputs))], None)
    return FlatGraph(
        inputs=tuple(inputs),
        layers=flattening.layers,
        calls=tuple(flattening.calls),
        outputs=tuple(outputs),
        output_names=tuple(_output_names(serialized)),
    )


def in_float32(structure: Any) -> Any:
    """A serialized layer or model, with float32 in place of any half-precision dtype policy.

    Example:
        >>> in_float32({"dtype": {"class_name": "DTypePolicy", "config": {"name": "mixed_bfloat16"}}})
        {'dtype': 'float32'}
    """
    if isinstance(structure, Mapping):
        return {name: _dtype(value) if name == "dtype" else in_float32(value) for name, value in structure.items()}
    if isinstance(structure, (list, tuple)):
        return [in_float32(value) for value in structure]
    return structure


def _dtype(value: Any) -> Any:
    name = value.get("config", {}).get("name") if isinstance(value, Mapping) else value
    if isinstance(value, Mapping) and "Quantized" in str(value.get("class_name")):
        raise CompressionError(f"The model is already quantized ({name}). Give the model before `quantize`.")
    return "float32" if isinstance(name, str) and (_HALF.fullmatch(name) or name == "float32") else value


def tensors_in(structure: Any) -> list[str]:
    """Names of the tensors in the arguments of a call; those of a dict in the order of sorted keys, as in Keras."""
    if isinstance(structure, Mapping):
        if TENSOR in structure:
            return [structure[TENSOR]]
        return [name for key in sorted(structure) for name in tensors_in(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [name for value in structure for name in tensors_in(value)]
    return []


def replaced(structure: Any, change: Any) -> Any:
    """The structure with `change(name)` in place of each tensor."""
    if isinstance(structure, Mapping):
        if TENSOR in structure:
            return change(structure[TENSOR])
        return {key: replaced(value, change) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)):
        return [replaced(value, change) for value in structure]
    return structure


class _Flattening:
    """Collects layers and calls while models are inlined."""

    def __init__(self) -> None:
        self.layers: dict[str, Mapping[str, Any]] = {}
        self.calls: list[Call] = []

    def model(self, serialized: Mapping[str, Any], prefix: str, inputs: list[str], training: Any) -> list[str]:
        """Inlines a model that is called with these tensors; returns the names of its outputs."""
        config = serialized["config"]
        if serialized["class_name"] == "Sequential":
            tensors = inputs
            for layer in config["layers"]:
                if layer["class_name"] != "InputLayer":
                    arguments = [{TENSOR: tensors[0]}] if len(tensors) == 1 else [[{TENSOR: t} for t in tensors]]
                    results = self._call(layer, prefix, arguments, {}, training)
                    tensors = [results(0)] if callable(results) else results
            return tensors
        return self._functional(config, prefix, inputs, training)

    def _functional(self, config: Mapping[str, Any], prefix: str, inputs: list[str], training: Any) -> list[str]:
        known: dict[tuple[str, int], Any] = {}
        for (name, _, _), tensor in zip(_leaves(config["input_layers"]), inputs, strict=True):
            known[name, 0] = [tensor]
        waiting = {_name(layer): list(layer["inbound_nodes"]) for layer in config["layers"]}
        counts = dict.fromkeys(waiting, 0)
        while any(waiting.values()):
            num_left = sum(map(len, waiting.values()))
            for layer in config["layers"]:
                name = _name(layer)
                while waiting[name] and all(key in known for key in _sources(waiting[name][0])):
                    node = _with_tensors(waiting[name].pop(0), known)
                    known[name, counts[name]] = self._call(layer, prefix, node["args"], node["kwargs"], training)
                    counts[name] += 1
            if sum(map(len, waiting.values())) == num_left:
                raise CompressionError(f"Layers {sorted(n for n in waiting if waiting[n])} form a cycle.")
        functional = {_name(layer) for layer in config["layers"] if layer["class_name"] == "Functional"}
        return [
            _tensor(known[name, node - (name in functional)], number)
            for name, node, number in _leaves(config["output_layers"])
        ]

    def _call(self, layer: Mapping[str, Any], prefix: str, args: Any, kwargs: dict[str, Any], training: Any) -> Any:
        """The output tensors of a call: a list, or a function of the index if their number is unknown."""
        path = f"{prefix}{_name(layer)}"
        if kwargs.get("training") is not None:
            training = kwargs["training"]
        if layer["class_name"] in _MODELS and "layers" in layer["config"]:
            inputs = tensors_in(args) or tensors_in(kwargs.get("inputs"))
            return self.model(layer, f"{path}/", inputs, training)
        kept = {name: value for name, value in layer.items() if name not in ("name", "inbound_nodes")}
        if self.layers.setdefault(path, kept) is not kept and self.layers[path] != kept:
            raise CompressionError(f"Two layers are named {path}. Give them different names.")
        if training is not None:
            kwargs = {**kwargs, "training": training}
        number = len(self.calls)
        self.calls.append(Call(path=path, args=args, kwargs=kwargs))
        return lambda tensor: f"{number}:{tensor}"


def _name(layer: Mapping[str, Any]) -> str:
    name = layer.get("name") or layer["config"].get("name")
    if name is None:
        raise CompressionError(nameless(f"A layer of class {layer['class_name']}"))
    return str(name)


def nameless(layer: str) -> str:
    """The message for a layer that is saved without its name, so that it cannot be identified.

    Example:
        >>> nameless("Layer 'scale'").partition(".")[0]
        "Layer 'scale' is saved without its name"
    """
    return (
        f"{layer} is saved without its name. Let its `__init__` pass **kwargs to super().__init__, and its "
        "`get_config` return {**super().get_config(), ...}, or use a post-training method (float16, dynamic, int8)."
    )


def _tensor(results: Any, number: int) -> str:
    name: str = results(number) if callable(results) else results[number]
    return name


def _leaves(structure: Any) -> list[tuple[str, int, int]]:
    """The triples (layer, node, tensor) of a model's inputs or outputs, in Keras's order."""
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in _leaves(structure[key])]
    if len(structure) == 3 and isinstance(structure[0], str):
        return [(structure[0], structure[1], structure[2])]
    return [leaf for part in structure for leaf in _leaves(part)]


def _sources(node: Any) -> list[tuple[str, int]]:
    """The (layer, node) pairs whose tensors a serialized call takes."""
    if isinstance(node, Mapping):
        if node.get("class_name") == "__keras_tensor__":
            name, number, _ = node["config"]["keras_history"]
            return [(name, number)]
        return [source for value in node.values() for source in _sources(value)]
    return [source for value in node for source in _sources(value)] if isinstance(node, (list, tuple)) else []


def _with_tensors(node: Any, known: Mapping[tuple[str, int], Any]) -> Any:
    if isinstance(node, Mapping):
        if node.get("class_name") == "__keras_tensor__":
            name, number, tensor = node["config"]["keras_history"]
            return {TENSOR: _tensor(known[name, number], tensor)}
        return {key: _with_tensors(value, known) for key, value in node.items()}
    return [_with_tensors(value, known) for value in node] if isinstance(node, (list, tuple)) else node


def _inputs(serialized: Mapping[str, Any]) -> list[Input]:
    config = serialized["config"]
    by_name = {_name(layer): layer["config"] for layer in config["layers"] if layer["class_name"] == "InputLayer"}
    if serialized["class_name"] == "Sequential":
        if not by_name:
            raise CompressionError("The sequential model has no input shape. Put keras.Input(shape) first.")
        names = list(by_name)
    else:
        names = [name for name, _, _ in _leaves(config["input_layers"])]
    for name in names:
        if by_name[name].get("sparse") or by_name[name].get("ragged"):
            raise CompressionError(f"Input {name!r} is sparse or ragged; only dense inputs can be translated.")
    return [
        Input(name=name, batch_shape=tuple(by_name[name]["batch_shape"]), dtype=str(by_name[name].get("dtype")))
        for name in names
    ]


def _output_names(serialized: Mapping[str, Any]) -> list[str]:
    config = serialized["config"]
    if serialized["class_name"] == "Sequential":
        return [_name(config["layers"][-1])]
    outputs = config["output_layers"]
    if isinstance(outputs, Mapping) and all(len(_leaves(value)) == 1 for value in outputs.values()):
        return sorted(outputs)
    return [name for name, _, _ in _leaves(outputs)]
