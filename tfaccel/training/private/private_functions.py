"""The private API of `tf.function`: how functions are traced as part of a step, and how they are called."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_losses import patch_lock

logger = logging.getLogger("tfaccel")

_KEPT = ("tfaccel", "tensorflow")  # packages whose functions do not wait for other replicas
_XLA_IS_OFF = (
    "XLA stays off for %s: with several replicas, a tf.function in a step is traced as part of the step, and XLA "
    "cannot compile sums over the replicas."
)
_said: set[str] = set()


@contextlib.contextmanager
def functions_inlined(where: Callable[[], bool]) -> Iterator[None]:
    """While tracing: calls of `tf.function`s become part of the graph that they are called in, where `where()` holds.

    In a graph of its own, a replica cannot wait for the others (`merge_call`), and its tensors cannot be used outside.
    """
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.eager.polymorphic_function import autograph_util, polymorphic_function

    kind = private_part(polymorphic_function, "Function", package="tensorflow")
    original, converted = kind.__call__, private_part(autograph_util, "py_func_from_autograph", package="tensorflow")

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        python = self.python_function
        if not where() or getattr(python, "__module__", "").partition(".")[0] in _KEPT:
            return original(self, *args, **kwargs)
        name = getattr(python, "__qualname__", "a function")
        if getattr(self, "_jit_compile", None) and name not in _said:
            _said.add(name)
            logger.warning(_XLA_IS_OFF, name)
        if tf.executing_eagerly() or not getattr(self, "_autograph", True):
            return python(*args, **kwargs)
        with private_part(ag_ctx, "ControlStatusCtx", package="tensorflow")(ag_ctx.Status.ENABLED):
            return converted(python)(*args, **kwargs)

    with patch_lock:
        before = kind.__call__
        kind.__call__ = call
        try:
            yield
        finally:
            kind.__call__ = before


@contextlib.contextmanager
def unoptimized_calls() -> Iterator[None]:
    """Within the block, TensorFlow does not optimize the graphs that this thread calls: that pays off in many calls."""
    from tensorflow.python.eager import context

    settings = private_part(context, "context", package="tensorflow")()
    before = private_part(settings, "function_call_options", package="tensorflow")
    options = private_part(context, "FunctionCallOptions", package="tensorflow")
    config = tf.compat.v1.ConfigProto.FromString(before.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    settings.function_call_options = options(before.executor_type, config)
    try:
        yield
    finally:
        settings.function_call_options = before


@contextlib.contextmanager
def captures_replaced(function: Any, captures: Mapping[int, tf.Tensor]) -> Iterator[None]:
    """Within the block, a concrete function takes other tensors in place of those that it captured.

    Args:
        function: the concrete function.
        captures: by the id of what they replace.
    """
    before = private_part(function, "captured_inputs", package="tensorflow")
    function.set_external_captures([captures.get(id(one), one) for one in before])
    try:
        yield
    finally:
        function.set_external_captures(before)
