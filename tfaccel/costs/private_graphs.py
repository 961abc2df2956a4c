"""A private name of TensorFlow's graphs, which the public API exposes only as protocol buffers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part


def function_graph(graph: tf.Graph, name: str) -> Any:
    """The `FuncGraph` of a function that operations of a graph call by name."""
    return private_part(graph, "_functions", package="tensorflow")[name].graph
