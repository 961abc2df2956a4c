"""The compile arguments of a user's model: after it in a call, or by name, and made afresh for each use.

Their places in a call are checked before Python refuses it less clearly.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from tfaccel.argument_types import type_check
from tfaccel.data.given_data import leaves
from tfaccel.errors import WorkloadError
from tfaccel.known_names import check_names, did_you_mean
from tfaccel.planning.own_model import COMPILE_ARGUMENTS, OF_THE_PLAN, Deferred, RebuiltModel, is_model
from tfaccel.planning.plan import plan_field_names
from tfaccel.planning.plan_checks import OTHER_NAMES, PRECISION
from tfaccel.planning.private_models import given_compile_arguments

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_TOGETHER = "compile_args"  # the name under which a function in the second place goes on
# Arguments of `Model.fit` that have another place here.
_OF_FIT = {
    "steps_per_epoch": "An epoch is all of the data: give `dataset.take(n)`.",
    "initial_epoch": 'A run goes on by itself: tfaccel.train(..., resume="auto").',
    "validation_steps": "Validation uses all of its data: give `dataset.take(n)`.",
    "validation_batch_size": "Validation uses the batch size of training, or that of its own dataset.",
    "validation_freq": "Validation comes after each epoch.",
    "verbose": "It is an argument of tfaccel.train.",
}
_VALUES = {
    "precision": "bf16",
    "strategy": "mirrored",
    "jit_compile": True,
    "devices": 2,
    "accumulation_steps": 2,
}
# Arguments of `train` and `Workload.of` that stand beside those of `Model.compile`.
_BESIDE = (
    *("run_dir", "plan", "epochs", "seed", "resume", "checkpoint_interval", "callbacks", "batch_size", "shuffle"),
    *(
        "validation_data",
        "validation_split",
        "sample_weight",
        "class_weight",
        "on_nonfinite",
        "num_workers",
        "validate_on",
    ),
)


def data_after_model(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a function that takes (model, x, y), and compile arguments by name.

    The decorated one also takes (model, compile_args, x, y): a dictionary with arguments of `Model.compile`, which go
    on by their names, or a function that returns one, which goes on as `compile_args`. In other places they are
    refused with a WorkloadError that shows the right call. So are arguments of the wrong type (see `checks_types`),
    except for a classmethod.

    Example:
        >>> @data_after_model
        ... def measured(workload, x=None, y=None, **options):
        ...     return options
        >>> measured(object, [1.0], [0.0], loss="mse"), measured(object, {"loss": "mse"}, [1.0], [0.0])
        ({'loss': 'mse'}, {'loss': 'mse'})
        >>> measured(object, [1.0], [0.0], {"loss": "mse"})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: ... Write measured(build_model, compile_args, x, y).
    """
    is_of_class = next(iter(inspect.signature(function).parameters)) == "cls"
    check_types = type_check(function, WorkloadError)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> _Result:
        placed, named = _in_place(function.__qualname__, args[is_of_class:], kwargs)
        if not is_of_class:
            check_types(*placed, **named)
        return function(*args[:is_of_class], *placed, **named)

    return checked


