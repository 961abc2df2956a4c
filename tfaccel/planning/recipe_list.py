"""The built-in recipes, listed without importing them (a recipe may import TensorFlow)."""

import ast
import pkgutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

RECIPES_PACKAGE = "tfaccel.recipes"


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
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    modules = pkgutil.iter_modules(folders)
    entries = [
        RecipeEntry(module.name, read_summary(Path(folder) / f"{module.name}.py"))
        for module in modules
        for folder in folders
        if not module.ispkg and not module.name.startswith("_") and (Path(folder) / f"{module.name}.py").is_file()
    ]
    return tuple(sorted(entries, key=lambda entry: entry.name))


def read_summary(path: Path) -> str:
    """The first line of a Python file's docstring, or "" if it has none; the file is parsed, not run."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0].strip() if docstring else ""
