"""`as_workload`: what a verb is given to train, as a `Workload`: a recipe, an import path, or a finished run."""

from __future__ import annotations

import ast
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tfaccel.errors import RunDirError, TfaccelError, WorkloadError
from tfaccel.files import get_sha256
from tfaccel.known_names import did_you_mean
from tfaccel.planning.own_model import is_model
from tfaccel.planning.workload import Workload, call_own
from tfaccel.remote import readable_path

RECIPES_PACKAGE = "tfaccel.recipes"
_RESULT = "result.json"
_FILES = ("config.json", _RESULT, "model.keras")
# The options of recipes besides their own parameters; see `tfaccel.training.training_options`.
_TRAINING = (
    "optimizer",
    "learning_rate",
    "learning_rate_factor",
    "weight_decay",
    "decay_per_run",
    "clipnorm",
    "global_clipnorm",
    "ema",
    "schedule",
    "warm_up",
    "early_stopping",
)


def load_workload(import_path: str, **kwargs: Any) -> Workload:
    """Loads a workload from an import path.

    Args:
        import_path: module and name, such as "my_project.digits:workload": of a `Workload`; of a function that returns
            one; or of a function that returns (model, x, y) or (build_model, x, y), as for `Workload.of`, possibly with
            a dataset in place of x and y.
        **kwargs: arguments of the function.

    Raises:
        WorkloadError: if the path is malformed, the module cannot be imported, the name is missing, or the function
            does not take these arguments, returns something else, or raises an error other than tfaccel's.

    Example:
        >>> load_workload("my_project.digits")
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: A workload is written package.module:function. Received: 'my_project.digits'.
    """
    return _from_object(import_path, _imported(import_path), kwargs)


def _imported(import_path: str) -> Any:
    if not is_import_path(import_path):
        raise WorkloadError(f"A workload is written package.module:function. Received: {import_path!r}.")
    return import_named(import_path, error_type=WorkloadError)


def as_workload(given: Workload | str | Callable[..., Any], **options: Any) -> Workload:
    """The workload that is meant, in each of the ways in which verbs take one.

    Args:
        given: a `Workload`; the name of a recipe, such as "image_classification"; an import path,
            "package.module:function"; or a function that returns a `Workload`, or (model, x, y).
        **options: arguments of the function, or of the recipe.

    Raises:
        WorkloadError: if there is no such recipe, module or function, if it does not take these options, or for
            anything else.

    Example:
        >>> as_workload("image_classification", width=8).name
        'image_classification'
    """
    if isinstance(given, str):
        return load_workload(given, **options) if ":" in given else load_recipe(given, **options)
    if isinstance(given, Workload):
        return _from_object(f"The workload {given.name!r}", given, options)
    if is_model(given):
        raise WorkloadError(
            "A Keras model is trained on data: give x and y after it; or a tfaccel.Workload, which has both: "
            f"tfaccel.Workload.of(build_model, x, y). Received: a {type(given).__name__} alone."
        )
    if not callable(given):
        raise WorkloadError(
            "A workload is a tfaccel.Workload, the name of a recipe, an import path (package.module:function), or a "
            f"function that returns a Workload. Received: {given!r:.200}."
        )
    return _from_object(f"{given.__module__}:{getattr(given, '__qualname__', type(given).__name__)}", given, options)


def given_workload(given: Any, x: Any = None, y: Any = None, **options: Any) -> Workload:
    """The workload that is meant by the arguments of a verb: a model and its data, or all that `as_workload` takes.

    Args:
        given: what is trained.
        x, y: data, as `Workload.of` takes them; None for a workload that has its own.
        **options: arguments of `Workload.of` with data, otherwise of `as_workload`.

    Raises:
        WorkloadError: as `Workload.of` and `as_workload`; and for y without x.

    Example:
        >>> given_workload("image_classification", y=[1, 2])
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: y is the target of x. Received: y without x. Pass both, or leave y out.
    """
    if x is not None:
        return Workload.of(given, x, y, **options)
    if y is not None:
        raise WorkloadError("y is the target of x. Received: y without x. Pass both, or leave y out.")
    return as_workload(given, **options)


