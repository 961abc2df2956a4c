"""Runs a training step's program without computing, as TensorFlow's executor does, to see how much memory it takes.

Several threads take operations that are ready: each goes on with what its last operation made ready, puts the rest on
its own stack, and takes the oldest of another thread's stack when it has nothing left. A tensor is freed after its last
use. Element-wise operations write into an input that nobody else needs, and variables are updated in place. Since the
order depends on how long operations take, several steps run, with durations that vary.

See "Executor" and "kernels" in https://github.com/tensorflow/tensorflow, tensorflow/core/common_runtime/executor.cc.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfaccel.costs.graph_operations import BRANCHES, LOOPS
from tfaccel.measuring.step_program import Node, StepProgram
from tfaccel.measuring.step_values import Buffer, Memory, TensorList, Variable

_NUM_STEPS = 4
_MIN_DURATION, _MAX_DURATION = 0.5, 1.5  # relative to the estimate
_BYTES_PER_SECOND, _MULTIPLICATIONS_PER_SECOND = 10e9, 50e9  # only their ratio matters
_OVERHEAD_SECONDS = 2e-6

_LOSSES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")


@dataclass(frozen=True)
class StepMemoryUse:
    """What a simulated step took.

    Args:
        peak_bytes: tensors in use at the same time, at most; variables included, arguments not.
        resident_bytes: memory that the allocator touched, the holes between tensors included.
        activations: tensors of the forward pass that the backward pass read: (operation, bytes), in order.
        num_unknown: operations whose shape depends on data, taken to be that of their largest input; and loops whose
            number of turns does, taken to be 1.
    """

    peak_bytes: int
    resident_bytes: int
    activations: tuple[tuple[str, int], ...]
    num_unknown: int


def simulate(program: StepProgram, *, num_threads: int = 2) -> StepMemoryUse:
    """Runs some steps of a program without computing.

    Args:
        program: of a whole training step.
        num_threads: operations that run at the same time.

    Example:
        >>> import tensorflow as tf
        >>> from tfaccel.measuring.step_program import make_program
        >>> step = tf.function(lambda a: tf.reduce_sum(tf.nn.relu(a @ a))).get_concrete_function(tf.ones((512, 512)))
        >>> simulate(make_program(step.graph)).peak_bytes // 2**20  # the product; relu overwrites it
        1
    """
    return _Simulation(num_threads).run(program)


class _Simulation:
    """The state of a run."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._memory = Memory()
        self._random = random.Random(0)
        self._kept: dict[int, Buffer] = {}
        self._unknown: set[str] = set()
        self._durations: dict[int, float] = {}
        self._seconds = 0.0  # of the last loop or branch

    def run(self, program: StepProgram) -> StepMemoryUse:
        arguments: list[Any] = []
        for index, size in enumerate(program.argument_sizes):
            if size.item_bytes:
                arguments.append(Buffer(self._memory, size.num_bytes or 0, is_given=True))
                continue
            arguments.append(Variable(self._memory))
            if index in program.captured:
                arguments[-1].initialize(program.captured[index].num_bytes or 0)
        for _ in range(_NUM_STEPS):
            self._kept.clear()
            for argument in arguments:
                argument.add()
            for result in self._program(program, arguments):
                result.release()
        return StepMemoryUse(
            peak_bytes=self._memory.peak_bytes,
            resident_bytes=self._memory.resident_bytes,
            activations=tuple((one.maker, one.num_bytes) for one in self._kept.values()),
            num_unknown=len(self._unknown),
        )

    def _program(self, program: StepProgram, arguments: Sequence[Any]) -> list[Any]:
        """Runs a program; takes the caller's references to the arguments, and gives one to each result."""
        values: list[Any] = [None] * program.num_tensors
        uses, nodes = program.num_uses, program.nodes

        def give(tensor: int, value: Any) -> None:
            if uses[tensor]:
                value.add(uses[tensor] - 1)
                values[tensor] = value
            else:
                value.release()

        for tensor, value in zip(program.arguments, arguments, strict=True):
            give(tensor, value)
        ready = ReadyOperations(program, self._num_threads, self._random.randrange(self._num_threads))
        running: list[tuple[float, int, int, list[Any], list[Any]]] = []
        idle, now = list(range(self._num_threads)), 0.0
        while True:
            for thread in sorted(idle):
                index = ready.take(thread)
                if index is None:
                    continue
                idle.remove(thread)
                node = nodes[index]
                given = [values[tensor] for tensor in node.inputs]
                made = self._node(node, given)
                duration = self._duration(node) * self._random.uniform(_MIN_DURATION, _MAX_DURATION)
                heapq.heappush(running, (now + duration, index, thread, given, made))
            if not running:
                break
            now, index, thread, given, made = heapq.heappop(running)
            for value in given:
                value.release()
            for tensor, value in zip(nodes[index].outputs, made, strict=True):
                give(tensor, value)
            ready.finished(thread, index)
            idle.append(thread)
        self._seconds = now
        return [values[tensor] for tensor in program.results]

    def _node(self, node: Node, given: list[Any]) -> list[Any]:
        """The results of an operation."""
        if node.in_backward:
            for value in given:
                self._keep(value)
        kind = node.kind
        if kind in LOOPS:
            return self._loop(node, given)
        if kind in BRANCHES:
            for value in given[1:]:
                value.add()
            return self._program(node.body, given[1:])  # type: ignore[arg-type]
        if kind.startswith("TensorList") or kind == "EmptyTensorList":
            return self._list_operation(node, given)
        if "VariableOp" in kind and kind != "VarHandleOp":
            return self._variable_operation(node, given)
        if kind in SHARE_INPUT:
            given[0].add()
            return [given[0]]
        if kind in _LOSSES:  # their gradient overwrites the logits
            return [self._made(node, 0, given), self._overwritten(node, 1, given[:1]) or self._made(node, 1, given)]
        if kind in REUSE_INPUT and (reused := self._overwritten(node, 0, given)) is not None:
            return [reused]
        return [self._made(node, position, given) for position in range(len(node.made))]

    def _keep(self, value: Any) -> None:
        """Notes the tensors of the forward pass that the backward pass reads."""
        if isinstance(value, Buffer) and value.maker and not value.in_backward and not value.is_given:
            self._kept.setdefault(id(value), value)

    def _made(self, node: Node, position: int, given: Sequence[Any]) -> Any:
        size = node.made[position]
        if size.dtype == "resource":
            return Variable(self._memory)
        if size.dtype == "variant":
            return TensorList(())
        num_bytes = size.num_bytes
        if num_bytes is None:
            self._unknown.add(node.name)
            num_bytes = max((one.num_bytes for one in given if isinstance(one, Buffer)), default=0)
        return Buffer(self._memory, num_bytes, node.name, in_backward=node.in_backward)

    def _overwritten(self, node: Node, position: int, given: Sequence[Any]) -> Buffer | None:
        """An input that the result can be written into; None if there is none."""
        size = node.made[position]
        for value, known in zip(given, node.given, strict=False):
            fits = isinstance(value, Buffer) and value.references == 1 and value.num_bytes == size.num_bytes
            if fits and not value.is_given and known.dtype == size.dtype:
                value.add()
                return value
        return None

    def _variable_operation(self, node: Node, given: list[Any]) -> list[Any]:
        variable = given[0]
        if node.kind == "ReadVariableOp":
            value = variable.read(node.made[0].num_bytes or 0)
            value.add()
            return [value]
        if node.kind == "AssignVariableOp":
            if isinstance(given[1], Buffer):
                variable.assign(given[1])
        elif node.kind.startswith("Assign"):
            variable.update(given[1].num_bytes)
        return [self._made(node, position, given) for position in range(len(node.made))]

    def _list_operation(self, node: Node, given: list[Any]) -> list[Any]:
        kind = node.kind
        if kind in ("EmptyTensorList", "TensorListReserve"):
            return [TensorList([None] * node.length)]
        if kind == "TensorListFromTensor":
            given[0].add(node.length)
            return [TensorList([given[0]] * node.length)]
        changing = kind in ("TensorListPushBack", "TensorListSetItem", "TensorListPopBack")
        if not changing or not isinstance(given[0], TensorList):
            return self._read_of_list(node, given)
        changed = given[0].changeable()
        if kind == "TensorListPopBack":
            popped = changed.items.pop() if changed.items else None
            return [changed, self._made(node, 1, given) if popped is None else popped]
        value = given[-1] if kind == "TensorListPushBack" else given[2]
        value.add()
        place = next((n for n, item in enumerate(changed.items) if item is None), None)
        if kind == "TensorListSetItem" and place is not None:  # items are written once, in whatever order
            changed.items[place] = value
        else:
            changed.items.append(value)
        return [changed]

    def _read_of_list(self, node: Node, given: list[Any]) -> list[Any]:
        items = [item for item in getattr(given[0], "items", ()) if item is not None]
        if node.kind == "TensorListGetItem" and items:
            items[0].add()
            return [items[0]]
        made = [self._made(node, position, []) for position in range(len(node.made))]
        if node.kind in ("TensorListStack", "TensorListConcatV2") and node.made[0].num_bytes is None:
            made[0].release()
            num_bytes = sum(item.num_bytes for item in items if isinstance(item, Buffer))
            made[0] = Buffer(self._memory, num_bytes, node.name, in_backward=node.in_backward)
        return made

    def _loop(self, node: Node, given: list[Any]) -> list[Any]:
        if node.turns is None:
            self._unknown.add(node.name)
        values, seconds = list(given), 0.0
        for value in values:
            value.add()
        for _ in range(1 if node.turns is None else node.turns):
            values = self._program(node.body, values)  # type: ignore[arg-type]
            seconds += self._seconds
        self._seconds = seconds
        return values

    def _duration(self, node: Node) -> float:
        if node.body is not None:
            return self._seconds
        known = self._durations.get(id(node))
        if known is None:
            known = self._durations[id(node)] = _get_seconds(node)
        return known


