"""The workload of a finished run, rebuilt from the run directory."""

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tfaccel.errors import RunDirError, WorkloadError
from tfaccel.local_path import local_path
from tfaccel.planning.load_workload import load_workload
from tfaccel.planning.recipe_list import RECIPES_PACKAGE, list_recipes
from tfaccel.planning.workload import Workload

_FILES = ("config.json", "result.json", "model.keras")


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
    path = local_path(run_dir, RunDirError)
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
    options = dict(config.get("options", {}))
    if _recorded_names(import_path) == options.keys():
        return load_workload(import_path, **options)
    parameters = _parameters(import_path)
    needed = {name: options[name] for name, one in parameters.items() if one.default is one.empty and name in options}
    own = load_workload(import_path, **needed)
    takes_more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    chosen = dict(needed)
    for name, value in options.items():
        default = parameters[name].default if name in parameters else None
        taken = name in parameters or (takes_more and name in _TRAINING)
        if taken and value != own.options.get(name) and not (value is None and default is not None):
            chosen[name] = value
    return load_workload(import_path, **chosen) if chosen != needed else own


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


def _recorded_names(import_path: str) -> Any:
    """The options that a `tfaccel.recipe` records; None for another function."""
    module, _, function = import_path.partition(":")
    try:
        return getattr(getattr(import_module(module), function), "recorded_names", None)
    except (ImportError, AttributeError):
        return None


def _parameters(import_path: str) -> Mapping[str, inspect.Parameter]:
    module, _, function = import_path.partition(":")
    try:
        return inspect.signature(getattr(import_module(module), function)).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        return {}
