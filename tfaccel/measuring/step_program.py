"""A traced training step as a program: its operations with the shapes they produce, calls inlined, loops kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from tfaccel.costs.graph_operations import BRANCHES, CALLS, LOOPS, LoopCounts, multiplications, needed_operations
from tfaccel.costs.private_graphs import function_graph
from tfaccel.errors import WorkloadError

GRADIENT_SCOPE = "gradient_tape/"  # of the operations that `tf.GradientTape` adds
_STRING_BYTES = 24  # of a short one, in its tensor

Shape = tuple[int | None, ...] | None


@dataclass(frozen=True)
class TensorSize:
    """Shape and type of a tensor; `item_bytes` is 0 for handles."""

    shape: Shape
    dtype: str
    item_bytes: int

    @property
    def num_bytes(self) -> int | None:
        """Its size; None if that depends on data."""
        if not self.item_bytes:
            return 0
        if self.shape is None or None in self.shape:
            return None
        return math.prod(size or 0 for size in self.shape) * self.item_bytes


@dataclass(frozen=True)
class Node:
    """One operation.

    Args:
        kind, name: TensorFlow's type and name of it.
        inputs, outputs: the numbers of its tensors in the program.
        given, made: their sizes.
        multiplications: in a matrix product or a convolution.
        in_backward: whether it belongs to the backward pass, or to what follows.
        body: what a loop or a branch runs.
        turns: how often; None if that depends on data.
        length: of the list that it makes, if it makes one.
    """

    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    given: tuple[TensorSize, ...]
    made: tuple[TensorSize, ...]
    multiplications: int = 0
    in_backward: bool = False
    body: StepProgram | None = None
    turns: int | None = 1
    length: int = 0


@dataclass(frozen=True)
class StepProgram:
    """The operations of a graph and the order that its edges impose.

    Args:
        nodes: the operations.
        arguments, results: the numbers of the tensors that it takes and gives.
        argument_sizes: of the arguments.
        num_tensors: how many there are.
        followers: for each node, those that wait for it.
        num_waits: for each node, how many it waits for.
        num_uses: for each tensor, how many nodes and results take it.
        captured: position of an argument -> size of the variable that it refers to.
    """

    nodes: tuple[Node, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_sizes: tuple[TensorSize, ...]
    num_tensors: int
    followers: tuple[tuple[int, ...], ...]
    num_waits: tuple[int, ...]
    num_uses: tuple[int, ...]
    captured: dict[int, TensorSize] = field(default_factory=dict)

    @property
    def num_operations(self) -> int:
        """How many operations there are, those of loops and branches included."""
        return len(self.nodes) + sum(node.body.num_operations for node in self.nodes if node.body is not None)


def make_program(graph: Any) -> StepProgram:
    """The program of the graph of a concrete `tf.function`.

    Example:
        >>> step = tf.function(lambda a: tf.nn.relu(a @ a)).get_concrete_function(tf.ones((8, 8)))
        >>> [node.kind for node in make_program(step.graph).nodes]
        ['MatMul', 'Relu', 'Identity']
    """
    return _Reader(graph, LoopCounts(graph), {}).program(graph)


class _Reader:
    """Reads a graph and the functions that it calls."""

    def __init__(self, outer: Any, counts: LoopCounts, known: dict[Any, StepProgram]) -> None:
        self._outer, self._counts, self._known = outer, counts, known

    def program(self, graph: Any, *, scope: str = "") -> StepProgram:
        if (graph, scope) in self._known:
            return self._known[graph, scope]
        numbers: dict[Any, int] = {}
        self._count = 0
        arguments = [self._number(numbers, tensor) for tensor in graph.inputs]
        nodes: list[Node] = []
        waits: list[tuple[int, Any]] = []
        by_operation: dict[int, int] = {}
        late: set[int] = set()  # the tensors of the backward pass
        for operation, inner, name in self._flat(graph, numbers, scope):
            by_operation[id(operation)] = len(nodes)
            waits += [(len(nodes), one) for one in operation.control_inputs]
            node = self._node(operation, inner, name)
            if node.in_backward or not late.isdisjoint(node.inputs):  # recomputed activations wait for a gradient
                node = replace(node, in_backward=True)
                late.update(node.outputs)
            nodes.append(node)
        results = [self._number(numbers, tensor) for tensor in graph.outputs]
        edges = [(by_operation[id(one)], node) for node, one in waits if id(one) in by_operation]
        sizes = tuple(map(get_size, graph.inputs))
        made = _linked(nodes, arguments, results, sizes, self._count, edges)
        made = replace(made, captured=_captured(made))
        self._known[graph, scope] = made
        return made

    def _number(self, numbers: dict[Any, int], tensor: Any) -> int:
        key = tensor.ref()
        if key not in numbers:
            numbers[key] = self._count
            self._count += 1
        return numbers[key]

    def _flat(self, graph: Any, numbers: dict[Any, int], scope: str) -> Any:
        """The operations of a graph with those of called functions in place of calls; tensors' numbers; names."""
        arguments = {tensor.op.name for tensor in graph.inputs}
        for operation in in_order(needed_operations(graph, needed_inputs)):
            if operation.name in arguments:
                continue
            name = scope + operation.name
            if operation.type == "IdentityN":  # TensorFlow splits it into one for each tensor
                for given, made in zip(operation.inputs, operation.outputs, strict=True):
                    numbers[made.ref()] = self._number(numbers, given)
            elif operation.type in CALLS:
                called = function_graph(self._outer, operation.get_attr("f").name)
                self._counts.enter_call(called, operation)
                pairs = zip(called.inputs, operation.inputs, strict=True)
                inner = {own.ref(): self._number(numbers, outer) for own, outer in pairs}
                yield from self._flat(called, inner, f"{name}/")
                for own, outer in zip(called.outputs, operation.outputs, strict=True):
                    numbers[outer.ref()] = self._number(inner, own)
            else:
                yield operation, numbers, name

    def _node(self, operation: Any, numbers: dict[Any, int], name: str) -> Node:
        body: StepProgram | None = None
        turns: int | None = 1
        given = needed_inputs(operation)
        inputs = tuple(self._number(numbers, tensor) for tensor in given)
        outputs = tuple(self._number(numbers, tensor) for tensor in operation.outputs)
        if operation.type in LOOPS or operation.type in BRANCHES:
            reader = _Reader(self._outer, self._counts, self._known)
            if operation.type in LOOPS:
                turns = self._turns(operation)
                body = reader.program(self._counts.enter(operation)[1], scope=f"{name}/")
            else:
                body = max(
                    (reader.program(graph, scope=f"{name}/") for graph in self._counts.branches(operation)),
                    key=lambda program: sum(size.num_bytes or 0 for node in program.nodes for size in node.made),
                )
        return Node(
            kind="Const" if operation.type == "Fill" and not given else operation.type,
            name=name,
            inputs=inputs,
            outputs=outputs,
            given=tuple(map(get_size, given)),
            made=tuple(map(get_size, operation.outputs)),
            multiplications=_known_multiplications(operation),
            in_backward=GRADIENT_SCOPE in name,
            body=body,
            turns=turns,
            length=self._length(operation),
        )

    def _turns(self, loop: Any) -> int | None:
        try:
            return self._counts.turns(loop)
        except WorkloadError:
            return None

    def _length(self, operation: Any) -> int:
        if operation.type == "TensorListReserve":
            return int(self._counts.value(operation.inputs[1]) or 0)
        if operation.type == "TensorListFromTensor":
            return int((operation.inputs[0].shape or [0])[0] or 0)
        return 0


