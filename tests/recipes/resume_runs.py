"""A child process that trains recipes: whole runs, on several replicas, up to a sudden end, or on from there.

Arguments: the folder with the data, and cases in JSON: recipe, data, options, and kind: "whole", "2 replicas" (or 4),
"killed" (the process ends with status 7 in the middle of the second epoch) or "resumed" (from what a killed one left).
The last line of the output lists, for each case, a digest of the weights, the history and the final figures.
"""

import hashlib
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from tfaccel import Plan, train


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
    replicas = int(kind.split()[0]) if "replicas" in kind else 1
    devices = tuple(f"CPU:{device}" for device in range(replicas))
    size, epochs = case.get("batch", 8), case.get("epochs", 2)
    strategy = "mirrored" if replicas > 1 else "none"
    plan = Plan(strategy=strategy, devices=devices, num_logical_cpus=4, global_batch_size=size)
    work = recipe.workload(data_dir=folder / case["data"], **case["options"])
    run_dir = (
        Path(case.get("run_dirs", folder)) / f"{case['name']}-{'stopped' if kind in ('killed', 'resumed') else kind}"
    )
    result = train(
        work,
        plan,
        run_dir=run_dir,
        epochs=epochs,
        seed=3,
        resume="auto",
        checkpoint_interval=2,
        verbose=0,
        callbacks=[death()] if kind == "killed" else [],
    )
    import keras

    digest = hashlib.sha256()
    for weight in keras.models.load_model(run_dir / "model.keras", compile=False).get_weights():
        digest.update(weight.tobytes())
    return [digest.hexdigest(), result.history, result.final]


if __name__ == "__main__":
    print(json.dumps([run_case(Path(sys.argv[1]), case) for case in json.loads(sys.argv[2])]))
