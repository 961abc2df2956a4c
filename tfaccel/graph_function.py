"""Graph functions that are made anew for each model or run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def graph_function(run: Callable[..., Any], *, autograph: bool = False, **options: Any) -> Any:
    """A `tf.function` for one model.

    TensorFlow counts how often the same code is traced, and warns of retracing after five times, even if each time is
    the first one of another function, for another model. A partial function counts by itself.

    Args:
        run: the Python function.
        autograph, **options: as for `tf.function`.

    Example:
        >>> int(graph_function(lambda x: x + 1)(1))
        2
    """
    import tensorflow as tf

    return tf.function(functools.partial(run), autograph=autograph, **options)
