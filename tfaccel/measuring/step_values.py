"""The values that a traced training step makes, and those of the forward pass that its backward pass reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from tfaccel.costs.graph_operations import BRANCHES, CALLS, LOOPS, LoopCounts, needed_operations
from tfaccel.costs.private_graphs import function_graph
from tfaccel.errors import WorkloadError

_GRADIENT_SCOPE = "gradient_tape/"  # of the operations that `tf.GradientTape` adds
STRING_BYTES = 24  # of a short one, in its tensor

# Their first result is their first input's memory: views, and lists, which keep their items.
_SAME_MEMORY = {
    *("Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "EnsureShape"),
    *("CheckNumerics", "Snapshot", "Bitcast", "TensorListPushBack", "TensorListSetItem", "TensorListPopBack"),
}
_ITEM_ADDED = {"TensorListPushBack": 1, "TensorListSetItem": 2, "TensorListFromTensor": 0}  # the position of the item
_COUNTED_APART = ("ReadVariableOp", "VarHandleOp", "Const")  # variables; and constants, which are small


@dataclass(frozen=True)
class StepValue:
    """A value that a step makes; its views are the same value.

    Args:
        shape: its shape; before it, the number of turns of the loop that keeps one for each turn.
        item_bytes: bytes of an element.
        layer, last_layer: positions, in the order of the forward pass, of the layer that makes it, and of the last one
            whose forward pass reads it.
        is_kept: whether the forward pass makes it and the backward pass reads it.
        block: the number of its block of layers, if the backward pass recomputes and reads it; otherwise None.
    """

    shape: tuple[int, ...]
    item_bytes: int
    layer: int
    last_layer: int
    is_kept: bool
    block: int | None

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class StepValues:
    """The values of a step that was traced for a batch size.

    Args:
        values: in the order in which the graph has them.
        num_operations: those of loops and branches included.
        operand_bytes: the largest second operand of a matrix product.
        num_unknown: operations whose shape depends on data, taken to be that of their largest input; and loops whose
            number of turns does, taken to be 1.
    """

    values: tuple[StepValue, ...]
    num_operations: int
    operand_bytes: int
    num_unknown: int

    def is_like(self, other: StepValues) -> bool:
        """Whether another trace has the same values, with shapes of the same ranks."""
        forms = [[replace(one, shape=(0,) * len(one.shape)) for one in step.values] for step in (self, other)]
        return forms[0] == forms[1]

    def toward(self, other: StepValues, part: float) -> StepValues:
        """The values for another batch size: each dimension, since several may grow, on the line to another trace's.

        Args:
            other: values that are like these, for another batch size.
            part: 0 for these, 1 for the others; beyond, or between.
        """
        pairs = zip(self.values, other.values, strict=True)
        return replace(self, values=tuple(replace(a, shape=_between(a.shape, b.shape, part)) for a, b in pairs))


def _between(small: tuple[int, ...], large: tuple[int, ...], part: float) -> tuple[int, ...]:
    return tuple(max(0, round(a + (b - a) * part)) for a, b in zip(small, large, strict=True))


def read_values(graph: Any) -> StepValues:
    """Reads the values from the graph of a concrete `tf.function` that trains for a step.

    Example:
        >>> step = tf.function(lambda a: tf.nn.relu(a @ a)).get_concrete_function(tf.ones((8, 8)))
        >>> [value.num_bytes for value in read_values(step.graph).values]
        [256, 256]
    """
    reader = _Reader(graph)
    reader.read(graph, {tensor.ref(): _Found() for tensor in graph.inputs})
    blocks: dict[_Found, int] = {}
    return StepValues(
        values=tuple(
            StepValue(
                shape=one.shape,
                item_bytes=one.item_bytes,
                layer=one.layer,
                last_layer=one.last_layer,
                is_kept=one.is_read_late and not one.is_late,
                block=blocks.setdefault(one.first_of_block(), len(blocks)) if one.is_recomputed else None,
            )
            for one in reader.found
        ),
        num_operations=reader.num_operations,
        operand_bytes=reader.operand_bytes,
        num_unknown=len(reader.unknown),
    )


@dataclass(eq=False)
class _Found:
    """A value while a graph is read; one with default arguments takes no memory of its own.

    Args:
        items: what is kept as long as this: the items of a list; of a value that a loop carries, the one that each turn
            makes.
        is_late: whether it is of the backward pass, or of what follows.
        is_gradient: whether the tape added its operation.
        is_read_late: whether the backward pass reads it.
        before: a value of the same block of recomputed values; None for the first one.
    """

    shape: tuple[int, ...] = (0,)
    item_bytes: int = 0
    layer: int = 0
    last_layer: int = 0
    items: list[_Found] = field(default_factory=list)
    is_late: bool = False
    is_gradient: bool = False
    is_read_late: bool = False
    before: _Found | None = None

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    @property
    def is_recomputed(self) -> bool:
        return self.is_read_late and self.is_late and not self.is_gradient

    def first_of_block(self) -> _Found:
        """The same value for all that are computed from each other without a gradient's operation between them."""
        one = self
        while one.before is not None:
            one = one.before
        return one

    def join(self, other: _Found) -> None:
        """Notes that another value is computed from this one."""
        first, other = self.first_of_block(), other.first_of_block()
        if first is not other:
            other.before = first

    def with_items(self) -> Iterator[_Found]:
        """It, and all that it keeps."""
        seen: set[_Found] = set()
        waiting = [self]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += one.items
                yield one


