"""A child process that trains text recipes for a moment and uses what they leave.

Arguments: the folder for the runs, and cases in JSON: recipe, strategy, global batch size, options, and a function of
the recipe to call with the run's folder and an argument. The last line of the output lists what the cases gave.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from tfaccel import Plan

DEVICES = {"none": ("CPU:0",), "mirrored": ("CPU:0", "CPU:1")}


def run_case(case: dict, run_dir: Path) -> dict:
    recipe = import_module(f"tfaccel.recipes.{case['recipe']}")
    plan = Plan(
        strategy=case["strategy"],
        devices=DEVICES[case["strategy"]],
        num_logical_cpus=2,
        global_batch_size=case["global_batch_size"],
        dtype_policy=case.get("dtype_policy", "float32"),
    )
    result = recipe.run(run_dir=run_dir, plan=plan, verbose=0, **case["options"])
    name, argument = case["use"]
    return {"final": result.final, "used": getattr(recipe, name)(run_dir, argument)}


if __name__ == "__main__":
    folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    print(json.dumps([run_case(case, folder / str(number)) for number, case in enumerate(cases)]))
