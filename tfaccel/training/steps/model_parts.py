"""What the engine needs to know about a model: its optimizers, its variables, and the methods that it overrides."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.private.private_layers import loss_trackers
from tfaccel.training.private.private_random import global_seed_state
from tfaccel.training.private.private_slots import AbsentSlot
from tfaccel.training.steps.overrides import replaces


def get_optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """The optimizers of a model and its layers, by name (a GAN has two); `optimizer` is the compiled one."""
    compiled = getattr(model, "optimizer", None)
    found = {"optimizer": compiled} if isinstance(compiled, keras.optimizers.Optimizer) else {}
    for number, holder in enumerate(private_api.all_layers(model)):
        prefix = "" if holder is model else f"layer_{number}/"
        for attribute, value in vars(holder).items():
            for place, one in [] if attribute.startswith("_") else _optimizers_in(value):
                if all(one is not other for other in found.values()):
                    found[f"{prefix}{attribute}{place}"] = one
    return found


def _optimizers_in(value: Any) -> list[tuple[str, keras.optimizers.Optimizer]]:
    """The optimizers in an attribute (an optimizer, or a list or dict of them), each with its key."""
    if isinstance(value, keras.optimizers.Optimizer):
        return [("", value)]
    if isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [(f"/{key}", one) for key, one in items if isinstance(one, keras.optimizers.Optimizer)]
    return []


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def stepping_optimizers(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """The optimizers that update weights: those of a `MultiOptimizer`, or the one that `inner_optimizer` returns."""
    inner = inner_optimizer(optimizer)
    return list(getattr(inner, "optimizers", ())) or [inner]


def has_slots_of_weights(model: keras.Model) -> bool:
    """Whether optimizers yet to be built may compute slots from the weights, which must then exist before a trace.

    Of Keras's optimizers only `ScheduleFreeAdamW` does; the others begin with constants.
    """
    parts = [part for one in get_optimizers(model).values() if not one.built for part in stepping_optimizers(one)]
    own = [part for part in parts if type(part).build.__module__.partition(".")[0] not in ("keras", "tfaccel")]
    return bool(own) or any(isinstance(part, keras.optimizers.ScheduleFreeAdamW) for part in parts)


def followers_of_weights(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The slots that follow the weights, not their gradients: averages, steps, and what weights are made of."""
    parts = stepping_optimizers(optimizer)
    made_of = [slot for one in parts if isinstance(one, keras.optimizers.ScheduleFreeAdamW) for slot in one.variables]
    return averages_and_steps(optimizer) + made_of


def averages_and_steps(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The slots that hold averages of the weights, or of their steps: RMSprop divides before it takes the momentum."""
    found = []
    for part in stepping_optimizers(optimizer):
        ends = ("_average", "_momentum") if isinstance(part, keras.optimizers.RMSprop) else ("_average",)
        found += [slot for slot in part.variables if slot.name.endswith(ends)]
    return found


def get_seeds(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The states of the seed generators that an optimizer's updates may draw from; no list of variables has them."""
    values = [value for one in stepping_optimizers(optimizer) for value in vars(one).values()]
    return [value.state for value in values if isinstance(value, keras.random.SeedGenerator)]


def unlisted_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """What an optimizer's updates may read or write besides `variables`: seeds, and optimizers that it calls."""
    listed = {id(one) for one in optimizer.variables}
    held = [variable for one in private_api.optimizers_in(optimizer) for variable in one.variables]
    return get_seeds(optimizer) + [one for one in held if id(one) not in listed]


def get_accumulators(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The gradient accumulators of an optimizer that updates weights."""
    return [one for one in private_api.gradient_accumulators(optimizer) if one is not None]


def accumulators_by_replica(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The accumulators in which each replica adds up its own gradients; the engine sums them once per update.

    Not those of the parts of a `MultiOptimizer`, which accumulate sums over the replicas, equal on all of them.
    """
    return get_accumulators(inner_optimizer(optimizer))


def accumulators_of_replicas(model: keras.Model) -> list[keras.Variable]:
    """`accumulators_by_replica` of all optimizers of a model."""
    return [one for optimizer in get_optimizers(model).values() for one in accumulators_by_replica(optimizer)]


def get_variables(model: keras.Model) -> list[keras.Variable]:
    """All variables that a step may read or write, each once: weights, seeds, metrics, states, optimizers.

    They include Keras's global seed generator, if it exists, but no slots that another worker holds.
    """
    found = [*model.variables, *model.metrics_variables, *untracked_variables(model)]
    found += [variable for metric in unlisted_metrics(model) for variable in metric.variables]
    shared = global_seed_state()
    found += [] if shared is None else [shared]
    for optimizer in get_optimizers(model).values():
        found += [v for v in optimizer.variables if not isinstance(private_api.tf_variable(v), AbsentSlot)]
    return list({id(variable): variable for variable in found}.values())


def unlisted_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """The metrics that a step may update, though a model's own `metrics` need not list them.

    They are the attributes of the model and its layers, and the trackers of Keras's losses.
    """
    values = [value for layer in private_api.all_layers(model) for value in vars(layer).values()]
    found = [value for value in values if isinstance(value, keras.metrics.Metric) and not hasattr(value, "metrics")]
    return [*found, *(one for one in loss_trackers(model) if one is not None)]


def untracked_variables(model: keras.Model) -> list[keras.Variable]:
    """The variables of layers that `model.variables` omits: the states of stateful recurrent layers.

    They belong to a replica's rows, so each replica has its own values.
    """
    known = {id(variable) for variable in (*model.variables, *model.metrics_variables)}
    layers = private_api.all_layers(model)
    held = ((*keras.tree.flatten(getattr(layer, "states", None)), *vars(layer).values()) for layer in layers)
    found = [one for own in held for one in own if isinstance(one, keras.Variable) and id(one) not in known]
    return list({id(one): one for one in found}.values())


def has_own_train_step(model: keras.Model) -> bool:
    """Whether the model's `train_step` is not Keras's."""
    return replaces(model, keras.Model, "train_step")


def has_own_test_step(model: keras.Model) -> bool:
    """Whether the model's `test_step` is not Keras's."""
    return replaces(model, keras.Model, "test_step")


def has_own_logs(model: keras.Model, kind: str) -> bool:
    """Whether a step's logs may differ from the metric results: `train_step`, `test_step`, … is not Keras's."""
    names = ("train_step" if kind == "train" else "test_step", "compute_metrics", "get_metrics_result")
    return any(replaces(model, keras.Model, name) for name in names)


def moved_by_gradients(model: keras.Model) -> list[keras.Variable]:
    """The weights that optimizers train, and the optimizers' own variables, except for learning rates."""
    slots = (slot for optimizer in get_optimizers(model).values() for slot in optimizer.variables)
    return [*model.trainable_variables, *(slot for slot in slots if slot.name != "learning_rate")]


def have_values(variables: list[keras.Variable]) -> bool:
    """Whether variables were created before the step being traced: those that it creates have no values yet."""
    with tf.init_scope():
        return all(bool(private_api.tf_variable(variable).is_initialized()) for variable in variables)
