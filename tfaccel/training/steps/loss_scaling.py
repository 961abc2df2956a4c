"""Loss scaling: the factor of a `LossScaleOptimizer`, and a replica's share of the rows as the weight of its loss.

The optimizer multiplies the loss by its factor before the backward pass, divides the gradients by it, and skips an
update whose gradients overflow. So that all replicas skip the same ones, an overflow on one is made known to all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.steps.global_batch import current_share
from tfaccel.training.steps.gradients import is_bad
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.overrides import left_by_user
from tfaccel.training.steps.replicas import Replicas


def has_loss_scale(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer scales the loss, and checks gradients itself."""
    return inner_optimizer(optimizer) is not optimizer


def get_scales(model: keras.Model) -> list[keras.Variable]:
    """The factors of a model's `LossScaleOptimizer`s that are built."""
    scales = [getattr(one, "dynamic_scale", None) for one in get_optimizers(model).values() if has_loss_scale(one)]
    return [scale for scale in scales if scale is not None]


def lower_scales(model: keras.Model, replicas: Replicas) -> None:
    """Divides these factors by 16, on each replica of this worker."""
    for scale in replicas.copies(get_scales(model)):
        scale.assign(scale / 16)


def weighted_scale_loss(optimizer: keras.optimizers.Optimizer, *, notes_bad: bool = False) -> Callable[[Any], Any]:
    """`optimizer.scale_loss`, with the loss weighted by the replica's fraction of the rows."""

    def scale_loss(loss: Any) -> Any:
        share = current_share()
        weight = 1.0 if share is None else tf.cast(share.row_weight, loss.dtype)
        if share is not None and notes_bad:
            share.bad.append(is_bad(loss))
        return left_by_user(optimizer, "scale_loss")(loss * weight)

    return scale_loss


def get_gradient_scale(optimizer: Any) -> Any:
    """The factor that gradients are multiplied by before an optimizer's `apply` divides by it."""
    if has_loss_scale(optimizer):
        return optimizer.dynamic_scale.value
    return optimizer.loss_scale_factor or 1.0


def count_overflows(gradients: list[Any]) -> tf.Tensor:
    """Number of gradients that contain an inf or NaN, as a float32 scalar."""
    flags = [
        tf.reduce_any(~tf.math.is_finite(g.values if isinstance(g, tf.IndexedSlices) else g))
        for g in gradients
        if g is not None
    ]
    return tf.reduce_sum(tf.cast(tf.stack(flags), tf.float32)) if flags else tf.constant(0.0)


def with_overflows(gradients: list[Any], num_overflows: tf.Tensor) -> list[Any]:
    """Gradients of which the first is NaN if those of any replica have overflown: a loss scale checks nothing else."""
    poison = tf.where(num_overflows > 0, float("nan"), 0.0)
    first, *others = gradients
    return [tf.convert_to_tensor(first) + tf.cast(poison, first.dtype), *others]


def refuse_loss_scale(model: keras.Model) -> None:
    """Raises PlanError for a `LossScaleOptimizer` on a TPU: each replica would decide on the loss scale separately."""
    for name, optimizer in get_optimizers(model).items():
        if has_loss_scale(optimizer):
            raise PlanError(
                f"model.{name} is a LossScaleOptimizer. TPUs compute in bfloat16, which has float32's range and "
                "needs no loss scale. Compile with the optimizer itself, and use dtype_policy='mixed_bfloat16'."
            )
