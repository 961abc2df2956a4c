"""Models with their own `fit`, `evaluate` or `predict`: the own method runs, and the engine runs the steps.

A class overrides these methods to prepare its data, as KerasHub tasks do, and then calls `super().fit(...)`; a library
patches `keras.Model.fit` to add a callback, and then calls what it has replaced. Either way, the call of Keras's method
becomes one of the engine's.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import keras

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.plan import plan_field_names
from tfaccel.training.private.private_api import changed_class
from tfaccel.training.private.private_trainer import methods_in_place_of_keras
from tfaccel.training.steps.overrides import has_own, replaces
from tfaccel.training.steps.replicas import Replicas

logger = logging.getLogger("tfaccel")

_METHODS = ("fit", "evaluate", "predict")
_FUNCTIONS = {
    "fit": ("make_train_function", "make_test_function"),
    "evaluate": ("make_test_function",),
    "predict": ("make_predict_function",),
}
_ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
_reached: set[tuple[int, str]] = set()  # the models, by id, and the own methods of theirs that have reached the engine


def overrides(model: keras.Model, name: str) -> bool:
    """Whether a model has another method than `keras.Model` defines."""
    return replaces(model, keras.Model, name)


def call_own_method(
    model: keras.Model, name: str, arguments: dict[str, Any], engine_methods: dict[str, Callable[..., Any]]
) -> Any:
    """Calls a model's own method, with its calls of Keras's methods redirected to the engine.

    If the own method is what calls tfaccel, as in `def fit(self, ...): return tfaccel.fit(self, ...)`, the engine runs.

    Args:
        model: a model that `overrides` the method.
        name: "fit", "evaluate" or "predict".
        arguments: the user's arguments, by name.
        engine_methods: replacements for the methods of `keras.Model`, by name; each takes the model first.

    Raises:
        PlanError: with several replicas, if the own method trains without calling Keras's.
    """
    plain = type(model)

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
            _reached.add((id(self), name))
            with changed_class(self, plain), methods_in_place_of_keras(self, {}):
                return method(self, *args, **kwargs)

        return call

    methods = {one: noted(method) for one, method in engine_methods.items()}
    if _is_running(model, name):
        return methods[name](model, **arguments)
    several = Replicas(model.distribute_strategy).num_replicas > 1
    refused = {one: _refusing(plain, name, one) for one in _ON_BATCH} if several else {}
    base = type("EngineMethods", (keras.Model,), refused)
    with (
        changed_class(
            model, type(plain.__name__, (plain, base), {"__module__": plain.__module__}) if several else plain
        ),
        methods_in_place_of_keras(model, methods),
    ):
        result = getattr(model, name)(**arguments)
    reached = (id(model), name) in _reached
    _reached.discard((id(model), name))
    if several and not reached:
        raise PlanError(
            f"{plain.__name__}.{name} never called super().{name}(...), so its steps ran without the strategy. "
            f"Call super().{name}(...) to run the steps, or build the model outside of any strategy."
        )
    return result


def _is_running(model: keras.Model, name: str) -> bool:
    """Whether a model's own method is among the callers of this thread."""
    methods = [vars(kind)[name] for kind in type(model).__mro__ if name in vars(kind)]
    methods += [vars(model)[name]] if has_own(model, name) else []
    codes = {getattr(one, "__code__", None) for method in methods for one in (method, inspect.unwrap(method))}
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if frame.f_code in codes and module != "keras" and any(one is model for one in frame.f_locals.values()):
            return True
        frame = frame.f_back
    return False


def _refusing(plain: type, name: str, method: str) -> Callable[..., Any]:
    def refuse(self: keras.Model, *_: Any, **__: Any) -> Any:
        raise PlanError(
            f"{plain.__name__}.{name} calls {method}, which Keras cannot split over replicas. Received: a model with "
            f"{Replicas(self.distribute_strategy).num_replicas} replicas. Call super().{name}(...) to run the steps, "
            "or build the model outside of any strategy."
        )

    return refuse


def given_arguments(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for the method of `keras.Model` that a function stands for, without those left at their defaults.

    An own method may take fewer, and others, which `own` holds.

    Raises:
        TypeError: for other arguments, if the model has no method of its own that takes them.
    """
    known = inspect.signature(function).parameters
    own, model, name = arguments["own"], arguments["model"], function.__name__
    if own and not (isinstance(model, keras.Model) and overrides(model, name)):
        odd = next(iter(own))
        hint = did_you_mean(odd, [one for one in known if one not in ("model", "own")])
        if odd in plan_field_names():
            hint = f" Pass a plan (plan=...), or train with tfaccel.train(build_model, x, y, {odd}=..., run_dir=...)."
        raise TypeError(f"tfaccel.{name} has no argument {odd!r}.{hint}")
    return own | {
        one.name: arguments[one.name]
        for one in known.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "model" and arguments[one.name] is not one.default
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
    names = (*_METHODS, *_FUNCTIONS["fit"])
    own = [name for name in names if replaces(model, keras.Model, name, counts_patches=False)]
    if own and getattr(model, "preprocessor", model) is not None:
        raise WorkloadError(
            f"{made_by} returns a {type(model).__name__}, which overrides {', '.join(own)}: tfaccel.train and searches "
            "read the workload's own data and never call them. Use tfaccel.fit, which does, or prepare the data in the "
            "workload and return a model without overrides (a KerasHub task with preprocessor=None)."
        )
