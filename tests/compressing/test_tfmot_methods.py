"""Training by TFMOT in a child process: what each method leaves, that it dies with its parent, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tfaccel.compressing.methods import TRAINING, TfmotOptions
from tfaccel.errors import CompressionError

HERE = Path(__file__).parent

METHODS = """
import json, sys
import numpy as np
from tfmot_workload import accuracy, int8_kernels, litert_accuracy, rows, trained, workload
from tfaccel.compressing.tfmot.methods import tfmot_variant
from tfaccel.compressing.methods import TfmotOptions

work, said, found = workload(), [], {}
model = trained(work)
before = [np.array(array) for array in model.get_weights()]
found["float"] = accuracy(model.predict(rows(1)[0], verbose=0))
held_out = lambda: ((x, y, None) for x, y in work.validation_data(64).as_numpy_iterator())
for method in sys.argv[1:]:
    outcome = tfmot_variant(model, method, workload=work, held_out=held_out, say=said.append,
                            options=TfmotOptions(epochs=10, num_clusters=8, block_size=(2, 1)))
    found[method] = {"sparsity": outcome.sparsity, "notes": outcome.notes, "changed": outcome.changed}
    if outcome.model is not None:
        found[method]["accuracy"] = accuracy(outcome.model.predict(rows(1)[0], verbose=0))
        found[method]["policy"] = outcome.model.get_layer("dense").dtype_policy.name
        kernels = {w.path: w.numpy() for w in outcome.model.weights if w.name == "kernel"}
        found[method]["unique"] = {name: len(np.unique(k)) for name, k in kernels.items()}
        found[method]["zeros"] = {name: float(np.mean(k == 0)) for name, k in kernels.items()}
        by_four = kernels["dense/kernel"].T.reshape(-1, 4)
        found[method]["most_of_four"] = int((by_four != 0).sum(axis=1).max())
        pairs = kernels["dense/kernel"].reshape(16, 2, -1)
        found[method]["whole_blocks"] = bool(((pairs == 0).all(axis=1) == (pairs == 0).any(axis=1)).all())
    else:
        found[method]["accuracy"] = accuracy(np.concatenate(outcome.predictions))
        found[method]["litert"] = litert_accuracy(outcome.litert)
        found[method]["kernels"] = int8_kernels(outcome.litert)
found["said"] = said
found["unchanged"] = all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))
print(json.dumps(found))
"""

REFUSED = """
import json, keras
import numpy as np
from tfmot_workload import workload
from tfaccel.compressing.tfmot.methods import tfmot_variant
from tfaccel.compressing.methods import TfmotOptions
from tfaccel.errors import CompressionError

class Own(keras.layers.Layer):
    def call(self, x):
        return x

class Subclassed(keras.Model):
    def call(self, x):
        return x

def refusal(model, **options):
    try:
        tfmot_variant(model, options.pop("method", "prune"), workload=workload(**options))
    except CompressionError as error:
        return str(error)
    return "none"

plain = lambda *layers: keras.Sequential([keras.Input((8, 8, 1)), *layers])
flat = lambda: plain(keras.layers.Flatten(), keras.layers.Dense(4))
unbuilt = keras.Sequential([keras.layers.Dense(4)])
subclassed = Subclassed(); subclassed.build((None, 8, 8, 1))
print(json.dumps({
    "unknown": refusal(flat(), method="prone"),
    "own": refusal(plain(Own(name="mine"), keras.layers.Flatten(), keras.layers.Dense(4))),
    "subclassed": refusal(subclassed),
    "unbuilt": refusal(unbuilt),
    "loss": refusal(flat(), loss=lambda y_true, y_pred: 0.0),
    "no_kernels": refusal(plain(keras.layers.GlobalAveragePooling2D(), keras.layers.Rescaling(2.0))),
}))
"""

KILLED = """
import sys
from tfmot_workload import workload
from tfaccel.compressing.tfmot.methods import tfmot_variant
from tfaccel.compressing.methods import TfmotOptions

work = workload()
tfmot_variant(work.build_model(), "prune", workload=work, options=TfmotOptions(epochs=10000),
              say=lambda text: print(text, flush=True))
