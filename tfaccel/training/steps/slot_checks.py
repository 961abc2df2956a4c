"""Checks that slots can be where a plan wants them, before the first step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_slots
from tfaccel.training.steps.model_parts import get_accumulators, get_optimizers, get_seeds, stepping_optimizers
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slot_dtype import FLOAT32, has_other_slots, store_slots
from tfaccel.training.steps.slot_places import (
    HOST,
    REPLICATED,
    SHARDED,
    host_device,
    place_slots,
    placed_slots,
)

logger = logging.getLogger("tfaccel")

_INSTEAD = "Use optimizer_state='replicated'."
# What an optimizer of the user's own may define; other methods may look at all weights together.
_OWN_METHODS = frozenset(("__init__", "build", "update_step", "get_config", "from_config"))
_OWN_PACKAGES = ("keras.", "tfaccel.")


def placed_as_asked(model: keras.Model, replicas: Replicas, options: Any) -> str:
    """Stores the slots of a model's optimizers, as far as they are built, where and as they were asked for.

    Args:
        model: a compiled model.
        replicas: its replicas.
        options: the engine's.

    Returns:
        Where slots are: "sharded", "host" or "replicated", also if a single replica has nobody to share them with.

    Raises:
        PlanError: if training would not give what replicated slots give; the message says why.
    """
    how, dtype = _checked(model, replicas, options.optimizer_state, options.whole_step), options.optimizer_slots_dtype
    for optimizer in get_optimizers(model).values():
        if not optimizer.built and dtype != FLOAT32:
            raise PlanError(
                f"optimizer_slots_dtype={dtype!r} is for optimizers that are built before the first step. Received: "
                f"{type(optimizer).__name__}, which is not. Call its `build` with the weights that it trains."
            )
        if optimizer.built:
            if has_other_slots(optimizer, dtype):
                place_slots(optimizer, replicas, REPLICATED)
                store_slots(optimizer, replicas, dtype)
            place_slots(optimizer, replicas, how)
    return how


def _checked(model: keras.Model, replicas: Replicas, how: str, whole_step: bool) -> str:
    if how == REPLICATED:
        return how
    if whole_step or isinstance(replicas.strategy, tf.distribute.TPUStrategy):
        raise PlanError(
            "Replicas that run the whole step, as TPU cores do, each have their own optimizer state. Received: "
            f"optimizer_state={how!r} for such a model. {_INSTEAD}"
        )
    if how == SHARDED and replicas.num_replicas == 1:
        logger.warning("optimizer_state='sharded' changes nothing: there is one replica, which has all slots.")
        return REPLICATED
    if how == HOST and replicas.devices[0] in ("", host_device(replicas)) and not tf.config.list_logical_devices("GPU"):
        logger.warning("optimizer_state='host' saves nothing: the model is in the host's memory, as the slots are.")
    for name, optimizer in get_optimizers(model).items():
        for one in stepping_optimizers(optimizer):
            _check(name, one, how, is_part=one not in (optimizer, getattr(optimizer, "inner_optimizer", None)))
    return how


def check_callbacks(callbacks: Sequence[keras.callbacks.Callback], model: keras.Model, replicas: Replicas) -> None:
    """Checks that no callback of Keras reads slots where they are not.

    Raises:
        PlanError: if one does; the message says what to use instead.
    """
    if not placed_slots(model) or replicas.num_replicas == 1:
        return
    for callback in callbacks:
        name, instead = type(callback).__name__, None
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            instead = "the optimizer's use_ema alone"
        elif replicas.num_workers > 1 and isinstance(callback, keras.callbacks.BackupAndRestore):
            instead = "tfaccel.Resume"
        elif replicas.num_workers > 1 and isinstance(callback, keras.callbacks.ModelCheckpoint):
            instead = None if callback.save_weights_only else "save_weights_only=True or tfaccel.Resume"
        if instead is not None:
            raise PlanError(
                f"{name} reads the optimizer's slots on every replica, and they are not there. Use {instead}, or "
                "optimizer_state='replicated'."
            )


def _check(name: str, optimizer: Any, how: str, *, is_part: bool) -> None:
    kind = type(optimizer)
    if is_part and optimizer.gradient_accumulation_steps:
        raise PlanError(
            f"optimizer_state={how!r} is not for parts of a MultiOptimizer that accumulate gradients. Received: "
            f"{kind.__name__} in model.{name}. Set accumulation_steps in the plan, or use optimizer_state='replicated'."
        )
    if how == HOST and optimizer.use_ema and optimizer.gradient_accumulation_steps:
        raise PlanError(
            "optimizer_state='host' updates the moving average of weights once per update, and Keras at every "
            f"accumulated batch. Received: {kind.__name__} with use_ema=True and gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}. Use optimizer_state='sharded' or 'replicated'."
        )
    own = sorted(
        attribute
        for one in kind.__mro__
        if not f"{one.__module__}.".startswith((*_OWN_PACKAGES, "builtins.", "tensorflow."))
        for attribute, value in vars(one).items()
        if callable(value) and attribute not in _OWN_METHODS
    )
    if own:
        raise PlanError(
            f"optimizer_state={how!r} is for optimizers that update each weight by itself, in `update_step`. Received: "
            f"{kind.__name__} in model.{name}, which also defines {', '.join(own)}. {_INSTEAD}"
        )
    if optimizer.built:
        _check_variables(name, optimizer, how)


def _check_variables(name: str, optimizer: Any, how: str) -> None:
    known = {id(slot) for slots in private_slots.slots_by_weight(optimizer) for slot in slots}
    known |= {id(one) for one in get_accumulators(optimizer)}
    odd = [one.path for one in optimizer.variables if id(one) not in known and len(one.shape)]
    if odd:
        raise PlanError(
            f"optimizer_state={how!r} is for optimizers that keep their slots in lists, with one for each weight. "
            f"Received: {type(optimizer).__name__} in model.{name}, which keeps {', '.join(odd[:3])} elsewhere. "
            f"{_INSTEAD}"
        )
    shared = [one.path for one in (*private_slots.shared_variables(optimizer), *get_seeds(optimizer))]
    if shared and how == SHARDED:
        raise PlanError(
            "optimizer_state='sharded' updates each weight on one replica, which knows nothing of the others' updates. "
            f"Received: {type(optimizer).__name__} in model.{name}, which keeps {', '.join(shared[:3])} for several "
            "weights together. Use optimizer_state='host' or 'replicated'."
        )
