"""The kernels that a traced graph launches, and the bytes that they read and write."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfaccel.costs.graph_operations import GraphCounter

# Operations that compute nothing on a device: they name, shape or pass on values.
_NO_KERNELS = {
    *("Const", "Placeholder", "NoOp", "Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape"),
    *("ReadVariableOp", "VarHandleOp", "Shape", "ShapeN", "Size", "Rank", "Reshape", "ExpandDims", "Squeeze"),
    *("BroadcastGradientArgs", "Assert", "Switch", "Merge", "TensorListReserve", "TensorListFromTensor"),
    *(
        "TensorListStack",
        "EmptyTensorList",
        "TensorListElementShape",
        "TensorListLength",
        "StatelessRandomGetKeyCounter",
    ),
}
_HOST_DTYPES = {"int32", "int64", "string", "bool", "resource", "variant"}  # mostly shapes, counters and conditions


@dataclass(frozen=True)
class GraphKernels:
    """What a graph launches.

    Args:
        num_kernels: operations that compute something, loops multiplied by their iterations.
        num_bytes: bytes that they read and write, if none is fused with another. Tensors of unknown shape count 0.
    """

    num_kernels: int
    num_bytes: int


def graph_kernels(graph: Any) -> GraphKernels:
    """Counts the kernels of one run of a graph.

    Args:
        graph: of a concrete `tf.function`.

    Raises:
        WorkloadError: if the number of iterations of a loop depends on the data.

    Example:
        >>> product = tf.function(lambda a, b: tf.nn.relu(a @ b))
        >>> graph_kernels(product.get_concrete_function(tf.ones((2, 3)), tf.ones((3, 5))).graph)
        GraphKernels(num_kernels=2, num_bytes=204)
    """
    return GraphKernels(_KernelCounter(graph).count(graph), _ByteCounter(graph).count(graph))


class _KernelCounter(GraphCounter):
    def of_operation(self, operation: Any) -> int:
        return int(_has_kernel(operation))


class _ByteCounter(GraphCounter):
    def of_operation(self, operation: Any) -> int:
        if not _has_kernel(operation):
            return 0
        return sum(_num_bytes(tensor) for tensor in [*operation.inputs, *operation.outputs])


def _has_kernel(operation: tf.Operation) -> bool:
    if operation.type in _NO_KERNELS:
        return False
    if not operation.outputs:  # assignments to variables and optimizer updates
        return any(tensor.dtype.is_floating for tensor in operation.inputs)
    return any(tensor.dtype.name not in _HOST_DTYPES for tensor in operation.outputs)


def _num_bytes(tensor: tf.Tensor) -> int:
    if tensor.shape.rank is None or None in tensor.shape.as_list():
        return 0
    if tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    return math.prod(tensor.shape.as_list()) * tensor.dtype.size