def _in_place(name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The model and its data by place, and everything else by name.

    Raises:
        WorkloadError: for compile arguments in the place of data, or without data, or given twice.
    """
    if not given or not (callable(given[0]) or is_model(given[0])):
        return list(given), dict(named)
    model, *data = given
    right = f"Write {name}(build_model, compile_args, x, y)."
    if data and _are_compile_arguments(data[0]):
        together, *data = data
        if (data[0] if data else named.get("x")) is None:
            raise WorkloadError(
                f"Compile arguments come with the data of a model. Received: {_text(together)} without x. {right}"
            )
        named = _with_named(together, named)
    for place, value in enumerate(data, start=len(given) - len(data) + 1):
        if _are_compile_arguments(value) or (callable(value) and not hasattr(value, "shape")):
            raise WorkloadError(
                "Compile arguments come directly after the model, or are passed by name; x and y come after them. "
                f"Received: {_text(value)} as argument {place}. {right}"
            )
    return [model, *data], dict(named)


def _are_compile_arguments(value: Any) -> bool:
    """Whether a value is a dictionary of compile arguments, or a function that may return one.

    A dictionary of arrays, or of lists of numbers, may have the same names.
    """
    if isinstance(value, Mapping):
        parts = [leaf for name, part in value.items() if name != "loss_weights" for leaf in leaves(part)]
        is_data = any(hasattr(leaf, "shape") or type(leaf) in (int, float) for leaf in parts)
        return not is_data and any(name in COMPILE_ARGUMENTS for name in value)
    return callable(value) and not hasattr(value, "shape") and not isinstance(value, type) and not is_model(value)


def _with_named(together: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, together with those of a dictionary or with a function."""
    if not isinstance(together, Mapping):
        together = {_TOGETHER: together}
    else:
        known = (*COMPILE_ARGUMENTS, *OF_THE_PLAN)
        check_names(together, known, WorkloadError, "Model.compile has no argument {!r}.")
    for one in together:
        if one in named:
            raise WorkloadError(
                f"{one} is given twice: after the model and by name. Received: {together[one]!r:.100} and "
                f"{named[one]!r:.100}. Leave out one of them."
            )
    return {**named, **together}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dictionary of compile arguments ({', '.join(map(str, value))})"
    return f"the function {getattr(value, '__name__', type(value).__name__)}"


def compile_function(
    build_model: Callable[[], Any], given: Mapping[str, Any]
) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
    """The `compile_args` of a workload, and what of it must not change when a run is resumed, as JSON values.

    Args:
        build_model: that of the workload.
        given: compile arguments by name, or `compile_args`, a function that returns them. Empty for a model that is
            compiled.

    Raises:
        WorkloadError: for unknown arguments, and for arguments beside the function that returns all of them.

    Example:
        >>> function, identity = compile_function(object, {"loss": "mse"})
        >>> function(), identity
        ({'loss': 'mse'}, {'loss': 'mse'})
    """
    named = dict(given)
    function = named.pop(_TOGETHER, None)
    if isinstance(function, Mapping):
        named, function = _with_named(function, named), None
    if function is None:
        named = {**build_model.compile_args, **named} if isinstance(build_model, RebuiltModel) else named
        fresh = FreshArguments(named)
        return (fresh, fresh.identity) if named else (CompiledByModel(build_model), {})
    if not callable(function):
        raise WorkloadError(
            "compile_args must be a dict of arguments of Model.compile, or a function that returns one. "
            f"Received: compile_args={function!r:.200}."
        )
    if named:
        raise WorkloadError(
            f"{_text(function)} returns all compile arguments. Received as well: {', '.join(named)}. Return them too."
        )
    return function, {_TOGETHER: described(function)}


class CompiledByModel:
    """The `compile_args` of a workload whose `build_model` returns a compiled model: that model's compile arguments.

    Args:
        build_model: that of the workload.
    """

    def __init__(self, build_model: Callable[[], Any]) -> None:
        self._build_model = build_model

    def __call__(self) -> dict[str, Any]:
        """The arguments, with fresh objects at every call."""
        model = self._build_model()
        if not getattr(model, "compiled", False):
            raise WorkloadError(
                "build_model returns a model that is not compiled. Call `model.compile(...)` in it, or give optimizer, "
                "loss and metrics beside the data."
            )
        arguments = given_compile_arguments(model)
        return {name: value for name, value in arguments.items() if name not in OF_THE_PLAN}


class FreshArguments(Deferred[dict[str, Any]]):
    """The `compile_args` of a workload, from arguments of `Model.compile`.

    Stateful objects are recreated at every call: optimizers and metrics from their config, or by a function given in
    their place.

    Args:
        arguments: those of `Model.compile`. A class, or a function with no argument or only `num_steps`, is called.

    Raises:
        WorkloadError: for an unknown argument, or one that the plan decides.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        for name in OF_THE_PLAN:
            if name in arguments:
                raise WorkloadError(
                    f"The plan decides {name}: leave it out, or set it in the plan: tfaccel.train(..., {name}=...)."
                )
        for name in arguments:
            if name not in COMPILE_ARGUMENTS:
                raise WorkloadError(f"There is no argument {name!r}{advice(name, COMPILE_ARGUMENTS)}")
        super().__init__(dict(arguments))

    def __call__(self, num_steps: int | None = None) -> dict[str, Any]:
        """The arguments for a run of `num_steps` optimizer steps."""
        return {name: _fresh(name, value, num_steps) for name, value in self.get().items()}

    @property
    def identity(self) -> dict[str, Any]:
        """The arguments as JSON values, which must not change when a run is resumed."""
        return {name: described(value) for name, value in self.get().items()}


def _fresh(name: str, value: Any, num_steps: int | None) -> Any:
    if isinstance(value, Mapping):
        return {key: _fresh(name, part, num_steps) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_fresh(name, part, num_steps) for part in value)
    if isinstance(value, type):
        return value()
    if name in ("optimizer", "metrics", "weighted_metrics") and hasattr(value, "get_config"):
        try:
            return type(value).from_config(value.get_config())
        except Exception as error:  # whatever the user's class raises
            raise WorkloadError(
                f"{name}: each use needs a new {type(value).__name__}, and it cannot be recreated from its config "
                f"({type(error).__name__}: {error}). Pass a function that makes one: {name}=lambda: ..."
            ) from error
    makes = None if not callable(value) or hasattr(value, "get_config") else _arguments_of_maker(value, num_steps)
    if makes is None:
        return value
    if None in makes.values():
        raise WorkloadError(
            f"{name} takes num_steps, but the number of batches in an epoch is not known. Give the dataset a length "
            "(`tf.data.experimental.assert_cardinality`)."
        )
    return value(**makes)


def _arguments_of_maker(function: Any, num_steps: int | None) -> dict[str, Any] | None:
    """The arguments for a function that makes an object; None for a loss or metric function, which takes more."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    for arguments in ({"num_steps": num_steps}, {}):
        try:
            signature.bind(**arguments)
        except TypeError:
            continue
        if "num_steps" in arguments and "num_steps" not in signature.parameters:
            continue
        return arguments
    return None


def described(value: Any) -> Any:
    """A compile argument as JSON values: classes with their configs, functions by their names."""
    if isinstance(value, Mapping):
        return {str(name): described(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [described(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "get_config") and not isinstance(value, type):
        config = json.loads(json.dumps(value.get_config(), default=described))
        config.pop("name", None)  # Keras numbers objects in it
        return {"class": type(value).__qualname__, "config": config}
    return getattr(value, "__qualname__", type(value).__qualname__)


def advice(name: str, known: tuple[str, ...]) -> str:
    """What to write in place of an unknown argument, as the end of a sentence.

    Args:
        name: the unknown argument.
        known: those that it may be instead, such as the ones of `Model.compile`.

    Example:
        >>> advice("optimiser", ("optimizer", "loss"))
        ". Did you mean 'optimizer'?"
    """
    if name in _OF_FIT:
        return f". {_OF_FIT[name]}"
    if name in OTHER_NAMES:
        field = OTHER_NAMES[name]
        return f". Here it is a field of the plan: tfaccel.train(..., {field}={_VALUES[field]!r})."
    if name in (*plan_field_names(), PRECISION):
        return f", since it is a field of the plan. Pass it to the verb: tfaccel.train(..., {name}=...)."
    field = did_you_mean(name, (*plan_field_names(), PRECISION), closeness=0.8)
    return "." + (field or did_you_mean(name, (*known, *_BESIDE)) or f" Options: {', '.join(known)}.")
