"""`tfaccel recipes`: lists the ready training recipes."""

import json
import sys
from dataclasses import asdict

from absl import flags
from rich.table import Table

from tfaccel.planning.load_workload import list_recipes
from tfaccel.scripts.command import run_command, table_console
from tfaccel.scripts.command_flags import Flag, command_flags

_FLAGS: dict[str, Flag] = {"json": (False, "print the list as JSON")}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_command(lambda: _main(values), argv, values, description="Lists the ready training recipes.")


def _main(values: flags.FlagValues) -> int:
    recipes = list_recipes()
    if values.json:
        print(json.dumps({"recipes": [asdict(recipe) for recipe in recipes]}, indent=2))
        return 0
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for recipe in recipes:
        table.add_row(recipe.name, recipe.summary)
    console = table_console(highlight=False)
    if recipes:
        console.print(table)
    console.print("\nTrain one: tfaccel train --recipe=NAME --run_dir=DIR" if recipes else "No recipes are installed.")
    return 0


if __name__ == "__main__":
    sys.exit(run(["recipes", *sys.argv[1:]]))