def needed_inputs(operation: Any) -> Sequence[Any]:
    """The inputs of an operation; none for a tensor of one value, which TensorFlow makes a constant if it is small."""
    is_constant = operation.type == "Fill" and all(one.op.type == "Const" for one in operation.inputs)
    return () if is_constant else operation.inputs


def in_order(operations: list[Any]) -> list[Any]:
    """Operations in the order of their creation, in which a graph starts those that wait for nothing."""
    position = {} if not operations else {one.name: n for n, one in enumerate(operations[0].graph.get_operations())}
    return sorted(operations, key=lambda operation: position[operation.name])


def get_size(tensor: Any) -> TensorSize:
    """The size of a tensor of a graph."""
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    if tensor.dtype in (tf.resource, tf.variant):
        return TensorSize(shape, tensor.dtype.name, 0)
    item_bytes = _STRING_BYTES if tensor.dtype == tf.string else tensor.dtype.size
    return TensorSize(shape, tensor.dtype.name, item_bytes)


def _known_multiplications(operation: Any) -> int:
    try:
        return multiplications(operation)
    except WorkloadError:
        return 0


def _linked(
    nodes: Sequence[Node],
    arguments: Sequence[int],
    results: Sequence[int],
    sizes: tuple[TensorSize, ...],
    num_tensors: int,
    edges: Sequence[tuple[int, int]],
) -> StepProgram:
    makers = {tensor: index for index, node in enumerate(nodes) for tensor in node.outputs}
    uses = [0] * num_tensors
    before: list[set[int]] = [set() for _ in nodes]
    for index, node in enumerate(nodes):
        for tensor in node.inputs:
            uses[tensor] += 1
            if tensor in makers:
                before[index].add(makers[tensor])
    for earlier, later in edges:
        before[later].add(earlier)
    for tensor in results:
        uses[tensor] += 1
    followers: list[list[int]] = [[] for _ in nodes]
    for index, ones in enumerate(before):
        for one in ones:
            followers[one].append(index)
    return StepProgram(
        nodes=tuple(nodes),
        arguments=tuple(arguments),
        results=tuple(results),
        argument_sizes=sizes,
        num_tensors=num_tensors,
        followers=tuple(map(tuple, followers)),
        num_waits=tuple(map(len, before)),
        num_uses=tuple(uses),
    )


def _captured(program: StepProgram) -> dict[int, TensorSize]:
    positions = {tensor: index for index, tensor in enumerate(program.arguments)}
    return {
        positions[node.inputs[0]]: node.made[0]
        for node in program.nodes
        if node.kind == "ReadVariableOp" and node.inputs[0] in positions
    }