class _Reader:
    """Reads a graph and the functions that it calls, in the order in which operations can run."""

    def __init__(self, outer: Any) -> None:
        self._outer, self._counts = outer, LoopCounts(outer)
        self._layers: dict[str, int] = {}
        self.found: list[_Found] = []
        self.unknown: set[str] = set()
        self.num_operations = self.operand_bytes = 0

    def read(self, graph: Any, own: dict[Any, _Found], *, scope: str = "") -> None:
        """Adds the values of a graph to those found, and to `own`, by tensor, which has those of its arguments."""
        arguments = {tensor.op.name for tensor in graph.inputs}
        for operation in _in_order(graph):
            if operation.name not in arguments:
                given = [own[tensor.ref()] for tensor in _inputs(operation)]
                made = self._results(operation, given, f"{scope}{operation.name}")
                own.update((tensor.ref(), value) for tensor, value in zip(operation.outputs, made, strict=False))

    def _results(self, operation: Any, given: list[_Found], name: str) -> list[_Found]:
        kind = operation.type
        if kind == "IdentityN":
            return given
        if kind in CALLS:
            called = function_graph(self._outer, operation.get_attr("f").name)
            self._counts.enter_call(called, operation)
            return self._of_function(called, given, name)
        self.num_operations += 1
        if kind in BRANCHES:
            return self._of_branches(operation, given[1:], name)
        if kind in LOOPS:
            return self._of_loop(operation, given, name)
        if "MatMul" in kind:
            operand = operation.inputs[1]
            self.operand_bytes = max(self.operand_bytes, math.prod(_known_shape(operand) or (0,)) * operand.dtype.size)
        return self._of_operation(operation, given, name)

    def _of_operation(self, operation: Any, given: list[_Found], name: str) -> list[_Found]:
        kind, is_late = operation.type, any(one.is_late for one in given)  # recomputed values wait for a gradient
        is_gradient = _GRADIENT_SCOPE in name or (is_late and kind == "AddN")  # sums of gradients have no scope
        is_late = is_late or is_gradient
        layer = 0 if is_late else self._layers.setdefault(get_layer(name), len(self._layers))
        for one in given:
            if is_late:
                for value in one.with_items():
                    value.is_read_late |= is_gradient or not value.is_late
            else:
                one.last_layer = max(one.last_layer, layer)
        made: list[_Found] = []
        for tensor in operation.outputs:
            takes_memory = not (kind in _COUNTED_APART or _is_constant(operation)) and tensor.dtype not in (
                tf.resource,
                tf.variant,
            )
            shape = self._shape(tensor, operation, name) if takes_memory else (0,)
            item_bytes = STRING_BYTES if tensor.dtype == tf.string else int(tensor.dtype.size or 0)
            made.append(_Found(shape, item_bytes, layer, layer, is_late=is_late, is_gradient=is_gradient))
        if kind in _ITEM_ADDED:
            (given if kind in _SAME_MEMORY else made)[0].items.append(given[_ITEM_ADDED[kind]])
        if kind == "TensorListGetItem" and given[0].items:  # a slice of the tensor that was made a list
            return given[0].items[:1]
        shared = given[:1] if kind in _SAME_MEMORY and given else []
        made = [*shared, *made[len(shared) :]]
        self.found += [one for one in made[len(shared) :] if one.num_bytes]
        if is_late and not is_gradient:
            for one in (one for one in given if one.is_late and not one.is_gradient):
                for other in made[len(shared) :]:
                    one.join(other)
        return made

    def _of_function(self, graph: Any, given: list[_Found], name: str) -> list[_Found]:
        own = {tensor.ref(): value for tensor, value in zip(graph.inputs, given, strict=True)}
        self.read(graph, own, scope=f"{name}/")
        return [own[tensor.ref()] for tensor in graph.outputs]

    def _of_branches(self, operation: Any, given: list[_Found], name: str) -> list[_Found]:
        """The results of the branch that takes most memory; the values of the others are left out."""
        before, best = len(self.found), (-1, [], [])  # type: ignore[var-annotated]
        for graph in self._counts.branches(operation):
            results = self._of_function(graph, given, name)
            found, self.found[before:] = self.found[before:], []
            num_bytes = sum(one.num_bytes for one in found)
            best = max(best, (num_bytes, found, results), key=lambda branch: branch[0])
        self.found += best[1]
        return best[2]

    def _of_loop(self, operation: Any, given: list[_Found], name: str) -> list[_Found]:
        """The results of a loop: items that its turns add to lists stay in memory, one for each turn."""
        try:
            turns = self._counts.turns(operation)
        except WorkloadError:
            self.unknown.add(name)
            turns = 1
        body = self._counts.enter(operation)[1]
        before = len(self.found)
        carried = [  # a handle or a list itself; for a tensor, the loop's own or that of the turn before
            one if tensor.dtype in (tf.resource, tf.variant) else _Found(items=[one], is_late=one.is_late)
            for one, tensor in zip(given, body.inputs, strict=True)
        ]
        results = self._of_function(body, carried, name)
        for argument, outer, result in zip(carried, given, results, strict=True):
            if argument is not outer:
                argument.items.append(result)
        of_body = set(self.found[before:])
        lists = (one for one, tensor in zip(given, body.inputs, strict=True) if tensor.dtype == tf.variant)
        for value in {item for one in lists for item in one.with_items()} & of_body:
            value.shape = (turns, *value.shape)
        return results

    def _shape(self, tensor: Any, operation: Any, name: str) -> tuple[int, ...]:
        """The shape of a tensor; if that depends on data, that of the operation's largest input."""
        shape = _known_shape(tensor)
        if shape is None:
            self.unknown.add(name)
            known = [_known_shape(one) or (0,) for one in operation.inputs]
            shape = max(known, key=math.prod, default=(0,))
        return shape


