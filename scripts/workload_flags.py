"""The flags that select a workload, shared by several commands."""

import os
import sys
from typing import Any

from absl import flags

from tfaccel.errors import WorkloadError
from tfaccel.planning.load_workload import (
    check_function,
    import_named,
    is_import_path,
    list_recipes,
    load_recipe,
    load_workload,
)
from tfaccel.planning.workload import Workload


def define_workload_flags(values: flags.FlagValues) -> None:
    """Adds the flags to those of a command."""
    texts = {
        "recipe": "a ready recipe; `tfaccel recipes` lists them",
        "workload": "your own workload, as package.module:name: a Workload, or a function that returns one; the "
        "current folder is searched too",
    }
    for name, text in texts.items():
        flags.DEFINE_string(name, None, text, flag_values=values)


def chosen_workload(values: flags.FlagValues, **kwargs: Any) -> Workload:
    """The workload given by --recipe or --workload, built with the keyword arguments.

    Raises:
        WorkloadError: if none or both are given, or it cannot be loaded.
    """
    recipe, import_path = values.recipe, values.workload
    if recipe is not None and import_path is None:
        return load_recipe(recipe, **kwargs)
    if import_path is not None and recipe is None:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        if is_import_path(import_path):
            check_function(import_path, import_named(import_path, error_type=WorkloadError))
        return load_workload(import_path, **kwargs)
    raise _not_one(values)


def reference_of_workload(values: flags.FlagValues) -> str:
    """The name of the recipe, or the import path, that --recipe or --workload gives.

    Raises:
        WorkloadError: if none or both are given.
    """
    given = [text for text in (values.recipe, values.workload) if text is not None]
    if len(given) != 1:
        raise _not_one(values)
    if values.workload is not None and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return str(given[0])


def _not_one(values: flags.FlagValues) -> WorkloadError:
    names = ", ".join(entry.name for entry in list_recipes()) or "none"
    return WorkloadError(
        "Give --recipe=NAME or --workload=package.module:function. "
        f"Received: {'neither' if values.recipe is None else 'both'}. Recipes: {names}."
    )
