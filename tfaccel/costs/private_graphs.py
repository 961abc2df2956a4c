"""A private name of TensorFlow's graphs, which the public API exposes only as protocol buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part


def function_graph(graph: tf.Graph, name: str) -> Any:
    """The `FuncGraph` of a function that operations of a graph call by name."""
    return private_part(graph, "_functions", package="tensorflow")[name].graph


@dataclass(frozen=True)
class SentTensor:
    """A tensor that a graph sends from one device to another.

    Attributes:
        name: that of the operation that makes it, after the number of its edge.
        source, target: devices, such as "CPU:0".
        dtype: its dtype.
    """

    name: str
    source: str
    target: str
    dtype: tf.DType


def sent_tensors(run: Callable[[], Any]) -> list[SentTensor]:
    """What the graphs that `run()` traces send between devices, as TensorFlow has placed and optimized them."""
    from tensorflow.python.eager import context

    runtime = private_part(context, "context", package="tensorflow")()
    runtime.enable_run_metadata()
    try:
        run()
        found = runtime.export_run_metadata()
    finally:
        runtime.disable_run_metadata()
    graphs = [graph for graphs in found.function_graphs for graph in graphs.partition_graphs]
    sent = {node.attr["tensor_name"].s: node.attr for graph in graphs for node in graph.node if node.op == "_Send"}
    return [_sent(name.decode(), attributes) for name, attributes in sent.items()]


def _sent(name: str, attributes: Any) -> SentTensor:
    source, target = (attributes[key].s.decode().split("device:")[-1] for key in ("send_device", "recv_device"))
    return SentTensor(name, source, target, tf.as_dtype(attributes["T"].type))