def _from_object(name: str, given: Any, options: dict[str, Any]) -> Workload:
    """The workload that an object is, or that a function returns."""
    if isinstance(given, Workload):
        if options:
            raise WorkloadError(
                f"{name} is a Workload, which takes no options. Received: {', '.join(options)}. Write a function "
                "with these parameters that returns it."
            )
        return given
    if not callable(given):
        raise WorkloadError(
            f"{name} must be a tfaccel.Workload or a function that returns one. Received: {type(given).__name__}."
        )
    _check_arguments(name, given, options)
    made = call_own(name, given, **options)
    if isinstance(made, Workload):
        return made
    if isinstance(made, tuple) and len(made) in (2, 3):
        return Workload.of(*made, name=name.partition(":")[0].rpartition(".")[2])
    raise WorkloadError(
        f"{name} must return a tfaccel.Workload, or (model, x, y), or (build_model, x, y). "
        f"Received: {type(made).__name__}. Return tfaccel.Workload.of(build_model, x, y)."
    )


def load_recipe(name: str, **kwargs: Any) -> Workload:
    """The workload of a built-in recipe, made with the keyword arguments.

    Raises:
        WorkloadError: if the recipe does not exist (the message suggests the closest name), or does not take these
            arguments.
    """
    names = [recipe.name for recipe in list_recipes()]
    if name not in names:
        hint = did_you_mean(name, names) or f" Recipes: {', '.join(names) or 'none'}."
        raise WorkloadError(f"There is no recipe {name!r}.{hint}")
    return load_workload(f"{RECIPES_PACKAGE}.{name}:workload", **kwargs)


def is_import_path(text: str) -> bool:
    """Whether a string has the form `package.module:name`.

    Example:
        >>> is_import_path("my_project.digits:workload"), is_import_path("my_project.digits")
        (True, False)
    """
    module_name, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(map(str.isidentifier, module_name.split(".")))


def import_named(import_path: str, *, error_type: type[TfaccelError]) -> Any:
    """The object that `package.module:name` refers to.

    Raises:
        TfaccelError: of type `error_type`, if the module cannot be imported or lacks the name (the closest one is
            suggested).
    """
    module_name, _, name = import_path.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            file = module_name.endswith(".py")
            remedy = "Write it without .py" if file else "Install it, or start from the folder that holds it"
            raise error_type(f"There is no module {error.name!r} (wanted for {import_path}). {remedy}.") from error
        raise error_type(f"Importing {module_name} failed: {error}.") from error
    except Exception as error:
        raise error_type(f"Importing {module_name} failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        public = [found for found, value in vars(module).items() if callable(value) and not found.startswith("_")]
        raise error_type(f"Module {module_name!r} has no {name!r}.{did_you_mean(name, public)}")
    return getattr(module, name)


def check_function(name: str, function: Callable[..., Any]) -> None:
    """Raises WorkloadError if a workload's function has a parameter for something that the run decides.

    Epochs and batch size are arguments of `tfaccel.train` and fields of the plan. A workload recommends values in the
    `Workload` that it returns; a schedule takes `num_steps` in `compile_args(num_steps)`.

    Example:
        >>> check_function("mine:workload", lambda width=8: None)
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    for taken in ("epochs", "global_batch_size"):
        if taken in parameters:
            raise WorkloadError(
                f"{name} has a parameter `{taken}`, which the run decides. Leave it out: recommend a value with "
                f"Workload(..., {taken}=...), and let a learning-rate schedule take num_steps in "
                "compile_args(num_steps)."
            )


def _check_arguments(import_path: str, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raises WorkloadError if the function does not take these arguments, more clearly than a TypeError would."""
    signature = inspect.signature(function)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        taken = [name for name in signature.parameters if name not in kwargs]
        hint = "".join(did_you_mean(name, taken) for name in kwargs if name not in signature.parameters)
        raise WorkloadError(f"{import_path}{signature} cannot be called like this: {error}.{hint}") from error


@dataclass(frozen=True)
class RecipeEntry:
    """A recipe's name and the first line of its docstring."""

    name: str
    summary: str


def list_recipes() -> tuple[RecipeEntry, ...]:
    """The installed recipes, by name.

    Example:
        >>> all(recipe.summary for recipe in list_recipes())
        True
    """
    spec = find_spec(RECIPES_PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).glob("[!_]*.py"))
    return tuple(RecipeEntry(file.stem, read_summary(file)) for file in files)


