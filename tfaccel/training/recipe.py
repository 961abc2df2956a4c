"""The decorator `recipe`, which turns a function that returns a workload into a recipe; its options, and its runs."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tfaccel.data.bad_data import BadData
from tfaccel.data.epochs import check_one_batch
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.files import write_json
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Cluster
from tfaccel.keras_file import check_members, check_no_code
from tfaccel.known_names import check_names
from tfaccel.local_path import local_path
from tfaccel.planning.candidates import default_plan, given_plan, taken_fields
from tfaccel.planning.compile_arguments import advice
from tfaccel.planning.load_workload import RECIPES_PACKAGE
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions, shortened
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.remote import is_remote
from tfaccel.training.run.remote_run import send_run
from tfaccel.training.run.result import PROGRESS, ShownRun, TrainResult
from tfaccel.training.train import train
from tfaccel.training.training_options import TrainingOptions
from tfaccel.training.verdict import BaselineScores

_ShowResult = Callable[[Any, TrainResult], BaselineScores | None]

_TRAINING = "training"  # the parameter that takes the training options
_BAD_DATA = "bad_data"  # the parameter that takes a `BadData`
_OF_BAD_DATA = ("on_bad_data", "max_bad_fraction")  # the options that it is made of

logger = logging.getLogger("tfaccel")

_COUNT, _FRACTION = "a count", "a fraction"
Count = Annotated[int, _COUNT]
"""The type of an option that counts something: a whole number of at least 1."""
Fraction = Annotated[float, _FRACTION]
"""The type of an option that is a fraction: a number from 0 to below 1."""
DataPath = str | os.PathLike[str]
"""The type of an option that is a file, a folder, or the name of a dataset ("tfds:mnist")."""
_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}
NAMED_DATA_SETS = ("tfds:", "hf:")
_OF_TRAIN = (
    "epochs",
    "seed",
    "resume",
    "checkpoint_interval",
    "keep_checkpoints",
    "callbacks",
    "verbose",
    "learning_rate_scaling",
    "scaling_warm_up",
    "on_nonfinite",
    "validate_on",
)


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


@dataclass(eq=False, repr=False)
class Recipe:
    """A function that builds a workload from options, and shows the results of its runs. Created by `recipe`."""

    _function: Callable[..., Workload]
    _: KW_ONLY
    not_recorded: tuple[str, ...]
    data_dir_only: tuple[str, ...]
    bundled_only: tuple[str, ...]
    training_defaults: Mapping[str, Any]

    def __post_init__(self) -> None:
        function = self._function
        functools.update_wrapper(self, function)
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
        """Builds the workload from options."""
        self._check_names(options)
        bad_data = self._bad_data(options)
        options = {name: value for name, value in options.items() if bad_data is None or name not in _OF_BAD_DATA}
        own = {name: value for name, value in options.items() if name in self._own or not self._takes_training}
        given = {name: value for name, value in options.items() if name not in own}
        bound = bound_options(self._function, own, beside=(_TRAINING, _BAD_DATA))
        check_data_options(self._function, bound, data_dir_only=self.data_dir_only, bundled_only=self.bundled_only)
        training = self._training(bound, given) if self._takes_training else None
        made = {_TRAINING: training, _BAD_DATA: bad_data}
        work = self._function(**bound, **{name: value for name, value in made.items() if value is not None})
        kept = {name: value for name, value in bound.items() if name not in self.not_recorded}
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
        return frozenset([*self._own, *of_bad_data, *training]) - frozenset(self.not_recorded)

    def run(self, *, run_dir: str | os.PathLike[str], **options: Any) -> TrainResult:
        """Trains the workload. Writes the files of `tfaccel.train`, and the recipe's own results, to `run_dir`.

        Args:
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
        """What to do with damaged data, from the options; None if the recipe does not take it."""
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
        defaults = {name: _called(value, options) for name, value in self.training_defaults.items()}
        of_adamw = defaults.pop("adamw_learning_rate", None)
        if of_adamw is not None and str(given.get("optimizer", "adamw")).lower() == "adamw":
            defaults["learning_rate"] = of_adamw
        if given.get("clipnorm") is not None:
            defaults.pop("global_clipnorm", None)
        return TrainingOptions.of({**defaults, **given})