"""


def run(run_python, code, *arguments):
    return json.loads(run_python(code, *arguments, cwd=HERE, timeout_seconds=500).stdout.splitlines()[-1])


def check_pruned(found, names):
    for name in names:
        assert found[name]["accuracy"] > found["float"] - 0.1, name  # chance is 0.25
        assert found[name]["policy"] == "float32"
    assert found["unchanged"]


@pytest.mark.slow
def test_pruned_model_comes_back_with_zeros_and_bad_input_is_refused(run_python):
    child = run_python(METHODS + REFUSED, "prune", cwd=HERE, timeout_seconds=500)
    found, refused = map(json.loads, child.stdout.splitlines()[-2:])
    check_pruned(found, ["prune"])
    assert found["prune"]["changed"] == ["block/conv2d", "block/conv2d_1", "dense", "logits"]
    assert found["prune"]["sparsity"] == pytest.approx(0.8, abs=0.01)
    assert "not pruned: block/depthwise_conv2d" in found["prune"]["notes"]
    assert "80.0% of the weights are zero in 4 layers" in found["prune"]["notes"][0]
    assert any("pruning: epoch 10/10, step 8/8, loss" in line for line in found["said"])
    check_refused(refused)


@pytest.mark.slow
def test_every_method_leaves_what_it_says(run_python):
    found = run(run_python, METHODS, "prune_2_4", "prune_block", "cluster", "qat", "pqat", "cqat")
    check_pruned(found, ["prune_2_4", "prune_block", "cluster"])
    assert found["prune_2_4"]["zeros"]["dense/kernel"] == 0.5
    assert found["prune_2_4"]["most_of_four"] == 2
    assert found["prune_block"]["whole_blocks"]
    assert found["prune_block"]["sparsity"] == pytest.approx(0.8, abs=0.02)
    unique = {name: number for name, number in found["cluster"]["unique"].items() if "depthwise" not in name}
    assert len(unique) == 4
    assert max(unique.values()) <= 8
    assert all(kernel["zeros"] > 0.7 for kernel in found["pqat"]["kernels"] if kernel["size"] >= 64)
    assert all(kernel["unique"] <= 8 for kernel in found["cqat"]["kernels"] if kernel["rank"] == 2)
    for name in ("qat", "pqat", "cqat"):
        assert found[name]["accuracy"] > found["float"] - 0.05
        assert abs(found[name]["litert"] - found[name]["accuracy"]) <= 0.02
        assert any("annotated as not quantized: rescaling (Rescaling)" in note for note in found[name]["notes"])
        assert any("layer_normalization (LayerNormalization)" in note for note in found[name]["notes"])


def check_refused(found):
    assert "no training method 'prone'. Did you mean 'prune'?" in found["unknown"]
    assert "Layer 'mine' is of class Own, which is defined in the main program" in found["own"]
    assert "The model is a Subclassed, a subclassed model" in found["subclassed"]
    assert "is not built: it has no weights yet" in found["unbuilt"]
    assert "The loss <lambda> cannot be sent to another process" in found["loss"]
    assert (
        "No layer of the model can be pruned by TFMOT. Received layers: GlobalAveragePooling2D" in found["no_kernels"]
    )


@pytest.mark.slow
def test_child_ends_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", KILLED], cwd=HERE, stdout=subprocess.PIPE, text=True)
    for line in parent.stdout:
        if "epoch" in line:
            break
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in children):
        time.sleep(0.1)
    assert children
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "`epochs` must be an integer of at least 1. Received: epochs=0"),
        ({"learning_rate": -1.0}, "`learning_rate` must be a number above 0. Received: -1.0"),
        ({"sparsity": 1.0}, "`sparsity` must be above 0 and below 1. Received: sparsity=1.0"),
        ({"block_size": (4,)}, r"`block_size` must be two integers .* Received: \(4,\)"),
        ({"num_clusters": 1}, "`num_clusters` must be an integer of at least 2. Received: num_clusters=1"),
        ({"seed": -1}, "`seed` must be an integer of at least 0"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(CompressionError, match=message):
        TfmotOptions(**options)


def test_options_of_a_stage():
    options = TfmotOptions(**json.loads('{"epochs": 2, "block_size": [2, 2]}'))
    assert options == TfmotOptions(epochs=2, block_size=(2, 2))
    assert (options.get_epochs("qat"), TfmotOptions().get_epochs("qat")) == (2, 4)
    assert TRAINING["cqat"].stages == ("cluster", "cqat")


def test_a_schedule_over_the_run_gives_the_highest_rate_of_training(logical_devices):
    """Also where the workload does not say how many examples there are: batches are counted."""
    import keras
    from tfmot_workload import build_model, workload

    from tfaccel.compressing.call_signature import get_signature
    from tfaccel.compressing.tfmot.flat_model import flatten_model
    from tfaccel.compressing.tfmot.methods import TrainingBatches, make_job

    asked = []

    def compile_args(num_steps):
        asked.append(num_steps)
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.01, num_steps))
        return {"optimizer": optimizer, "loss": keras.losses.CategoricalCrossentropy(from_logits=True)}

    work = replace(workload(), compile_args=compile_args, num_train_examples=None, epochs=2)
    flat = flatten_model(build_model())
    batches = TrainingBatches(work, flat, seed=0)
    signature = get_signature(flat.model, batches.first_x)
    job = make_job(batches, method="prune", options=TfmotOptions(), signature=signature)
    assert asked == [2 * batches.steps_per_epoch]
    assert 0.0 < job.stages["prune"].learning_rate <= 0.01
