"""The workload and the space of a search, as worker processes load them, and the default space of a workload."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from tfaccel.errors import SearchError
from tfaccel.planning.load_workload import as_workload, check_function
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.workload import Workload
from tfaccel.training.training_options import SCHEDULES, TrainingOptions

# Architecture: integers, tried at half, default and double.
SIZES = ("width", "latent_size", "num_filters", "units")
# Architecture: integers, tried at default - 1, default and default + 1.
DEPTHS = ("num_blocks", "num_layers", "num_stages")
# Architecture: widths to try for an optional layer (0: no layer).
OPTIONAL_SIZES = {"head_width": (0, 64, 256)}
# Architecture and augmentation: parameters whose type names the choices.
CHOICES = ("model", "augmentation")
# Regularization: fractions from 0 to 1, with the maximum to try.
PARTS = {"dropout": 0.6, "token_dropout": 0.6, "label_smoothing": 0.2}
_OPTIMIZERS = ("adamw", "lion", "rmsprop", "sgd")
_SPAN = (1 / 30, 10.0)  # range of learning rates and weight decays, relative to the workload's
_USUAL_DECAY = 0.01

Space = Callable[[Any], dict[str, Any]]
_Maker = tuple[str, Callable[[Any], Any]]  # the name of an argument, and what asks `hp` for its value


@dataclass(frozen=True, kw_only=True)
class SearchSource:
    """The workload and the space of a search.

    Args:
        workload: a recipe, a function that returns a `Workload`, or a `Workload`.
        space: `build(hp)` (a compiled model), a `HyperModel`, or `space(hp)` (arguments of the workload's function);
            "none" for the default space of the workload's function.
        origin: where the workers load these from.
        tuner: a subclass of `keras_tuner.Tuner` whose `run_trial` runs the trials; "none" otherwise.
        training: a dictionary of callbacks, optimizer, loss and metrics; "none" without any.
    """

    workload: Reference
    space: Reference
    origin: Origin
    tuner: Reference = field(default_factory=lambda: Reference(kind="none"))
    training: Reference = field(default_factory=lambda: Reference(kind="none"))

    @classmethod
    def of(cls, workload: Any, space: Any, *, tuner: Any = None, training: Mapping[str, Any] | None = None) -> Self:
        """Creates the source from the arguments of `search`; SearchError for what no other process can load."""
        if tuner is None and isinstance(space, type) and hasattr(space, "run_trial"):
            tuner, space = space, None
        for thing in (space, tuner):
            if hasattr(thing, "run_trial") and not isinstance(thing, type):
                raise SearchError(
                    f"Pass the class {type(thing).__name__}, not an instance: the search creates one in each worker. "
                    "The constructor arguments of Keras Tuner's tuners are options of the search."
                )
        if workload is None and tuner is None and not isinstance(space, str):
            raise SearchError("A search needs a workload, which provides the data. Received: workload=None.")
        if isinstance(workload, Workload) and space is None and tuner is None:
            raise _nothing_to_search(workload)
        given = [value if isinstance(value, list | tuple) else [value] for value in (training or {}).values()]
        origin, by_value = Origin.of([workload, space, tuner, *itertools.chain.from_iterable(given)])
        how: dict[str, Any] = {"by_value": by_value, "error_type": SearchError}
        return cls(
            workload=Reference.of(workload, "workload", plain_name="recipe", **how),
            space=Reference.of(space, "space", **how),
            origin=origin,
            tuner=Reference.of(tuner, "tuner", **how),
            training=Reference.by_pickle(dict(training), "training", **how) if training else Reference(kind="none"),
        )

    def make_workload(self, options: Mapping[str, Any]) -> Workload:
        """Creates the workload with these arguments; `global_batch_size` overrides its recommendation.

        Raises:
            WorkloadError: if it does not exist, does not accept these arguments, or is not a workload.
        """
        if self.workload.kind == "none":
            return Workload("no_data", object, dict, _no_data, global_batch_size=1)
        arguments = dict(options)
        batch_size = arguments.pop("global_batch_size", None)
        given = self.workload.load(SearchError)
        if not isinstance(given, Workload):
            check_function(self.workload.name, given)
        is_named = self.workload.kind in ("recipe", "import")
        made = as_workload(self.workload.import_path() if is_named else given, **arguments)
        return made if batch_size is None else replace(made, global_batch_size=batch_size)

    def workload_function(self) -> Callable[..., Any]:
        """The function that creates the workload; SearchError for a `Workload`, which no arguments change."""
        function: Callable[..., Any] = self.workload.load(SearchError)
        if isinstance(function, Workload):
            raise _nothing_to_search(function)
        return function


def _nothing_to_search(workload: Workload) -> SearchError:
    return SearchError(
        f"The Workload {workload.name!r} has no arguments to search. Pass a space, build(hp), that returns a compiled "
        "model; or, instead of the Workload, the function that creates it from arguments."
    )


def _no_data(*args: Any, **kwargs: Any) -> Any:
    raise SearchError("This search has no workload, so it has no data.")


def recipe_space(function: Callable[..., Any], workload: Workload, *, fixed: Collection[str] = ()) -> Space:
    """The space of a workload's function: `space(hp)` returns arguments for it.

    Searches whichever of these the function accepts: architecture (`model`, `width`, `num_blocks` ...), augmentation,
    regularization (`dropout`, `label_smoothing` ..., `weight_decay`), and the training options `optimizer`,
    `learning_rate` and `schedule`; and, if there is at least one, the global batch size. Defaults are those of the
    function and the workload.

    Args:
        function: creates the workload from its arguments.
        workload: the workload that it creates with the fixed arguments.
        fixed: names of fixed arguments and plan fields, which are not searched.
    """
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    taken = {name: p.default for name, p in parameters.items() if name not in fixed}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    training = {entry.name for entry in fields(TrainingOptions)} - set(fixed) if takes_any else set(taken)
    makers = _own_parameters(taken, hints) + _training_options(training, workload)
    if not makers:
        raise SearchError(
            f"The function of workload {workload.name!r} has no parameter that the default space searches. Pass "
            "a space: a function space(hp) that returns arguments for it, or build(hp) that returns a compiled model."
        )

    if "global_batch_size" not in fixed:
        makers.append(_doubled("global_batch_size", workload.global_batch_size))

    def space(hp: Any) -> dict[str, Any]:
        return {name: make(hp) for name, make in makers}

    return space


def _choice(name: str, values: list[Any], default: Any) -> _Maker:
    return name, lambda hp: hp.Choice(name, values, default=default)


def _doubled(name: str, default: int) -> _Maker:
    return _choice(name, sorted({max(1, default // 2), default, default * 2}), default)


def _own_parameters(taken: dict[str, Any], hints: dict[str, Any]) -> list[_Maker]:
    makers: list[_Maker] = []
    for name, default in taken.items():
        values = list(get_args(hints.get(name))) if get_origin(hints.get(name)) is Literal else []
        if name in CHOICES and values:
            makers.append(_choice(name, values, default))
        elif name in SIZES and type(default) is int:
            makers.append(_doubled(name, default))
        elif name in OPTIONAL_SIZES and type(default) is int:
            makers.append(_choice(name, sorted({*OPTIONAL_SIZES[name], default}), default))
        elif name in DEPTHS and type(default) is int:
            makers.append(_choice(name, list(range(max(1, default - 1), default + 2)), default))
        elif name in PARTS and isinstance(default, float):
            makers.append(_part(name, max(PARTS[name], default), default))
    return makers


def _part(name: str, most: float, default: float) -> _Maker:
    return name, lambda hp: hp.Float(name, 0.0, most, default=default)


def _training_options(names: Collection[str], workload: Workload) -> list[_Maker]:
    own = {name: workload.options[name] for name in names if name in workload.options}
    makers: list[_Maker] = []
    usual = own.get("optimizer") or TrainingOptions().optimizer
    if "optimizer" in own:
        makers.append(_choice("optimizer", sorted({*_OPTIMIZERS, usual}), usual))
    if "learning_rate" in own:
        makers.append(_around("learning_rate", own["learning_rate"] or _usual_rate(workload)))
    if "schedule" in own:
        makers.append(_choice("schedule", list(SCHEDULES), own["schedule"] or SCHEDULES[0]))
    if "weight_decay" in own:
        makers.append(_around("weight_decay", own["weight_decay"] or _usual_decay(workload)))
    return makers


def _usual_rate(workload: Workload) -> float:
    """The default learning rate of a workload."""
    names = ("optimizer", "learning_rate_factor")
    options = {name: workload.options[name] for name in names if workload.options.get(name)}
    return TrainingOptions(**options).peak_learning_rate


def _usual_decay(workload: Workload) -> float:
    """The weight decay that a recipe's own `decay_per_run` gives over its recommended run, or the default."""
    per_run = workload.options.get("decay_per_run")
    if per_run in (None, TrainingOptions.decay_per_run) or workload.epochs is None:
        return _USUAL_DECAY
    rate = workload.options.get("learning_rate") or _usual_rate(workload)
    steps_per_epoch = max(1, (workload.num_train_examples or 0) // workload.global_batch_size)
    return float(per_run / (workload.epochs * steps_per_epoch * rate))


def _around(name: str, default: float) -> _Maker:
    least, most = (float(f"{default * factor:.1e}") for factor in _SPAN)
    return name, lambda hp: hp.Float(name, least, most, sampling="log", default=default)