def _get_seconds(node: Node) -> float:
    num_bytes = sum(size.num_bytes or 0 for size in (*node.given, *node.made))
    return (
        _OVERHEAD_SECONDS
        + num_bytes / _BYTES_PER_SECOND * (node.kind not in CHEAP)
        + node.multiplications / _MULTIPLICATIONS_PER_SECOND
    )


# Which operations of a step a thread runs next, and what kinds of operations take no memory of their own.

# Their result is their first input's memory.
SHARE_INPUT = {
    *("Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "EnsureShape"),
    *("CheckNumerics", "Snapshot", "Bitcast"),
}
# They write into an input of the same type and size that nobody else needs.
REUSE_INPUT = {
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan", "Maximum", "Minimum", "Pow", "Xdivy"),
    *("SquaredDifference", "AddN", "BiasAdd", "Select", "ClipByValue", "LogicalAnd", "LogicalOr", "LogicalNot"),
    *("Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Softmax", "LogSoftmax"),
    *("Exp", "Expm1", "Log", "Log1p", "Neg", "Sqrt", "Rsqrt", "Square", "Erf", "Erfc", "Abs", "Sign", "Reciprocal"),
    *("Inv", "Floor", "Ceil", "Round", "Sin", "Cos"),
    *("ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "LeakyReluGrad", "SigmoidGrad", "TanhGrad", "RsqrtGrad"),
    *("SqrtGrad", "InvGrad", "ReciprocalGrad", "SoftplusGrad", "SoftsignGrad"),
}
# A thread runs them at once, before anything else.
CHEAP = {*SHARE_INPUT, "Const", "NoOp", "Shape", "ReadVariableOp", "AssignVariableOp", "StridedSlice", "Pack"}


class ReadyOperations:
    """The operations that wait for nothing any more, for each thread."""

    def __init__(self, program: StepProgram, num_threads: int, first: int) -> None:
        self._program = program
        self._waits = list(program.num_waits)
        self._next: list[deque[int]] = [deque() for _ in range(num_threads)]
        self._stacks: list[deque[int]] = [deque() for _ in range(num_threads)]
        roots = (index for index, number in enumerate(program.num_waits) if number == 0)
        for turn, index in enumerate(roots):
            self._stacks[(turn + first) % num_threads].append(index)

    def take(self, thread: int) -> int | None:
        """The operation that a thread runs now; None if there is none."""
        if self._next[thread]:
            return self._next[thread].popleft()
        if self._stacks[thread]:
            return self._stacks[thread].popleft()
        return next((stack.pop() for stack in self._stacks if stack), None)

    def finished(self, thread: int, index: int) -> None:
        """Notes that a thread has run an operation: cheap ones that are now ready follow at once, and one other."""
        other = None
        for follower in self._program.followers[index]:
            self._waits[follower] -= 1
            if self._waits[follower]:
                continue
            if self._program.nodes[follower].kind in CHEAP:
                self._next[thread].append(follower)
            else:
                if other is not None:
                    self._stacks[thread].appendleft(other)
                other = follower
        if other is not None:
            (self._stacks[thread].appendleft if self._next[thread] else self._next[thread].append)(other)
