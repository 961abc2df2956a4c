"""Runs the forward and backward pass of one step eagerly, and notes how the loss is reduced and what changes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private import private_api, private_losses
from tfaccel.training.private.private_random import still_random
from tfaccel.training.proof.state import State
from tfaccel.training.steps.model_parts import get_variables
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas


@dataclass
class NotedStep:
    """What one step did.

    Attributes:
        reductions: how losses with more than one value were reduced: "sum", "none", "masked" or "weighted"; a plain
            mean is not noted.
        added: the shapes of the losses that layers added.
        adding: the layers that added them.
        loss_rank: the rank of the loss.
        changed: paths of the weights that the forward pass changed.
        sparse: paths of the variables whose gradients are `IndexedSlices`.
        loss: the loss of the step.
        gradients: those of the trainable variables that have one.
    """

    reductions: set[str] = field(default_factory=set)
    added: list[tuple[int | None, ...]] = field(default_factory=list)
    adding: list[str] = field(default_factory=list)
    loss_rank: int = 0
    changed: list[str] = field(default_factory=list)
    sparse: list[str] = field(default_factory=list)
    loss: float = 0.0
    gradients: list[np.ndarray] = field(default_factory=list)


def noted_step(model: keras.Model, replicas: Replicas, batch: Any) -> NotedStep:
    """Runs the default train step on a batch, without applying gradients; the model stays as it is.

    Random numbers are constants.

    Args:
        model: a built and compiled model.
        replicas: the replicas of its strategy.
        batch: a batch of few rows, as eager tensors.
    """
    noted = NotedStep()
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    touched = get_variables(model)
    with replicas.local(touched, 0), still_random([]), contextlib.ExitStack() as stack:
        stack.callback(State([private_api.tf_variable(one) for one in touched]).put_back)
        stack.enter_context(private_losses.loss_reduction(_noting_reductions(noted), _plain_update, _plain_gradient))
        stack.enter_context(instance_attributes(model, _noting_added(model, noted)))
        before = [(one, one.numpy()) for one in model.non_trainable_weights]
        with tf.GradientTape() as tape:
            y_pred = private_api.call_model(model, x, training=True)
            loss = private_api.compute_loss(model, x, y, y_pred, sample_weight, training=True)
        noted.adding = private_api.names_of_layers_that_add_losses(model)
        trainable = model.trainable_variables
        if loss is not None:
            noted.loss_rank = len(loss.shape)
            gradients = tape.gradient(loss, [private_api.tf_variable(one) for one in trainable])
            pairs = zip(gradients, trainable, strict=True)
            noted.loss = float(tf.reduce_sum(loss))
            noted.gradients = [tf.convert_to_tensor(one).numpy() for one in gradients if one is not None]
            noted.sparse = [one.path for gradient, one in pairs if isinstance(gradient, tf.IndexedSlices)]
        noted.changed = [one.path for one, value in before if (one.numpy() != value).any()]
    return noted


def _noting_reductions(noted: NotedStep) -> Any:
    def reduce(original: Any, values: Any, sample_weight: Any, mask: Any, reduction: Any, dtype: Any) -> Any:
        if len(values.shape):
            if reduction in (None, "none", "sum"):
                noted.reductions.add(reduction or "none")
            elif mask is not None:
                noted.reductions.add("masked")
            elif reduction == "mean_with_sample_weight" and sample_weight is not None:
                noted.reductions.add("weighted")
        return original(values, sample_weight, mask, reduction, dtype)

    return reduce


def _noting_added(model: keras.Model, noted: NotedStep) -> dict[str, Any]:
    def total(original: Any, loss: Any) -> Any:
        noted.added.append(tuple(loss.shape))
        return original(loss)

    return private_losses.added_loss_reduction(model, total)


def _plain_update(original: Any, metric: keras.metrics.Mean, values: Any, sample_weight: Any) -> Any:
    return original(metric, values, sample_weight)


def _plain_gradient(original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    return original(tape, target, sources, *args, **kwargs)
