"""The decorator `recipe`, which turns a function that returns a workload into a recipe."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from tfaccel.data.bad_data import BadData
from tfaccel.errors import WorkloadError
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import advice
from tfaccel.training.recipe_options import bound_options, check_data_options, recorded_options
from tfaccel.training.run.result import TrainResult
from tfaccel.training.run_recipe import run_recipe
from tfaccel.training.training_options import TrainingOptions
from tfaccel.training.verdict.baseline_scores import BaselineScores

_ShowResult = Callable[[Any, TrainResult], BaselineScores | None]

_TRAINING = "training"  # the parameter that takes the training options
_BAD_DATA = "bad_data"  # the parameter that takes a `BadData`
_OF_BAD_DATA = ("on_bad_data", "max_bad_fraction")  # the options that it is made of


def recipe(
    *,
    not_recorded: tuple[str, ...] = (),
    data_dir_only: tuple[str, ...] = (),
    bundled_only: tuple[str, ...] = (),
    **training_defaults: Any,
) -> Callable[[Callable[..., Workload]], Recipe]:
    """Turns a function that returns a `tfaccel.Workload` into a recipe.

    Each parameter of the function is keyword-only and is an option. It becomes a flag of `tfaccel train`, whose help
    is the comment beside or above the parameter, or its entry in the docstring's `Args` section. Its annotation
    determines the allowed values: `bool`, `int`, `float`, `str`, a `Literal`, `Count` or `Fraction` of
    `tfaccel.options`, or one of these or None. Options are recorded, a `tfaccel.options.DataPath` as an absolute
    path: a run resumes only with the same options.

    A parameter `bad_data` receives the `tfaccel.data.BadData` for whatever reads the user's data, made of the options
    `on_bad_data` and `max_bad_fraction`. A parameter `training` receives the `tfaccel.options.TrainingOptions`, whose
    fields are options too (`optimizer`, `learning_rate`, ...). They also provide early stopping, unless the workload
    has its own `callbacks`. The workload is named after the last part of the name that the function sets, so
    `name=__name__` names it after its file.

    Args:
        not_recorded: options that do not affect results, such as where examples are cached.
        data_dir_only: options that apply only to the user's own data, and are refused without `data_dir`.
        bundled_only: options that apply only to the bundled data, and are refused with `data_dir`.
        **training_defaults: the recipe's defaults for fields of `TrainingOptions`; or `adamw_learning_rate`, a learning
            rate for AdamW only. A value may be a function whose parameters are names of options.

    Returns:
        A `Recipe`. Call it to get the workload, or call its `run` to train.

    Example:
        >>> @recipe(adamw_learning_rate=1e-3)
        ... def workload(*, width: int = 8, training: TrainingOptions) -> Workload:
        ...     return Workload(__name__, object, dict, lambda *args, **kwargs: None, global_batch_size=32)
        >>> workload(width=16, optimizer="sgd").options["optimizer"], workload().options["learning_rate"]
        ('sgd', 0.001)
    """
    return lambda function: Recipe(
        function,
        not_recorded=not_recorded,
        data_dir_only=data_dir_only,
        bundled_only=bundled_only,
        training_defaults=training_defaults,
    )


class Recipe:
    """A function that builds a workload from options, and shows the results of its runs. Created by `recipe`."""

    def __init__(
        self,
        function: Callable[..., Workload],
        *,
        not_recorded: tuple[str, ...],
        data_dir_only: tuple[str, ...],
        bundled_only: tuple[str, ...],
        training_defaults: Mapping[str, Any],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._not_recorded = not_recorded
        self._data_dir_only = data_dir_only
        self._bundled_only = bundled_only
        self._training_defaults = training_defaults
        self._shows: _ShowResult | None = None
        parameters = dict(inspect.signature(function).parameters)
        self._takes_training = parameters.pop(_TRAINING, None) is not None
        self._takes_bad_data = parameters.pop(_BAD_DATA, None) is not None
        self._own = tuple(parameters)
        if self._takes_bad_data:
            defaults = BadData()
            for name in _OF_BAD_DATA:
                value = getattr(defaults, name)
                parameters[name] = inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=type(value)
                )
        if self._takes_training:
            rest = inspect.Parameter("training_options", inspect.Parameter.VAR_KEYWORD, annotation=Any)
            parameters[rest.name] = rest
        self.__signature__ = inspect.signature(function).replace(parameters=list(parameters.values()))

    def __call__(self, **options: Any) -> Workload:
        """Builds the workload from options.

        Raises:
            WorkloadError: for an unknown option or an invalid value.
        """
        self._check_names(options)
        bad_data = self._bad_data(options)
        options = {name: value for name, value in options.items() if bad_data is None or name not in _OF_BAD_DATA}
        own = {name: value for name, value in options.items() if name in self._own or not self._takes_training}
        given = {name: value for name, value in options.items() if name not in own}
        bound = bound_options(self._function, own, beside=(_TRAINING, _BAD_DATA))
        check_data_options(self._function, bound, data_dir_only=self._data_dir_only, bundled_only=self._bundled_only)
        training = self._training(bound, given) if self._takes_training else None
        made = {_TRAINING: training, _BAD_DATA: bad_data}
        work = self._function(**bound, **{name: value for name, value in made.items() if value is not None})
        kept = {name: value for name, value in bound.items() if name not in self._not_recorded}
        name = work.name.rpartition(".")[2]
        return replace(
            work,
            name=Path(self._function.__code__.co_filename).stem if name == "__main__" else name,
            show_result=self._shows if work.show_result is None else work.show_result,
            bad_data=bad_data if work.bad_data is None else work.bad_data,
            callbacks=training.callbacks if work.callbacks is None and training is not None else work.callbacks,
            options={
                **({} if training is None else asdict(training)),
                **recorded_options(self._function, kept),
                **({} if bad_data is None else {name: getattr(bad_data, name) for name in _OF_BAD_DATA}),
                **work.options,
            },
        )

    @property
    def recorded_names(self) -> frozenset[str]:
        """The names of the options that a run records, and that rebuild the run's workload."""
        training = [field.name for field in fields(TrainingOptions)] if self._takes_training else []
        of_bad_data = _OF_BAD_DATA if self._takes_bad_data else ()
        return frozenset([*self._own, *of_bad_data, *training]) - frozenset(self._not_recorded)

    def run(self, *, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
        """Trains the workload. Writes the files of `tfaccel.train`, and the recipe's own results, to `run_dir`.

        Args:
            run_dir: as in `tfaccel.train`.
            **options: options of the recipe and of `tfaccel.train` (`plan`, `epochs`, `seed`, `resume`, ...), and
                fields of the plan if none is given.
        """
        return run_recipe(self, run_dir=run_dir, **options)

    def show_result(self, function: _ShowResult) -> _ShowResult:
        """A decorator for the function that shows the result of a run of this recipe.

        `function(workload, result)` writes to `result.run_dir`, and returns the `tfaccel.reporting.BaselineScores` for
        the verdict, or None. With several workers, only the chief calls it.
        """
        self._shows = function
        return function

    def _check_names(self, options: Mapping[str, Any]) -> None:
        """Raises WorkloadError for an option that neither the recipe nor the options of training have."""
        training = [field.name for field in fields(TrainingOptions)] if self._takes_training else []
        known = (*self._own, *(_OF_BAD_DATA if self._takes_bad_data else ()), *training)
        for name in options:
            if name not in known:
                raise WorkloadError(f"There is no option {name!r}{advice(name, known)}")

    def _bad_data(self, options: Mapping[str, Any]) -> BadData | None:
        """What to do with damaged data, from the options; None if the recipe does not take it.

        Raises:
            WorkloadError: if the options have no effect.
            DataError: for an invalid value.
        """
        if not self._takes_bad_data:
            return None
        given = {name: options[name] for name in _OF_BAD_DATA if name in options}
        bad_data, defaults = BadData(**given), BadData()
        changed = [name for name in given if getattr(bad_data, name) != getattr(defaults, name)]
        if changed and options.get("data_dir") is None:
            raise WorkloadError(
                f"`{changed[0]}` is for your own data. Received: {changed[0]}={given[changed[0]]!r} without data_dir. "
                f"Add data_dir, or leave {changed[0]} out."
            )
        if changed and not bad_data.skips:
            raise WorkloadError(
                f'`{changed[0]}` has no effect without on_bad_data="skip" (--on_bad_data=skip). '
                f"Received: {changed[0]}={given[changed[0]]!r}. Leave it out, or skip what is damaged."
            )
        return bad_data

    def _training(self, options: Mapping[str, Any], given: Mapping[str, Any]) -> TrainingOptions:
        """The given training options, completed by the recipe's defaults that apply."""
        defaults = {name: _called(value, options) for name, value in self._training_defaults.items()}
        of_adamw = defaults.pop("adamw_learning_rate", None)
        if of_adamw is not None and str(given.get("optimizer", "adamw")).lower() == "adamw":
            defaults["learning_rate"] = of_adamw
        if given.get("clipnorm") is not None:
            defaults.pop("global_clipnorm", None)
        return TrainingOptions.of({**defaults, **given})


def _called(value: Any, options: Mapping[str, Any]) -> Any:
    """A value, or the result of a function of some of the options."""
    return value(**{name: options[name] for name in inspect.signature(value).parameters}) if callable(value) else value