def _called(value: Any, options: Mapping[str, Any]) -> Any:
    """A value, or the result of a function of some of the options."""
    return value(**{name: options[name] for name in inspect.signature(value).parameters}) if callable(value) else value


def bound_options(
    function: Callable[..., Any], given: Mapping[str, Any], *, beside: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The value of each option of a recipe: the given value, or the default.

    Example:
        >>> def workload(*, width: Count = 8, dropout: Fraction = 0.5): ...
        >>> bound_options(workload, {"width": 3})
        {'width': 3, 'dropout': 0.5}
        >>> bound_options(workload, {"width": 0})
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `width` must be a whole number of at least 1. Received: width=0.
    """
    signature = inspect.signature(function).parameters
    parameters = {name: one for name, one in signature.items() if name not in beside}
    check_names(given, list(parameters), WorkloadError, "There is no option {!r}.")
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in given]
    if missing:
        raise WorkloadError(f"`{missing[0]}` has no default. Give {missing[0]}=VALUE.")
    hints = get_type_hints(function, include_extras=True)
    options = {name: given.get(name, one.default) for name, one in parameters.items()}
    for name, value in options.items():
        _check(name, value, hints.get(name))
    return options


def check_data_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    data_dir_only: tuple[str, ...],
    bundled_only: tuple[str, ...],
) -> None:
    """Refuses an option that would have no effect on the data that were chosen.

    Args:
        function: the recipe's function; an option that has its default is never refused.
        data_dir_only: options that apply only where `data_dir` is given.
        bundled_only: options that apply only where it is not.

    Example:
        >>> def workload(*, data_dir: str | None = None, target: str | None = None): ...
        >>> given = {"data_dir": None, "target": "y"}
        >>> check_data_options(workload, given, data_dir_only=("target",), bundled_only=())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `target` is for your own data. Received: target='y' without data_dir. ...
    """
    parameters = inspect.signature(function).parameters
    data_dir = options.get("data_dir")
    for name in data_dir_only if data_dir is None else bundled_only:
        if options[name] == parameters[name].default:
            continue
        received = f"Received: {name}={shortened(options[name])}"
        if data_dir is None:
            raise WorkloadError(
                f"`{name}` is for your own data. {received} without data_dir. Add data_dir, or leave {name} out."
            )
        raise WorkloadError(
            f"`{name}` is for the bundled data. {received} with data_dir={shortened(str(data_dir))}. Leave one of "
            "them out."
        )


def recorded_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as JSON values, with paths made absolute, so that they do not depend on the working directory.

    An option is a path if its annotation includes `os.PathLike`; names of datasets ("tfds:mnist") are unchanged.

    Example:
        >>> def workload(*, data_dir: str | os.PathLike[str] | None = None): ...
        >>> recorded_options(workload, {"data_dir": "/data/../images"})
        {'data_dir': '/images'}
    """
    hints = get_type_hints(function)
    return {name: data_place(value) if _is_path(hints.get(name)) else value for name, value in options.items()}


def _is_path(hint: Any) -> bool:
    return any(get_origin(part) is os.PathLike or part is os.PathLike for part in (hint, *get_args(hint)))


def _check(name: str, value: Any, hint: Any) -> None:
    """Raises WorkloadError for a value that the annotation does not allow; annotations not listed here allow any."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    if type(None) in get_args(hint) and len(parts) == 1:
        if value is None:
            return
        hint = parts[0]
    if get_origin(hint) is Literal:
        check_choice(name, value, get_args(hint))
    elif _COUNT in getattr(hint, "__metadata__", ()):
        check_counts(**{name: value})
    elif _FRACTION in getattr(hint, "__metadata__", ()):
        check_fractions(**{name: value})
    elif hint in _PLAIN and type(value) not in _PLAIN[hint][0]:
        raise WorkloadError(f"`{name}` must be {_PLAIN[hint][1]}. Received: {name}={shortened(value)}.")


def data_place(data_dir: str | os.PathLike[str] | None) -> str | None:
    """The absolute path of a folder or file; an address, the name of a dataset ("tfds:mnist") or None stays as it is.

    Example:
        >>> data_place("tfds:mnist"), data_place("/data/../images"), data_place(None)
        ('tfds:mnist', '/images', None)
    """
    if data_dir is None:
        return None
    if is_remote(data_dir):
        return os.fspath(data_dir)
    place = local_path(data_dir, WorkloadError)
    return str(data_dir) if str(data_dir).startswith(NAMED_DATA_SETS) else os.path.abspath(place)


def run_recipe(
    make_workload: Callable[..., Workload],
    *,
    run_dir: str | os.PathLike[str],
    plan: Plan | Mapping[str, Any] | None = None,
    **options: Any,
) -> TrainResult:
    """Trains a recipe's workload, and shows the result on the chief.

    Args:
        options: `epochs`, `seed`, `resume`, `checkpoint_interval`, `keep_checkpoints`, `callbacks`, `verbose`,
            `learning_rate_scaling`, `scaling_warm_up`, `on_nonfinite` and `validate_on` of `tfaccel.train`; fields of
            the plan, if there is none; all others are passed to the workload.
    """
    of_train = {name: options.pop(name) for name in _OF_TRAIN if name in options}
    plan = given_plan(plan, options)
    batch_size = options.pop("global_batch_size", None)
    fixed = taken_fields(options, plan)
    workload = make_workload(**options)
    if plan is not None and batch_size not in (None, plan.global_batch_size):
        raise PlanError(
            f"The plan has a global_batch_size of {plan.global_batch_size}. Received: global_batch_size={batch_size!r}"
            ". Leave it out, or change the plan."
        )
    if plan is None:
        resized = workload if batch_size is None else replace(workload, global_batch_size=batch_size)
        plan = default_plan(detect_hardware(), resized, **fixed)
    check_one_batch(workload.num_train_examples, plan.global_batch_size // plan.accumulation_steps)
    verbose = of_train.pop("verbose", 1)
    result = train(workload, plan, run_dir=run_dir, verbose=verbose and PROGRESS, **of_train)
    result = show_on_chief(workload, result)
    cluster = result.hardware["cluster"]
    ShownRun(verbose, None if cluster is None else Cluster.from_json(cluster)).result(result)
    return result


def show_on_chief(workload: Workload, result: TrainResult) -> TrainResult:
    """Calls `workload.show_result`, if there is one; with several workers, on the chief only.

    Returns:
        The result with the baselines that `workload.show_result` returned, which are also written to `result.json`.

    Raises:
        ExportError: if the model in the run directory is refused; see `tfaccel.keras_file`.
    """
    if workload.show_result is None:
        return result
    cluster = result.hardware["cluster"]
    if result.plan.num_workers > 1 and cluster is not None and not Cluster.from_json(cluster).is_chief:
        return result
    is_bundled = str(getattr(workload.show_result, "__module__", "")).startswith(f"{RECIPES_PACKAGE}.")
    # A complete run that is shown again may come from anywhere. An own workload decides what its model may hold.
    (check_no_code if is_bundled else check_members)(Path(result.run_dir) / "model.keras")
    baselines: BaselineScores | None = workload.show_result(workload, result)
    if baselines is not None:
        result, file = replace(result, baselines=baselines), Path(result.run_dir) / "result.json"
        # What is there has the digests of the run's files as well.
        write_json(file, json.loads(file.read_text(encoding="utf-8")) | result.to_json())
        logger.info("%s", baselines.beside())
    send_run(result.run_dir)
    return result
