"""Whether data workers can prepare a dataset as this process would, found out before training."""

from __future__ import annotations

import re

import tensorflow as tf

from tfaccel.data.private_pipelines import draws_without_seed, get_nodes, is_in_any_order
from tfaccel.errors import PlanError

MAX_BYTES = 256 << 20  # a pipeline is sent to each worker in every epoch; Protocol Buffers end at 2 GiB
_FAIL = 2  # the external state policy of DatasetToGraphV2
_STATEFUL = re.compile(r"(\w+) is stateful")
_PYTHON = re.compile(r"^(Eager)?PyFunc")
_RANDOM = re.compile(r"Random|Rng|Multinomial|ParameterizedTruncatedNormal")


def check_sendable(dataset: tf.data.Dataset, name: str, num_workers: int) -> None:
    """Raises PlanError if data workers cannot prepare a dataset, or not the same batches in the same order.

    Args:
        dataset: what one worker prepares.
        name: of the workload.
        num_workers: number of data workers.
    """
    reason = _why_not(dataset)
    if reason:
        raise PlanError(
            f"tf.data service workers cannot prepare train_data of workload {name!r}: {reason} "
            f"Received: data_service={num_workers}. Or use data_service=None (leave out --data_service)."
        )


def _why_not(dataset: tf.data.Dataset) -> str:
    varies = draws_without_seed(dataset)
    if varies:
        return f"{varies[0].lower()}{varies[1:]}."
    variant = tf.data.experimental.to_variant(dataset)
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=_FAIL, strip_device_assignment=True
        )
    except tf.errors.OpError as error:
        found = _STATEFUL.search(str(error.message))
        return _about_state(found[1]) if found else f"TensorFlow cannot send it ({error.message:.200})."
    content = graph.numpy()
    if not 0 < len(content) <= MAX_BYTES:  # 0: larger than a message can be
        size = f"it holds {len(content) >> 20} MiB" if content else "it holds 2 GiB or more"
        return (
            f"{size} of arrays, which would be sent to each worker in every epoch; at most {MAX_BYTES >> 20} MiB are. "
            "Read the examples from files in the pipeline."
        )
    return _about_graph(tf.compat.v1.GraphDef.FromString(content))


def _about_graph(graph: tf.compat.v1.GraphDef) -> str:
    for node in get_nodes(graph):
        if _PYTHON.search(node.op):
            return _about_state(node.op)
        if is_in_any_order(node):
            return f"{node.op} is not deterministic. Leave out `deterministic=False`."
    return ""


def _about_state(operation: str) -> str:
    if _PYTHON.search(operation):
        return (
            "it runs Python code (tf.py_function, tf.numpy_function, from_generator, a PyDataset), which exists in "
            "this process only. Use TensorFlow's operations."
        )
    if _RANDOM.search(operation):
        return (
            f"{operation} draws random numbers that depend on earlier draws. Use tf.random.stateless_* with seeds that "
            "depend on seed, epoch and step."
        )
    return f"{operation} reads or changes state of this process, such as a variable. Use constants."
