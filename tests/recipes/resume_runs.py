"""A child process that trains text recipes: whole runs, on two replicas, up to a sudden end, or on from there.

Arguments: the folder with the data, and cases in JSON: recipe, data, options, and kind: "whole", "mirrored", "killed"
(the process ends with status 7 in the middle of the second epoch) or "resumed" (from what a killed one left). The last
line of the output lists, for each case, a digest of the weights, the history and the final figures.
"""

import hashlib
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from tfaccel import Plan, train

DEVICES = {"none": ("CPU:0",), "mirrored": ("CPU:0", "CPU:1")}


def death() -> object:
    import keras

    class Death(keras.callbacks.Callback):
        tfaccel_windows = True  # It asks for no other calls of the step than a run without it has.
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if self.epoch == 1 and batch >= 3:
                os._exit(7)

    return Death()


def run_case(folder: Path, case: dict) -> list:
    recipe, kind = import_module(f"tfaccel.recipes.{case['recipe']}"), case["kind"]
    strategy = "mirrored" if kind == "mirrored" else "none"
    plan = Plan(strategy=strategy, devices=DEVICES[strategy], num_logical_cpus=2, global_batch_size=8)
    work = recipe.workload(data_dir=folder / case["data"], global_batch_size=8, epochs=2, **case["options"])
    run_dir = folder / f"{case['name']}-{'stopped' if kind in ('killed', 'resumed') else kind}"
    result = train(work, plan, run_dir=run_dir, epochs=2, seed=3, resume="auto", checkpoint_interval=2, verbose=0,
                   callbacks=[death()] if kind == "killed" else [])  # fmt: skip
    import keras

    digest = hashlib.sha256()
    for weight in keras.models.load_model(run_dir / "model.keras", compile=False).get_weights():
        digest.update(weight.tobytes())
    return [digest.hexdigest(), result.history, result.final]


if __name__ == "__main__":
    print(json.dumps([run_case(Path(sys.argv[1]), case) for case in json.loads(sys.argv[2])]))
