"""Private parts of Keras and TensorFlow around their start, which may not have been loaded when this file is."""

from __future__ import annotations

import functools
from typing import Any

from tfaccel.tested_versions import private_part


def swap_name_counters(counters: Any) -> Any:
    """Replaces the counters behind Keras's layer names (`dense_1`) and returns the old ones; None resets them.

    `clear_session` would also reset other state. TensorFlow's graph optimizer orders operations by name, so names
    affect the last bits of a result.
    """
    from keras.src.backend.common import global_state

    before = private_part(global_state, "get_global_attribute")("object_name_uids")
    private_part(global_state, "set_global_attribute")("object_name_uids", counters)
    return before


@functools.cache
def uses_onednn() -> bool:
    """Whether the loaded TensorFlow runs oneDNN's operations on the CPU; it decided when it was loaded."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(private_part(_pywrap_util_port, "IsMklEnabled", package="tensorflow")())


def has_started() -> bool:
    """Whether the loaded TensorFlow has run an operation, or has been asked for its devices."""
    from tensorflow.python.eager import context

    return bool(private_part(context, "context", package="tensorflow")()._initialized)
