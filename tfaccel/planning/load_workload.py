"""`as_workload`: what a verb is given to train, as a `Workload`; recipes and import paths are looked up here."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tfaccel.errors import TfaccelError, WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.recipe_list import RECIPES_PACKAGE, list_recipes
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import call_own


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
    if not is_import_path(import_path):
        raise WorkloadError(f"A workload is written package.module:function. Received: {import_path!r}.")
    return _from_object(import_path, import_named(import_path, error_type=WorkloadError), kwargs)


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
