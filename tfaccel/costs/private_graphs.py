"""Private names of TensorFlow: functions of a graph, and the protocol buffer of the profiler's traces."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part, warn_if_untested


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


# A private module of TensorFlow: the protocol buffer of the profiler's traces, which only its plugin reads else.

_MODULE = "tensorflow.tsl.profiler.protobuf.xplane_pb2"
CPU_PLANE, GPU_PLANE = "/host:CPU", "/device:GPU:0"


def trace_events(folder: Path, plane_name: str = CPU_PLANE) -> Iterator[tuple[str, str, float, float]]:
    """The events in the traces below a folder: thread or stream, name, start and end in seconds.

    Args:
        folder: where the profiler wrote.
        plane_name: of all threads, or of all streams of the first GPU.

    Raises:
        VersionError: if this TensorFlow has no such protocol buffer.
    """
    warn_if_untested("tensorflow", tf.__version__)
    space: Any = private_part(importlib.import_module(_MODULE), "XSpace", package="tensorflow")
    for path in sorted(folder.rglob("*.xplane.pb")):
        trace = space.FromString(path.read_bytes())
        for plane in trace.planes:
            if plane.name != plane_name:
                continue
            for line in plane.lines:
                for event in line.events:
                    start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                    name = plane.event_metadata[event.metadata_id].name
                    yield line.name, name, start, start + event.duration_ps / 1e12
