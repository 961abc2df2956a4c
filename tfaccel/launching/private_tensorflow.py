"""The private API of TensorFlow that launching needs."""

from __future__ import annotations

from tfaccel.tested_versions import private_part


def has_started() -> bool:
    """Whether TensorFlow has initialized its devices in this process, which starts threads."""
    from tensorflow.python.eager import context

    return private_part(context.context(), "_context_handle", package="tensorflow") is not None
