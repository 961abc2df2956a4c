"""Floating-point operations of a traced graph: those of matrix products and convolutions, including loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfaccel.costs.private_graphs import function_graph
from tfaccel.errors import WorkloadError

_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_SAME_VALUE = ("Identity", "StopGradient", "Cast", "EnsureShape")


def graph_operations(graph: Any) -> int:
    """Floating-point operations of one run of a graph in matrix products and convolutions.

    A multiply-add counts as two. Element-wise operations are not counted. The body of a loop counts once per iteration;
    of several branches, the most expensive one counts.

    Args:
        graph: of a concrete `tf.function`, with static shapes.

    Raises:
        WorkloadError: if a shape, or the number of iterations of a loop, depends on the data; it names the operation.

    Example:
        >>> product = tf.function(lambda a, b: a @ b)
        >>> graph_operations(product.get_concrete_function(tf.ones((2, 3)), tf.ones((3, 5))).graph)
        60
    """
    return int(GraphCounter(graph).count(graph))


def needed_operations(
    graph: Any, get_inputs: Callable[[Any], Sequence[Any]] = lambda operation: operation.inputs
) -> list[tf.Operation]:
    """The operations of a function's graph that its results and side effects need."""
    waiting = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    needed: dict[str, tf.Operation] = {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in needed:
            needed[operation.name] = operation
            waiting += [*(tensor.op for tensor in get_inputs(operation)), *operation.control_inputs]
    return list(needed.values())


class LoopCounts:
    """How often loops run, known from the outermost graph inwards: the arguments of each function are kept in mind."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._given: dict[Any, Any] = {}  # a function's input -> the tensor passed to it

    def enter_call(self, called: Any, operation: Any) -> None:
        """Records the arguments with which an operation calls a function's graph."""
        self._given.update((inner.ref(), outer) for inner, outer in zip(called.inputs, operation.inputs, strict=False))

    def branches(self, operation: Any) -> list[Any]:
        """The graphs of the branches of a conditional operation."""
        names = ("then_branch", "else_branch") if operation.type.endswith("If") else ()
        functions = [operation.get_attr(name) for name in names] or operation.get_attr("branches")
        graphs = [function_graph(self._graph, function.name) for function in functions]
        for graph in graphs:
            pairs = zip(graph.inputs, operation.inputs[1:], strict=False)
            self._given.update((inner.ref(), outer) for inner, outer in pairs)
        return graphs

    def turns(self, loop: Any) -> int:
        """How often a loop runs.

        Raises:
            WorkloadError: if that depends on data.
        """
        return self._turns(loop, *self.enter(loop))

    def enter(self, loop: Any) -> tuple[Any, Any]:
        """The graphs of a loop's condition and body; loop invariants are recorded for both."""
        condition, body = (function_graph(self._graph, loop.get_attr(name).name) for name in ("cond", "body"))
        for index, (before, after) in enumerate(zip(body.inputs, body.outputs, strict=False)):
            if _passed_on(after) is before:
                self._given[before.ref()] = self._given[condition.inputs[index].ref()] = loop.inputs[index]
        return condition, body

    def _turns(self, loop: Any, condition: Any, body: Any) -> int:
        """The number of iterations of a loop whose condition compares counters with known limits."""
        waiting, turns = [condition.outputs[0]], []
        while waiting:
            tensor = _passed_on(waiting.pop())
            if tensor.op.type == "LogicalAnd":
                waiting += tensor.op.inputs
            elif not tf.get_static_value(tensor):
                turns.append(self._turns_to_limit(tensor.op, loop, condition, body))
        known = [turn for turn in turns if turn is not None]
        if not turns or len(known) < len(turns):
            raise WorkloadError(f"The operations of {loop.name} cannot be counted: how often it runs depends on data.")
        return max(0, min(known))

    def _turns_to_limit(self, comparison: Any, loop: Any, condition: Any, body: Any) -> int | None:
        if comparison.type != "Less":
            return None
        number, limit = comparison.inputs
        index = next((i for i, one in enumerate(condition.inputs) if one is number), None)
        if index is None:
            return None
        first, last = self.value(loop.inputs[index]), self.value(limit)
        step = self._raised_by(body.inputs[index], body.outputs[index])
        return None if first is None or last is None or step is None else math.ceil((last - first) / step)

    def value(self, tensor: Any) -> Any:
        """The constant value of a tensor; None if unknown."""
        tensor = _passed_on(tensor)
        value = tf.get_static_value(tensor)
        if value is not None:
            return value
        if tensor.ref() in self._given:
            return self.value(self._given[tensor.ref()])
        operation = tensor.op
        if operation.type == "Max":
            inner = self.value(operation.inputs[0])
            return None if inner is None else inner.max()
        if operation.type in LOOPS:  # a result of the loop, such as its number of iterations
            condition, body = self.enter(operation)
            index = tensor.value_index
            step = self._raised_by(body.inputs[index], body.outputs[index])
            first = self.value(operation.inputs[index])
            known = first is not None and step is not None
            return first + step * self._turns(operation, condition, body) if known else None
        return None

    def _raised_by(self, before: Any, after: Any) -> Any:
        """The increment of a loop's counter per iteration; None if unknown."""
        operation = _passed_on(after).op
        if operation.type not in ("Add", "AddV2") or not any(one is before for one in operation.inputs):
            return None
        step = next((self.value(one) for one in operation.inputs if one is not before), None)
        return step if step is not None and step > 0 else None


class GraphCounter(LoopCounts):
    """Counts from the outermost graph inwards. Subclasses may count something else in `of_operation`."""

    def count(self, graph: Any) -> int:
        return sum(self._operations(operation) for operation in needed_operations(graph))

    def _operations(self, operation: Any) -> int:
        kind = operation.type
        if kind in CALLS:
            called = function_graph(self._graph, operation.get_attr("f").name)
            self.enter_call(called, operation)
            return self.count(called)
        if kind in BRANCHES:
            return self.of_branches(operation)
        if kind in LOOPS:
            condition, body = self.enter(operation)
            once = self.count(body)
            return once * self._turns(operation, condition, body) if once else 0
        return self.of_operation(operation)

    def of_branches(self, operation: Any) -> int:
        """What a conditional counts: its most expensive branch."""
        return max(map(self.count, self.branches(operation)))

    def of_operation(self, operation: Any) -> int:
        """What an operation counts that is no loop, branch or call: here the floating-point operations."""
        return matrix_operations(operation)


def matrix_operations(operation: Any) -> int:
    """Floating-point operations of one operation: 0 unless it is a matrix product or a convolution."""
    if operation.type.startswith("CudnnRNN"):
        raise WorkloadError(f"The operations of {operation.name} cannot be counted: cuDNN's layers hide them.")
    return 2 * multiplications(operation)


def _passed_on(tensor: Any) -> Any:
    while tensor.op.type in _SAME_VALUE:
        tensor = tensor.op.inputs[0]
    return tensor


def multiplications(operation: Any) -> int:
    """The number of multiplications in a matrix product or a convolution, or in its gradient; 0 for anything else.

    Raises:
        WorkloadError: if a shape is unknown.
    """
    kind = operation.type
    if kind in _PRODUCTS:
        is_transposed = operation.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
        inner = _shape(operation, operation.inputs[0])[-2 if is_transposed else -1]
        return inner * math.prod(_shape(operation, operation.outputs[0]))
    if kind == "Einsum":
        return _of_einsum(operation)
    if not kind.startswith(_CONVOLUTIONS):
        return 0
    # Each output of a convolution takes a whole kernel, and its gradient goes back through that kernel.
    behind = operation.inputs[2] if "Backprop" in kind else operation.outputs[0]
    kernel = operation.outputs[0] if "BackpropFilter" in kind else operation.inputs[1]
    sizes = _shape(operation, kernel)[: 2 if kind.startswith("Depthwise") else -1]
    return math.prod(sizes) * math.prod(_shape(operation, behind))


def _of_einsum(operation: Any) -> int:
    """The product of the sizes of all indices; 0 for a sum or a transposition of one tensor."""
    if len(operation.inputs) < 2:
        return 0
    subscripts = operation.get_attr("equation").decode().split("->")[0].split(",")
    sizes: dict[Any, int] = {}
    for subscript, tensor in zip(subscripts, operation.inputs, strict=True):
        before, dots, after = subscript.partition("...")
        shape = _shape(operation, tensor)
        rest = shape[len(before) : len(shape) - len(after)] if dots else []
        # The dimensions of the dots are aligned at the right, as in broadcasting.
        names = [*before, *range(-len(rest), 0), *after]
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    return math.prod(sizes.values())


def _shape(operation: Any, tensor: Any) -> list[int]:
    if tensor.shape.rank is None or None in tensor.shape.as_list():
        raise WorkloadError(
            f"The operations of {operation.name} cannot be counted: its shape {tensor.shape} depends on the data."
        )
    return list(tensor.shape.as_list())
