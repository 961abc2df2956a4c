"""Who runs `fit`, `evaluate` and `predict`: the engine, or first a model's own method, or Keras's loop.

A class overrides these methods to prepare its data, as KerasHub tasks do, and then calls `super().fit(...)`; a library
patches `keras.Model.fit` to add a callback, and then calls what it has replaced. Either way, the call of Keras's method
becomes one of the engine's.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import keras

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.plan import plan_field_names
from tfaccel.training.inputs import prepared_model
from tfaccel.training.private.private_api import changed_class
from tfaccel.training.private.private_trainer import methods_in_place_of_keras
from tfaccel.training.steps.overrides import has_own, replaces
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lost_worker import lost_workers_named

logger = logging.getLogger("tfaccel")

_Body = TypeVar("_Body", bound=Callable[..., Any])

_METHODS = ("fit", "evaluate", "predict")
_FUNCTIONS = {
    "fit": ("make_train_function", "make_test_function"),
    "evaluate": ("make_test_function",),
    "predict": ("make_predict_function",),
}
_ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
_OWN = "own"  # the parameter that holds what only a model's own method knows
_on_engine: dict[str, Callable[..., Any]] = {}  # what runs in place of Keras's method, by name
_reached: set[tuple[int, str]] = set()  # the models, by id, and the own methods of theirs that have reached the engine


def on_engine(
    settle: Callable[[keras.Model, dict[str, Any], bool], None] = lambda *_: None,
) -> Callable[[_Body], _Body]:
    """A decorator: a function stands for the method of `keras.Model` of the same name, and its body is the engine's.

    A model's own method runs if there is one, and its calls of Keras's method reach the body. If the model replaces a
    part of Keras's loop (`make_train_function` or a similar method), that loop runs in place of the body.

    Args:
        settle: called with the model, the user's arguments by name and whether it is Keras's loop that runs, before
            anything else than the body does; may change the arguments.
    """

    def decorate(body: Any) -> Any:
        name, signature = body.__name__, inspect.signature(body)
        checked = checks_types(WorkloadError, checks_numbers=True)(body)
        of_keras, of_tfaccel = (
            [one.name for one in signature.parameters.values() if one.kind is kind and one.name != "model"]
            for kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        )

        def given_by_user(model: Any, args: Any, kwargs: Any) -> dict[str, Any]:
            bound = signature.bind(model, *args, **kwargs).arguments
            given = {**bound, **bound.get(_OWN, {})}
            return {key: value for key, value in given.items() if key not in ("model", _OWN)}

        def run(model: Any, *args: Any, **kwargs: Any) -> Any:
            _refuse_unknown(name, signature, kwargs)
            prepared_model(model, name)
            if not needs_keras_loop(model, name):
                return checked(model, *args, **kwargs)
            given = given_by_user(model, args, kwargs)
            settle(model, given, True)
            return getattr(keras.Model, name)(model, **{key: given[key] for key in of_keras if key in given})

        @functools.wraps(body)
        def method(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(model, keras.Model):
                return run(model, *args, **kwargs)
            with lost_workers_named(model.distribute_strategy):
                if not overrides(model, name):
                    return run(model, *args, **kwargs)
                given = given_by_user(model, args, kwargs)
                settle(model, given, False)
                ours = {key: given.pop(key) for key in of_tfaccel if key in given}
                own = {key: one for key, one in given.items() if key not in of_keras or not is_default(key, one)}
                return call_own_method(model, name, own, methods_on_engine(name, ours))

        def is_default(key: str, value: Any) -> bool:
            return value is signature.parameters[key].default

        _on_engine[name] = run
        return checks_types(WorkloadError)(method)

    return decorate


def methods_on_engine(name: str, options: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """What stands for Keras's methods while a model's own method of a name runs: `fit` evaluates, and so on.

    Args:
        name: "fit", "evaluate" or "predict".
        options: arguments of tfaccel's own, for this one; `check_rows` is passed to the others too.
    """
    every = {key: value for key, value in options.items() if key == "check_rows"}
    names = _METHODS[_METHODS.index(name) :]
    return {one: functools.partial(_on_engine[one], **(options if one == name else every)) for one in names}


def _refuse_unknown(name: str, signature: inspect.Signature, given: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument that neither Keras nor tfaccel knows."""
    known = [one for one in signature.parameters if one != _OWN]
    odd = next((one for one in given if one not in known), None)
    if odd is None:
        return
    hint = did_you_mean(odd, [one for one in known if one != "model"])
    if odd in plan_field_names():
        hint = f" Pass a plan (plan=...), or train with tfaccel.train(build_model, x, y, {odd}=..., run_dir=...)."
    raise TypeError(f"tfaccel.{name} has no argument {odd!r}.{hint}")


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
