"""Models whose class overrides `fit`, `evaluate` or `predict`: the override runs, and the engine runs the steps.

A class overrides these methods to prepare its data, as KerasHub tasks do, and then calls `super().fit(...)`. While the
override runs, the model's class has an extra base right before `keras.Model` whose methods are the engine's.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import keras

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.training.private.private_api import class_of
from tfaccel.training.steps.overrides import replaces
from tfaccel.training.steps.replicas import Replicas

logger = logging.getLogger("tfaccel")

_METHODS = ("fit", "evaluate", "predict")
_FUNCTIONS = {
    "fit": ("make_train_function", "make_test_function"),
    "evaluate": ("make_test_function",),
    "predict": ("make_predict_function",),
}
_ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")


def overrides(model: keras.Model, name: str) -> bool:
    """Whether a model has another method than `keras.Model` defines."""
    return replaces(model, keras.Model, name)


def call_own_method(
    model: keras.Model, name: str, arguments: dict[str, Any], engine_methods: dict[str, Callable[..., Any]]
) -> Any:
    """Calls a method that the model's class overrides, with its calls to `keras.Model` redirected to the engine.

    Args:
        model: a model whose class overrides `name`.
        name: "fit", "evaluate" or "predict".
        arguments: the user's arguments, by name.
        engine_methods: replacements for the methods of `keras.Model`, by name; each takes the model first.

    Raises:
        PlanError: with several replicas, if the override trains without calling `super()`.
    """
    reached = []

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
            reached.append(method)
            with class_of(self, plain):
                return method(self, *args, **kwargs)

        return call

    plain = type(model)
    several = Replicas(model.distribute_strategy).num_replicas > 1
    methods = {one: noted(method) for one, method in engine_methods.items()}
    refused = {one: _refusing(plain, name, one) for one in _ON_BATCH} if several else {}
    base = type("EngineMethods", (keras.Model,), {**methods, **refused})
    with class_of(model, type(plain.__name__, (plain, base), {"__module__": plain.__module__})):
        result = getattr(model, name)(**arguments)
    if several and not reached:
        raise PlanError(
            f"{plain.__name__}.{name} never called super().{name}(...), so its steps ran without the strategy. "
            f"Call super().{name}(...) to run the steps, or build the model outside of any strategy."
        )
    return result


def _refusing(plain: type, name: str, method: str) -> Callable[..., Any]:
    def refuse(self: keras.Model, *_: Any, **__: Any) -> Any:
        raise PlanError(
            f"{plain.__name__}.{name} calls {method}, which Keras cannot split over replicas. Received: a model with "
            f"{Replicas(self.distribute_strategy).num_replicas} replicas. Call super().{name}(...) to run the steps, "
            "or build the model outside of any strategy."
        )

    return refuse


def given_arguments(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the `keras.Model` method that differ from their defaults: an override may take fewer."""
    known = inspect.signature(getattr(keras.Model, function.__name__)).parameters
    defaults = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    return {
        name: value
        for name, value in arguments.items()
        if name in known and (defaults[name] is inspect.Parameter.empty or value is not defaults[name])
    }


def needs_keras_loop(model: keras.Model, name: str) -> bool:
    """Whether Keras's own loop must run, because the class overrides `make_train_function` or a similar method.

    Raises:
        PlanError: with several replicas, over which such functions cannot be split.
    """
    own = [function for function in _FUNCTIONS[name] if overrides(model, function)]
    if not own:
        return False
    replicas = Replicas(model.distribute_strategy)
    if replicas.num_replicas > 1:
        raise PlanError(
            f"{type(model).__name__} overrides {own[0]}, so its steps cannot be split over replicas. Received: a model "
            f"with {replicas.num_replicas} replicas. Override train_step, test_step or predict_step instead, or build "
            "the model outside of any strategy."
        )
    logger.info("%s overrides %s: Keras's own loop runs its steps.", type(model).__name__, own[0])
    return True


def refuse_own_methods(model: keras.Model, made_by: str) -> None:
    """Raises WorkloadError for a model with methods of its own that `train` never calls.

    A KerasHub task without a preprocessor has nothing to prepare, and is accepted.
    """
    own = [name for name in (*_METHODS, *_FUNCTIONS["fit"]) if overrides(model, name)]
    if own and getattr(model, "preprocessor", model) is not None:
        raise WorkloadError(
            f"{made_by} returns a {type(model).__name__}, which overrides {', '.join(own)}: tfaccel.train and searches "
            "read the workload's own data and never call them. Use tfaccel.fit, which does, or prepare the data in the "
            "workload and return a model without overrides (a KerasHub task with preprocessor=None)."
        )
