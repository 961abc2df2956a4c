"""`tfaccel recipes`: lists the ready training recipes."""

import json
import sys
from dataclasses import asdict

from absl import flags

from tfaccel.planning.recipe_list import list_recipes
from tfaccel.scripts.command import run_command

_JSON = flags.DEFINE_bool("json", False, "print the list as JSON", allow_override=True)


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    return run_command(_main, argv, description="Lists the ready training recipes.")


def _main() -> int:
    recipes = list_recipes()
    if _JSON.value:
        print(json.dumps({"recipes": [asdict(recipe) for recipe in recipes]}, indent=2))
        return 0
    width = max((len(recipe.name) for recipe in recipes), default=0)
    for recipe in recipes:
        print(f"{recipe.name:<{width}}  {recipe.summary}")
    print("\nTrain one: tfaccel train --recipe=NAME --run_dir=DIR" if recipes else "No recipes are installed.")
    return 0


if __name__ == "__main__":
    sys.exit(run(["recipes", *sys.argv[1:]]))
