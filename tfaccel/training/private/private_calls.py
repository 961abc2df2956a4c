"""The private API of Keras's layer calls that tfaccel uses: the state around a layer's `call`.

`Layer.__call__` sets it and takes it back afterwards. There is no public way to have it in the backward pass too, which
runs a `call` again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import keras

from tfaccel.tested_versions import private_part

_CONTEXT = "current_call_ctx"


def state_around_call(layer: keras.layers.Layer) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Inside a layer's `call`: a function whose context has the same call context and autocasting.

    The call context carries `training` to inner layers that are called without it; autocasting gives the layer's
    weights its compute dtype.
    """
    from keras.src import backend
    from keras.src.backend.common import global_state

    read, write = private_part(global_state, "get_global_attribute"), private_part(global_state, "set_global_attribute")
    scope = private_part(backend, "AutocastScope")
    context = read(_CONTEXT)
    casts = layer.autocast and layer.compute_dtype != layer.variable_dtype

    @contextlib.contextmanager
    def state() -> Iterator[None]:
        before = read(_CONTEXT)
        write(_CONTEXT, context)
        try:
            with scope(layer.compute_dtype if casts else None):
                yield
        finally:
            write(_CONTEXT, before)

    return state