def read_summary(path: Path) -> str:
    """The first line of a Python file's docstring, or "" if it has none; the file is parsed, not run."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0].strip() if docstring else ""


def check_finished_run(run_dir: str | os.PathLike[str]) -> Path:
    """The path of a finished run's directory.

    Raises:
        RunDirError: if it is not such a directory; the message says what is missing.

    Example:
        >>> check_finished_run("no/such/run")
        Traceback (most recent call last):
        ...
        tfaccel.errors.RunDirError: There is no run directory no/such/run. Give the directory of a finished run.
    """
    path = readable_path(run_dir, RunDirError)
    if not path.is_dir():
        problem = f"{path} is a file" if path.exists() else f"There is no run directory {path}"
        raise RunDirError(f"{problem}. Give the directory of a finished run.")
    missing = [name for name in _FILES if not (path / name).is_file()]
    if missing:
        remedy = "Give one that `tfaccel train` left."
        if "config.json" not in missing:
            remedy = "Resume that run (--resume=auto) until it is finished."
        raise RunDirError(f"{path} is not the directory of a finished run: it has no {', '.join(missing)}. {remedy}")
    return path


def check_run_files(path: Path) -> None:
    """Raises RunDirError if a file of a finished run is gone, or is not the one that the run has written.

    The files are the model, the description of its raw inputs and the example rows; runs of earlier versions, whose
    result has no digests of them, are not checked.
    """
    try:
        digests = dict(json.loads((path / _RESULT).read_text()).get("files", {}))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunDirError(f"{path / _RESULT} cannot be read ({error}). Give the directory of another run.") from error
    for name, digest in digests.items():
        if not (path / name).is_file():
            raise RunDirError(f"{path} has lost its {name}, which the run has written. Put it back, or train again.")
        if get_sha256(path / name) != digest:
            raise RunDirError(
                f"{path / name} is not the file that this run has written: it was changed, or copied from elsewhere. "
                "Put it back, train again, or move another model's file out of the run directory."
            )


def workload_of_run(run_dir: str | os.PathLike[str], *, workload: str | None = None) -> Workload:
    """The workload that a finished run trained, made with the run's options, epochs and batch size.

    Args:
        run_dir: the run directory.
        workload: `package.module:function` of a custom workload, or the name of a recipe; None for the recipe that is
            stored in the run.

    Raises:
        RunDirError: if the directory is not that of a finished run.
        WorkloadError: if the run did not train a recipe and `workload` is None, or trained another workload.
    """
    path = check_finished_run(run_dir)
    try:
        config = json.loads((path / "config.json").read_text())
        name = config["recipe"]
        config["options"] = dict(config.get("options", {}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunDirError(
            f"{path / 'config.json'} cannot be read ({error}). Give the directory of another run."
        ) from error
    known = [recipe.name for recipe in list_recipes()]
    if workload is None and name not in known:
        raise WorkloadError(
            f"The run in {path} trained {name!r}, which is not a recipe. Name its workload: "
            "--workload=package.module:function."
        )
    import_path = workload or name
    if ":" not in import_path:
        import_path = f"{RECIPES_PACKAGE}.{import_path}:workload"
    made = _made(import_path, config)
    if made.name != name:
        raise WorkloadError(f"The run in {path} trained {name!r}. Received the workload {made.name!r}.")
    of_run = {field: config[field] for field in ("epochs", "global_batch_size") if config.get(field) is not None}
    return replace(made, **of_run)


def _made(import_path: str, config: Mapping[str, Any]) -> Workload:
    """The workload, made with the run's options. A recipe takes back all options exactly as recorded.

    Another function, whose workload chooses what to record, gets those that differ from its own choice.
    """
    options, function = dict(config["options"]), _imported(import_path)
    if getattr(function, "recorded_names", None) == options.keys():  # of a `tfaccel.recipe`
        return _from_object(import_path, function, options)
    parameters = inspect.signature(function).parameters if callable(function) else {}
    needed = {name: options[name] for name, one in parameters.items() if one.default is one.empty and name in options}
    own = _from_object(import_path, function, needed)
    takes_more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    chosen = dict(needed)
    for name, value in options.items():
        default = parameters[name].default if name in parameters else None
        taken = name in parameters or (takes_more and name in _TRAINING)
        if taken and value != own.options.get(name) and not (value is None and default is not None):
            chosen[name] = value
    return _from_object(import_path, function, chosen) if chosen != needed else own
