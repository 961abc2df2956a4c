"""Summaries that a step writes with `tf.summary`, on several replicas.

TensorFlow writes those of the first replica. A scalar is made the mean over all of them, weighted by their rows.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfaccel.training.steps.all_reduce import mean_over_replicas
from tfaccel.training.steps.global_batch import current_share
from tfaccel.training.steps.overrides import instance_attributes

logger = logging.getLogger("tfaccel")

_OTHERS = ("audio", "histogram", "image", "text")
_MEANS = (
    "tf.summary.scalar in a step writes the mean over the %d replicas, weighted by their rows. Sum what is a sum over "
    "the rows with tfaccel.ops.sum_over_replicas first."
)
_OF_FIRST = "tf.summary.%s in a step writes what the first of %d replicas has: that of its own rows of a batch."
_said: set[str] = set()


@contextlib.contextmanager
def summaries_of_all(num_replicas: int) -> Iterator[None]:
    """While tracing several replicas: scalar summaries are means over them. Says once what is written."""
    written: dict[str, Callable[..., Any]] = {name: getattr(tf.summary, name) for name in ("scalar", *_OTHERS)}

    def writing(kind: str) -> Callable[..., Any]:
        def write(name: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            share = current_share()
            if share is not None and share.counting:  # a pass before the step
                return tf.constant(False)
            is_mean = kind == "scalar"
            if share is not None and kind not in _said:
                _said.add(kind)
                logger.warning(*((_MEANS, num_replicas) if is_mean else (_OF_FIRST, kind, num_replicas)))
            return written[kind](name, _mean(data) if is_mean else data, *args, **kwargs)

        return write

    if num_replicas == 1:
        yield
        return
    with instance_attributes(tf.summary, {kind: writing(kind) for kind in written}):
        yield


def _mean(data: Any) -> Any:
    value = tf.convert_to_tensor(data)
    if current_share() is None or not value.dtype.is_floating:
        return data
    try:
        return mean_over_replicas(value)
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        return data  # within a condition, where replicas cannot wait for each other