def _known_shape(tensor: Any) -> tuple[int, ...] | None:
    return tuple(tensor.shape.as_list()) if tensor.shape.is_fully_defined() else None


def _is_constant(operation: Any) -> bool:
    """Whether an operation makes a tensor of one value, which TensorFlow makes a constant if it is small."""
    return operation.type == "Fill" and all(one.op.type == "Const" for one in operation.inputs)


def _inputs(operation: Any) -> Sequence[Any]:
    return () if _is_constant(operation) else operation.inputs


def _in_order(graph: Any) -> Iterator[Any]:
    """The operations that a graph needs, in the order of their creation, but after those that make their inputs.

    A loop's lists are made after the loop.
    """
    needed = needed_operations(graph, _inputs)
    before = {one: {*(tensor.op for tensor in _inputs(one)), *one.control_inputs} for one in needed}
    done: set[Any] = set()
    for operation in graph.get_operations():
        waiting = [operation] if operation in before else []
        while waiting:
            missing = before[waiting[-1]] - done
            if missing:
                waiting += missing
            elif (one := waiting.pop()) not in done:
                done.add(one)
                yield one


def get_layer(name: str) -> str:
    """The layer whose scope an operation is in: that of the outermost model.

    Example:
        >>> get_layer("sequential_1/dense_2_1/MatMul"), get_layer("Square")
        ('sequential_1/dense_2_1', '')
    """
    parts = name.split("/")
    return "/".join(parts[: min(2, len(parts) - 1)])
