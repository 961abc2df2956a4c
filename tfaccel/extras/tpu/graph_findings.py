"""Finds operations and dtypes in the graph of a train step that a TPU cannot run, or runs badly."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfaccel.extras.tpu.finding import Finding

# They call Python or print: the device would have to stop and wait for the host.
HOST_CALLS = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "Print", "PrintV2", "StringFormat", "InfeedDequeueTuple")
# String operations that neither their name nor a dtype reveals.
_STRING_OPERATIONS = ("AsString", "ReduceJoin", "Substr", "RegexReplace", "StaticRegexReplace", "UnicodeTranscode")
# XLA drops assertions and their messages; the others do no work.
_NO_WORK = ("Assert", "Const", "NoOp", "Placeholder", "_Arg", "_Retval")
_NUMBER_FORMATS = {"float64": "float64", "complex128": "complex128", "half": "float16", "float16": "float16"}


@dataclass(frozen=True)
class Node:
    """One operation of a graph: its name ("model/dense/MatMul"), its type ("MatMul") and its dtypes."""

    name: str
    operation: str
    dtypes: frozenset[str] = frozenset()


def find_in_nodes(
    nodes: Sequence[Node], get_place: Callable[[str], str], *, compilable: Collection[str] | None = None
) -> list[Finding]:
    """Findings of the kinds "operation", "host call", "string", "ragged" and the dtypes, each place once.

    Args:
        nodes: the operations of the step.
        get_place: returns the place of an operation, given its name.
        compilable: the operations that XLA can compile; None if XLA is known to compile them all.

    Example:
        >>> node = Node("model/crop/CropAndResize", "CropAndResize")
        >>> [str(f) for f in find_in_nodes([node], lambda name: name.split("/")[1], compilable={"MatMul"})]
        ['CropAndResize in crop']
    """
    found = (finding for node in nodes for finding in _get_findings(node, get_place(node.name), compilable))
    return list(dict.fromkeys(found))


def _get_findings(node: Node, place: str, compilable: Collection[str] | None) -> Iterator[Finding]:
    operation = node.operation
    if operation in _NO_WORK:
        return
    if operation in HOST_CALLS:
        yield Finding("host call", operation, place)
    elif operation.startswith("Ragged"):
        yield Finding("ragged", operation, place)
    elif "string" in node.dtypes or operation.startswith("String") or operation in _STRING_OPERATIONS:
        yield Finding("string", operation, place)
    elif compilable is not None and operation not in compilable:
        yield Finding("operation", operation, place)
    for dtype in sorted(node.dtypes & _NUMBER_FORMATS.keys()):
        if dtype == "float64" and "complex128" in node.dtypes:
            continue  # its parts
        yield Finding(_NUMBER_FORMATS[dtype], operation, place)


def place_finder(layer_names: Collection[str]) -> Callable[[str], str]:
    """Returns a function that locates an operation: its layer among these, otherwise its part of the step.

    Keras prefixes a layer's operations with its name, plus a suffix such as "_1"; the innermost layer counts.

    Example:
        >>> place = place_finder(["crop", "classifier"])
        >>> place("gradient_tape/classifier_1/crop_1/MatMul"), place("compile_loss/mse/Mean"), place("Mul")
        ("layer 'crop'", 'compile_loss/mse', 'the train step itself')
    """
    names = set(layer_names)

    def place(operation_name: str) -> str:
        *scopes, _ = operation_name.removeprefix("gradient_tape/").split("/")
        for scope in reversed(scopes):
            name = scope if scope in names else re.sub(r"_\d+$", "", scope)
            if name in names:
                return f"layer {name!r}"
        return "/".join(scopes[:2]) or "the train step itself"

    return place


def get_nodes(graph: Any) -> list[Node]:
    """The operations that results and side effects of a traced `tf.function` need, including nested functions."""
    import tensorflow as tf

    from tfaccel.costs.graph_operations import needed_operations

    needed = {operation.name for operation in needed_operations(graph)}
    graph_def = graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph_def.library.function}
    nodes: list[Node] = []
    queue = [[node for node in graph_def.node if node.name in needed]]
    while queue:
        for node in queue.pop():
            dtypes: set[str] = set()
            for value in node.attr.values():
                types = [value.type] if value.HasField("type") else list(value.list.type)
                dtypes |= {tf.dtypes.as_dtype(t).name for t in types if t}
                called = [value.func.name] if value.HasField("func") else [f.name for f in value.list.func]
                queue += [functions.pop(name) for name in called if name in functions]
            nodes.append(Node(node.name, node.op, frozenset(dtypes)))
    return nodes
