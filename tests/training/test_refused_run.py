"""A run that is refused before it has kept anything leaves nothing in its directory, and one that has begun all."""

import json

CODE = """
import json, os, sys
from pathlib import Path
import keras, numpy as np, tfaccel

def build(optimizer="adam"):
    layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    model.compile(optimizer, "mse")
    return model

x, y = np.zeros((8, 3), "int32"), np.zeros((8, 1))
plan = tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=4, embedding_updates="rows")
folder = Path(sys.argv[1])
(folder / "there").mkdir()
found = {}

def train(name, optimizer="adam", ids=x, **options):
    try:
        tfaccel.train(build(optimizer), ids, y, plan=plan, run_dir=folder / name, epochs=2, verbose=0, **options)
    except (tfaccel.errors.TfaccelError, KeyboardInterrupt) as error:
        found[name] = type(error).__name__
    path = folder / name
    return sorted(one.name for one in path.iterdir() if not one.name.startswith(".")) if path.exists() else None

class Stops(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise tfaccel.errors.PlanError("in the second epoch")

def alone():
    workers = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    os.environ |= {"TF_CONFIG": json.dumps(workers), "TFACCEL_LAUNCH_ATTEMPT": "1"}
    try:
        tfaccel.train(build(), x, y, plan=plan, run_dir=folder / "alone", epochs=1, verbose=0)
    except tfaccel.errors.PlanError as error:
        found["alone"] = str(error)
    finally:
        del os.environ["TF_CONFIG"], os.environ["TFACCEL_LAUNCH_ATTEMPT"]
    return (folder / "alone").exists()

found["alone folder"] = alone()
found["new folder"], found["empty folder"] = train("new"), train("there")
found["wrong data"] = train("beyond", "sgd", x + 9)
found["begun"] = train("begun", "sgd", callbacks=[Stops()])
print(json.dumps(found))
"""


def test_a_refused_run_leaves_no_files(run_python, tmp_path):
    found = json.loads(run_python(CODE, str(tmp_path)).stdout.splitlines()[-1])
    assert found["new"] == found["there"] == "PlanError"
    assert found["beyond"] == "DataError" and found["wrong data"] is None
    assert "one of 2 workers that `tfaccel launch` has started, but its plan trains in one process" in found["alone"]
    assert not found["alone folder"]
    assert found["new folder"] is None
    assert found["empty folder"] == []
    assert {"config.json", "plan.json", "checkpoints"} <= set(found["begun"])
