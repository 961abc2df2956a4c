"""Finds the layers of a model that LiteRT cannot convert, from its converter's message."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import keras

from tfaccel.errors import CompressionError, in_one_line
from tfaccel.training.private.private_api import all_layers

_OPERATION = re.compile(r"\btf\.(\w+)")
_SHOWN_CHARACTERS = 300
# Layer attributes of weights that are multiplied with the inputs.
_KERNELS = ("kernel", "embeddings", "depthwise_kernel")


def refusal(error: BaseException, graph: Any, model: keras.Model, method: str) -> str:
    """Why a model could not be converted, with the layers of the unsupported operations.

    Args:
        error: what TensorFlow's converter raised.
        graph: the converted graph.
        model: the model that the graph was traced from.
        method: the requested method.
    """
    kinds = refused_operations(str(error))
    found = [(layer, kind) for kind, layer in layers_with(graph, kinds, model)]
    if found:
        named = ", ".join(dict.fromkeys(f"{layer!r} ({kind})" for layer, kind in found))
        return (
            f"LiteRT cannot convert these layers of the model: {named}; it does not support the operations in "
            f"brackets ({method}). Replace them by others, or keep the model in Keras (keras_int8)."
        )
    text = in_one_line(error, _SHOWN_CHARACTERS)
    return f"LiteRT cannot convert this model ({method}): {type(error).__name__}: {text}"


def refused_operations(text: str) -> list[str]:
    """TensorFlow operations that a converter's message names as unsupported.

    Example:
        >>> refused_operations("error: 'tf.Erfinv' op is neither a custom op nor a flex op")
        ['Erfinv']
    """
    lines = [line for line in text.splitlines() if "op is neither" in line or "Details:" in line] or text.splitlines()
    details = [
        name for line in text.splitlines() if line.strip().startswith("tf.") for name in _OPERATION.findall(line)
    ]
    return list(dict.fromkeys([name for line in lines for name in _OPERATION.findall(line)] + details))


def layers_with(graph: Any, kinds: list[str], model: keras.Model) -> list[tuple[str, str]]:
    """Pairs of an operation's kind and the path of the innermost layer that contains it."""
    names = layer_names(model)
    found = [(kind, layer_path(name, names) or model.name) for kind, name in _operations(graph) if kind in kinds]
    return list(dict.fromkeys(found))


def check_no_loops(operations: Iterable[tuple[str, Sequence[str]]], model: keras.Model, method: str) -> None:
    """Raises CompressionError for a model with loops, inside which activations cannot be calibrated.

    TensorFlow's converter would crash the process.

    Args:
        operations: the operations of the model's float32 file; see `litert_file.named_operations`.
        model: the model.
        method: the requested method.
    """
    loops = [get_layer(names, model) for operation, names in operations if operation == "WHILE"]
    if loops:
        raise CompressionError(
            f"These layers of the model are loops: {', '.join(map(repr, dict.fromkeys(loops)))}. The ranges of "
            f"activations inside them cannot be calibrated ({method}): they are not Keras's recurrent layers, or too "
            "long to be unrolled. Use dynamic, float16 or weight_int8."
        )


def layer_names(model: keras.Model) -> set[str]:
    """The names of all layers inside a model."""
    return {layer.name for layer in all_layers(model) if layer is not model}


def get_layer(names: Sequence[str], model: keras.Model) -> str:
    """The path of the layer that an operation belongs to.

    An operation may be fused from several, with joined names: a convolution, the normalization after it and an
    activation. It belongs to the layer with a kernel.

    Args:
        names: of the operation's output and of its constants.
        model: whose layers they are.
    """
    known = layer_names(model)
    paths = [layer_path(name, known) for group in names for name in group.split(";")]
    with_kernel = {layer.name for layer in all_layers(model) if any(hasattr(layer, name) for name in _KERNELS)}
    chosen = [path for path in paths if path.rpartition("/")[2] in with_kernel] or [path for path in paths if path]
    return chosen[0] if chosen else model.name


def layer_path(operation: str, names: Collection[str]) -> str:
    """The path of an operation's layers, outermost first, from its name; "" if it is in none.

    TensorFlow adds a number to each name in a traced model; it is stripped before the lookup.

    Example:
        >>> layer_path("model_1/block_1/dense_7_1/Relu", {"block", "dense_7"})
        'block/dense_7'
    """
    found = [_layer_name(part, names) for part in operation.split("/")[:-1]]
    return "/".join(name for name in found if name)


def _layer_name(part: str, names: Collection[str]) -> str:
    stem, _, number = part.rpartition("_")
    if number.isdigit() and stem in names:
        return stem
    return part if part in names else ""


def _operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Kind and name of every operation, including those of called functions."""
    definition = graph.as_graph_def()
    for node in definition.node:
        yield node.op, node.name
    for function in definition.library.function:
        for node in function.node_def:
            yield node.op, node.name
