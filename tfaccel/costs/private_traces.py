"""A private module of TensorFlow: the protocol buffer of the profiler's traces, which only its plugin reads else."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part, warn_if_untested

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
