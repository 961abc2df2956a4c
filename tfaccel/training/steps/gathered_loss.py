"""A compiled loss that couples the rows of a batch, computed on every replica from the rows of all of them.

Each replica gathers the outputs, targets and weights of the global batch and computes the loss of one device; its
gradient with respect to the replica's own rows is summed over the replicas.
"""

from __future__ import annotations

import weakref
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_losses
from tfaccel.training.steps.gather_rows import gather_nest
from tfaccel.training.steps.global_batch import current_share, replica_share

_MODELS: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def gather_loss(model: keras.Model, gathers: bool = True) -> None:
    """Decides whether the compiled loss of a model is computed from the rows of all replicas from now on."""
    (_MODELS.add if gathers else _MODELS.discard)(model)


def gathers_loss(model: keras.Model) -> bool:
    """Whether `gather_loss` was called for a model."""
    return model in _MODELS


def has_own_loss(model: keras.Model) -> bool:
    """Whether a model was compiled with a loss that is not one of Keras's."""
    given = [one for one in keras.tree.flatten(getattr(model, "loss", None)) if one is not None]
    return not all(isinstance(one, str) or keras.losses.get(one).__module__.startswith("keras.") for one in given)


def gathered_loss(model: keras.Model) -> dict[str, Any]:
    """Attributes of a model, while a step is traced, that compute its compiled loss from all rows, if asked for."""
    if model not in _MODELS:
        return {}

    def loss_of_all(loss: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if current_share() is None:
            return loss(y, y_pred, sample_weight)
        gathered = [gather_nest(value) for value in (y, y_pred, sample_weight)]
        with replica_share(None):  # what follows is a computation of one device
            return loss(*gathered)

    return private_losses.compiled_loss(model, loss_of_all)


def can_gather(data: Any) -> bool:
    """Whether the rows of a batch can be gathered: they are dense."""
    return all(isinstance(leaf, tf.Tensor) for leaf in keras.tree.flatten(data) if leaf is not None)
