"""The cost of a traced graph by layer: operations and bytes, loops multiplied by their iterations; and its times."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfaccel.costs.graph_operations import BRANCHES, CALLS, LOOPS, GraphCounter, matrix_operations
from tfaccel.costs.model_cost import HOST, LOSS, OPTIMIZER, OTHER, LayerCost, StepCost

# Keys of a tally beside dtypes.
_COUNTS = _MATRIX, _OTHER_FLOPS, _LEAST, _KERNELS = "matrix flops", "other flops", "least bytes", "kernels"

# Operations that compute nothing: they name, shape or pass on values, and need no memory traffic.
_FREE = {
    *("Const", "Placeholder", "PlaceholderWithDefault", "NoOp", "Identity", "IdentityN", "StopGradient"),
    *("PreventGradient", "EnsureShape", "ReadVariableOp", "VarHandleOp", "Shape", "ShapeN", "Size", "Rank", "Reshape"),
    *("ExpandDims", "Squeeze", "BroadcastGradientArgs", "Assert", "Switch", "Merge", "Enter", "Exit", "NextIteration"),
    *("TensorListReserve", "EmptyTensorList", "TensorListElementShape", "TensorListLength", "LoopCond"),
}
# Operations whose first output holds the values of the first input.
_VIEWS = {"Identity", "StopGradient", "PreventGradient", "EnsureShape", "Reshape", "ExpandDims", "Squeeze"}
# Operations that move values and compute none.
_MOVES = {
    *("Cast", "Concat", "ConcatV2", "Split", "SplitV", "Pack", "Unpack", "Slice", "StridedSlice", "StridedSliceGrad"),
    *("Transpose", "Tile", "Pad", "PadV2", "MirrorPad", "Gather", "GatherV2", "ResourceGather", "GatherNd", "Fill"),
    *("ZerosLike", "OnesLike", "BroadcastTo", "ReverseV2", "Select", "SelectV2", "TensorListFromTensor"),
    *("TensorListGetItem", "TensorListSetItem", "TensorListStack", "TensorListPushBack", "TensorListPopBack"),
    *("AssignVariableOp", "Range", "Where", "Copy", "DeepCopy"),
}
_SCOPE = re.compile(r"tfaccel_layer\.(\d+)")
_NUMBER = re.compile(r"_\d+$")
_TRACED_OPERATION = re.compile(r"([A-Za-z0-9.][\w./\\-]*):(\w+)")  # as a profiler's trace names it
_OTHERWISE = 1  # the branch of a conditional whose condition does not hold
_HOST_DTYPES = {"int32", "int64", "string", "bool", "resource", "variant"}  # mostly shapes, counters and conditions


def graph_costs(
    graph: Any, layers: Mapping[int, str], *, optimizers: tuple[str, ...] = (), updates: bool = True
) -> StepCost:
    """Counts what one run of a graph computes, by layer.

    Args:
        graph: of a concrete `tf.function`, with static shapes.
        layers: number of each layer's name scope (`layer_scope`) -> its name.
        optimizers: names of the optimizers, which open name scopes of that name.
        updates: whether optimizers that accumulate gradients update the weights in this run; otherwise they add
            gradients up.

    Raises:
        WorkloadError: if the shape of a matrix product, or the number of iterations of a loop, depends on the data.

    Example:
        >>> product = tf.function(lambda a, b: tf.nn.relu(a @ b))
        >>> cost = graph_costs(product.get_concrete_function(tf.ones((2, 3)), tf.ones((3, 5))).graph, {})
        >>> cost.matrix_flops, cost.flops, cost.num_bytes
        (60, 70, {'float32': 204})
    """
    counted: Any = _CostCounter(graph, optimizers, updates=updates).count(graph)
    tally = counted if isinstance(counted, _Tally) else _Tally()
    names: dict[Any, str] = {**layers, **{name: name for name in (OPTIMIZER, LOSS, OTHER)}}
    rows = [_row(name, tally.rows[key]) for key, name in names.items() if key in tally.rows]
    return StepCost(rows=tuple(rows), num_unsized=tally.num_unsized)


def _row(name: str, costs: Mapping[str, int]) -> LayerCost:
    num_bytes = {key: value for key, value in sorted(costs.items()) if key not in _COUNTS}
    return LayerCost(
        name=name,
        matrix_flops=int(costs.get(_MATRIX, 0)),
        other_flops=int(costs.get(_OTHER_FLOPS, 0)),
        least_bytes=int(costs.get(_LEAST, 0)),
        num_kernels=int(costs.get(_KERNELS, 0)),
        num_bytes={key: int(value) for key, value in num_bytes.items()},
    )


@dataclass
class _Tally:
    """Costs by row, that can be added, repeated and compared as `GraphCounter` does with numbers."""

    rows: dict[Any, dict[str, int]] = field(default_factory=dict)
    num_unsized: int = 0

    def __add__(self, other: Any) -> _Tally:
        if not isinstance(other, _Tally):
            return self
        rows = {key: dict(costs) for key, costs in self.rows.items()}
        for key, costs in other.rows.items():
            own = rows.setdefault(key, {})
            for name, value in costs.items():
                own[name] = own.get(name, 0) + value
        return _Tally(rows, self.num_unsized + other.num_unsized)

    __radd__ = __add__

    def __mul__(self, times: int) -> _Tally:
        rows = {key: {name: value * times for name, value in costs.items()} for key, costs in self.rows.items()}
        return _Tally(rows, self.num_unsized)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __gt__(self, other: Any) -> bool:
        return self._size() > (other._size() if isinstance(other, _Tally) else 0)

    def __lt__(self, other: Any) -> bool:
        return not self > other

    def _size(self) -> int:
        return sum(value for costs in self.rows.values() for value in costs.values())


class _CostCounter(GraphCounter):
    def __init__(self, graph: Any, optimizers: tuple[str, ...], *, updates: bool) -> None:
        super().__init__(graph)
        self._optimizers, self._updates = optimizers, updates
        self._callers: list[Any] = [OTHER]  # the row of each loop, branch or call that is being counted
        self._path: tuple[str, ...] = ()  # their names
        self._bodies: set[Any] = set()  # inputs of loop bodies: their values differ between iterations
        self._read: set[Any] = set()
        self._written: set[Any] = set()

    def _operations(self, operation: Any) -> Any:
        self._callers.append(self._get_row(operation))
        path, self._path = self._path, (*self._path, operation.name)
        try:
            return super()._operations(operation)
        finally:
            self._callers.pop()
            self._path = path

    def enter(self, loop: Any) -> tuple[Any, Any]:
        condition, body = super().enter(loop)
        self._bodies.update(tensor.ref() for tensor in (*condition.inputs, *body.inputs))
        return condition, body

    def _get_row(self, operation: Any) -> Any:
        """The layer whose scope is the innermost one; else optimizer or loss; else that of the caller."""
        row = row_of_name(operation.name, self._optimizers)
        return self._callers[-1] if row is None else row

    def of_branches(self, operation: Any) -> Any:
        """The most expensive branch; without updates, that of an accumulating optimizer which adds gradients up."""
        if not self._updates and self._callers[-1] == OPTIMIZER and self._is_every_so_often(operation):
            return self.count(self.branches(operation)[_OTHERWISE])
        return super().of_branches(operation)

    def _is_every_so_often(self, operation: Any) -> bool:
        """Whether a conditional depends on a number of steps being a multiple, as Keras decides on updates."""
        condition = self._origin(operation.inputs[0]).op
        return condition.type == "Equal" and any(
            self._origin(tensor).op.type in ("FloorMod", "Mod") for tensor in condition.inputs
        )

    def of_operation(self, operation: Any) -> Any:
        """The bytes and floating-point operations of one operation."""
        if operation.type in _FREE:
            return _Tally()
        costs: dict[str, int] = {}
        num_unsized = 0
        matrix = matrix_operations(operation)
        for tensor in [*operation.inputs, *operation.outputs]:
            size = _num_elements(tensor)
            if size is None:
                num_unsized += 1
            elif size:
                name = tensor.dtype.name
                costs[name] = costs.get(name, 0) + size * tensor.dtype.size
        if _changes_variable(operation):
            name = operation.inputs[1].dtype.name
            costs[name] = costs.get(name, 0) + _bytes_of_state(operation)
        if matrix:
            costs[_MATRIX] = matrix
        elif other := _elements_computed(operation):
            costs[_OTHER_FLOPS] = other
        if _is_kernel(operation):
            costs[_KERNELS] = 1
        tally = _Tally({self._callers[-1]: costs} if costs else {}, num_unsized)
        for row, num_bytes in self._crossings(operation):
            tally = tally + _Tally({row: {_LEAST: num_bytes}})
        return tally

    def _crossings(self, operation: Any) -> Iterator[tuple[Any, int]]:
        """The row, and the bytes, of each tensor that one row's forward or backward pass takes from another."""
        row, phase = self._callers[-1], _is_backward(operation)
        for tensor in operation.inputs:
            origin = self._origin(tensor)
            num_bytes = (_num_elements(origin) or 0) * origin.dtype.size
            if not num_bytes or origin.ref() in self._bodies or origin.op.type == "Const":
                continue
            is_given = origin.op.type in ("ReadVariableOp", "Placeholder")
            source = self._get_row(origin.op)
            if not is_given and (source, _is_backward(origin.op)) == (row, phase):
                continue
            key = (self._path[:-1], origin.ref(), row, phase)
            if key not in self._read:
                self._read.add(key)
                yield row, num_bytes
            if not is_given and origin.ref() not in self._written:
                self._written.add(origin.ref())
                is_of_none = row_of_name(origin.op.name, self._optimizers) is None
                yield (self._callers[-2] if is_of_none else source), num_bytes  # not that of whoever reads it first
        yield row, _bytes_of_state(operation)

    def _origin(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor that a tensor is a view of, or a name for."""
        while True:
            if tensor.ref() in self._given and tensor.ref() not in self._bodies:
                tensor = self._given[tensor.ref()]
            elif tensor.op.type in _VIEWS:
                tensor = tensor.op.inputs[0]
            else:
                return tensor


def _is_kernel(operation: Any) -> bool:
    """Whether an operation runs on the device: it reads or makes values that are no shapes, counters or conditions."""
    if operation.type.startswith("TensorList") and operation.type != "TensorListStack":  # lists only keep tensors
        return False
    if not operation.outputs:  # assignments to variables and optimizer updates
        return any(tensor.dtype.is_floating for tensor in operation.inputs)
    return any(tensor.dtype.base_dtype.name not in _HOST_DTYPES for tensor in operation.outputs)


def _is_backward(operation: Any) -> bool:
    return "gradient_tape/" in operation.name or "gradients/" in operation.name or "_grad/" in operation.name


def _changes_variable(operation: Any) -> bool:
    return operation.type.startswith(("Assign", "ResourceApply")) and len(operation.inputs) > 1


def _bytes_of_state(operation: Any) -> int:
    """Bytes that an operation writes to a variable, or stores in a loop for the backward pass and reads back there."""
    kind = operation.type
    if _changes_variable(operation):
        num_bytes = (_num_elements(operation.inputs[1]) or 0) * operation.inputs[1].dtype.size
        return num_bytes if kind == "AssignVariableOp" else 2 * num_bytes  # others read the variable as well
    stored = operation.inputs[1:2] if kind == "TensorListPushBack" else ()
    stored = operation.outputs[1:2] if kind == "TensorListPopBack" else stored
    return sum((_num_elements(tensor) or 0) * tensor.dtype.size for tensor in stored)


def _elements_computed(operation: Any) -> int:
    """One operation per element of the largest tensor that takes part: reductions read more than they write."""
    if operation.type in _MOVES:
        return 0
    floats = [one for one in [*operation.inputs, *operation.outputs] if one.dtype.is_floating]
    return max((_num_elements(tensor) or 0 for tensor in floats), default=0)


def _num_elements(tensor: tf.Tensor) -> int | None:
    """The number of elements; 0 for handles, None if it depends on the data."""
    if tensor.dtype.base_dtype in (tf.resource, tf.variant, tf.string):
        return 0
    if tensor.shape.rank is None or None in tensor.shape.as_list():
        return None
    return math.prod(tensor.shape.as_list())


def layer_scope(index: int) -> str:
    """The name scope that marks the operations of layer number `index`."""
    return f"tfaccel_layer.{index}"


def row_of_name(name: str, optimizers: tuple[str, ...]) -> int | str | None:
    """The number of the innermost layer whose scope is in an operation's name; else "optimizer", "loss" or None.

    Args:
        name: of the operation.
        optimizers: names of the optimizers, which open name scopes of that name.

    Example:
        >>> row_of_name("tfaccel_layer.1/tfaccel_layer.4/MatMul", ("adam",)), row_of_name("adam_2/Mul", ("adam",))
        (4, 'optimizer')
    """
    scopes = _SCOPE.findall(name)
    if scopes:
        return int(scopes[-1])
    parts = [_NUMBER.sub("", part) for part in name.split("/")]
    if any(part in (one, _NUMBER.sub("", one)) for part in parts[:-1] for one in optimizers):
        return OPTIMIZER
    return LOSS if "compile_loss" in parts else None


def layer_seconds(
    events: Iterable[tuple[str, float, float]],
    layers: Mapping[int, str],
    *,
    optimizers: tuple[str, ...] = (),
    total_seconds: float,
) -> dict[str, float]:
    """Divides the time of some steps among the layers, the optimizer, the loss, other operations and the host.

    The host has the time in which no operation ran. The rest is divided in proportion to the times of the operations,
    since several may run at once.

    Args:
        events: names, starts and ends, in seconds; operations are named "name:type", and other events are left out.
        layers: number of each layer's name scope (`layer_scope`) -> its name.
        optimizers: names of the optimizers.
        total_seconds: the time that is divided.

    Returns:
        Row -> seconds; their sum is `total_seconds`. Empty if no operation was found.

    Example:
        >>> events = [("tfaccel_layer.1/MatMul:MatMul", 0.0, 0.3), ("adam/Mul:Mul", 0.5, 0.6), ("Start", 0.0, 1.0)]
        >>> found = layer_seconds(events, {1: "dense"}, optimizers=("adam",), total_seconds=1.0)
        >>> {name: round(seconds, 3) for name, seconds in found.items()}
        {'dense': 0.3, 'optimizer': 0.1, 'host': 0.6}
    """
    busy: dict[int | str, float] = {}
    spans = []
    for name, start, end in events:
        found = _TRACED_OPERATION.fullmatch(name)
        if found and found[2] not in (*CALLS, *LOOPS, *BRANCHES):  # those last as long as the operations in them
            row = row_of_name(found[1], optimizers)
            row = OTHER if row is None else row
            busy[row] = busy.get(row, 0.0) + end - start
            spans.append((start, end))
    if not spans:
        return {}
    covered = min(_covered(spans), total_seconds)
    share = covered / sum(busy.values())
    found_rows = {layers[row] if isinstance(row, int) else row: share * busy[row] for row in _in_order(busy)}
    return {**found_rows, HOST: total_seconds - covered}


def _in_order(rows: Collection[int | str]) -> list[int | str]:
    """Layers by their number, then the other rows."""
    numbers = sorted(row for row in rows if isinstance(row, int))
    return [*numbers, *(row for row in (OPTIMIZER, LOSS, OTHER) if row in rows)]


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of some time spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
