"""`train`: invalid arguments, and a loss that is not finite, which stops it at the exact step without data loss."""

import json
from pathlib import Path

import pytest

from tfaccel import Plan, Workload, train
from tfaccel.errors import RunDirError

HERE = Path(__file__).parent
PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)

NAN = """
import json, sys
from pathlib import Path
from tfaccel import train
from tfaccel.errors import NonFiniteLossError
from train_workload import plan, workload

def error(run_dir, nan_row, plan, **options):
    try:
        train(workload(nan_row=nan_row), plan, run_dir=run_dir, epochs=2, verbose=0, **options)
    except NonFiniteLossError as found:
        return str(found)
    return "no error"

run_dir, placement = Path(sys.argv[1]), sys.argv[2]
found = [error(run_dir, 29, plan(placement), checkpoint_interval=3)]
found.append(sorted(str(p.relative_to(run_dir)) for p in run_dir.glob("*")))
found.append([p.name for p in (run_dir / "checkpoints").iterdir()])
before = {p: p.read_bytes() for p in (run_dir / "checkpoints").rglob("*") if p.is_file()}
found.append(error(run_dir, 29, plan(placement), checkpoint_interval=3, resume="auto"))
found.append(before == {p: p.read_bytes() for p in (run_dir / "checkpoints").rglob("*") if p.is_file()})
found.append(error(run_dir / "first", 0, plan(placement)))
print(json.dumps(found))
"""

REFUSED = """
import json, sys
from pathlib import Path
import keras
import tensorflow as tf
from tfaccel import train
from tfaccel.errors import TfaccelError
from dataclasses import replace
from train_workload import plan, workload

small = workload()
def empty(size, *, seed, epoch):
    return tf.data.Dataset.range(0).batch(size)
def infinite(size, *, seed, epoch):
    return small.train_data(size, seed=seed, epoch=epoch).repeat()

def error(index, changed, plan=plan("none")):
    try:
        train(changed, plan, run_dir=Path(sys.argv[1]) / str(index), epochs=1, verbose=0)
    except TfaccelError as found:
        return [type(found).__name__, str(found), (Path(sys.argv[1]) / str(index)).exists()]
    return "no error"

print(json.dumps([
    error(0, replace(small, train_data=empty)),
    error(1, replace(small, train_data=infinite)),
    error(2, replace(small, train_data=lambda size, *, seed, epoch: [1, 2])),
    error(3, replace(small, build_model=lambda: "text")),
    error(4, small, plan("none", cache_data=True)),
    error(5, replace(small, callbacks=lambda: [keras.callbacks.BackupAndRestore(sys.argv[1] + "/backup")])),
]))
"""


ACCUMULATED = """
import json, sys
from pathlib import Path
import keras
import numpy as np
from tfaccel import train
from tfaccel.training.schedules import AccumulatedSchedule
from train_workload import plan, workload

class Rates(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        rates.append(float(getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer).learning_rate))

def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])

def compile_args():
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.PolynomialDecay(0.1, 10, 0.0))
    if loss_scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return {"optimizer": optimizer, "loss": "mse"}

def train_data(size, *, seed, epoch):
    return small.train_data(size, seed=seed, epoch=epoch).unbatch().take(40).batch(size, drop_remainder=True)

small = workload()
made = type(small)("small", build_model, compile_args, train_data, global_batch_size=8)
found = []
for loss_scale, steps in ((False, 1), (False, 4), (True, 4)):
    run_dir = Path(sys.argv[1]) / f"{steps}-{loss_scale}"
    rates = []
    train(made, plan("none", accumulation_steps=steps), run_dir=run_dir, epochs=2, verbose=0, callbacks=[Rates()])
    model = keras.models.load_model(run_dir / "model.keras")
    found.append(model.get_weights())
    config = getattr(model.optimizer, "inner_optimizer", model.optimizer).get_config()["learning_rate"]
    print(steps, len(rates), rates[-1], config["class_name"])
print(max(np.abs(a - b).max() for a, b in zip(found[0], found[1])))
print(max(np.abs(a - b).max() for a, b in zip(found[0], found[2])))

schedule = AccumulatedSchedule(keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0), 4)
copied = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
print([float(copied(step)) for step in (0, 3, 4, 23)])
"""


KEPT = """
import json, sys
import keras
import numpy as np
from tfaccel import load_run, train
from train_workload import plan, workload

class Worse(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            weights.extend(self.model.get_weights())
            self.model.optimizer.learning_rate.assign(10.0)

weights = []
result = train(workload(), plan("none"), run_dir=sys.argv[1], epochs=5, checkpoint_interval=2, keep_checkpoints=1,
               verbose=0, callbacks=[Worse()])
best = load_run(sys.argv[1]).load_model(checkpoint="best").get_weights()
print(json.dumps([result.history["val_loss"], all(np.array_equal(a, b) for a, b in zip(weights, best, strict=True))]))
"""


def test_best_checkpoint_is_kept_and_loaded(run_python, tmp_path):
    losses, is_best = json.loads(run_python(KEPT, tmp_path / "run", cwd=HERE).stdout.splitlines()[-1])
    assert min(losses) == losses[1]
    assert is_best
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("placement", ["none", pytest.param("mirrored_2", marks=pytest.mark.slow)])
def test_loss_that_is_not_finite_names_its_step(run_python, tmp_path, placement):
    child = run_python(NAN, tmp_path / "nan", placement, cwd=HERE)
    ended = json.loads(child.stdout.splitlines()[-1])
    first, files, kept, resumed, untouched, at_once = ended
    assert first.startswith("The loss became NaN or infinite at step 4 of epoch 1. The input of row 5 of the batch")
    assert resumed == first  # steps are counted from the start of the epoch, not from where it resumed
    assert "model.keras" not in files
    assert "result.json" not in files
    assert kept == ["step_0000000003"]
    assert untouched
    assert "at step 1 of epoch 1" in at_once


def test_unusable_workloads_are_named(run_python, tmp_path):
    found = json.loads(run_python(REFUSED, tmp_path, cwd=HERE).stdout.splitlines()[-1])
    assert [name for name, _, _ in found] == ["WorkloadError"] * 4 + ["PlanError", "WorkloadError"]
    texts = [text for _, text, _ in found]
    assert "returned no batches. Use a smaller global_batch_size" in texts[0]
    assert "returned an infinite dataset. Return one epoch" in texts[1]
    assert "train_data must return a tf.data.Dataset of batches. Received: [1, 2]" in texts[2]
    assert "build_model of workload 'small' must return a Keras 3 model. Received: 'text'" in texts[3]
    assert "takes no `cache`. Set cache_data=False" in texts[4]
    assert "`train` and BackupAndRestore both restore the training state. Leave out BackupAndRestore" in texts[5]
    assert [there for _, _, there in found] == [False] * 6  # no incomplete run directories


@pytest.mark.slow
def test_accumulated_steps_follow_the_schedule_of_single_ones(run_python, tmp_path):
    lines = run_python(ACCUMULATED, tmp_path, cwd=HERE).stdout.splitlines()
    # Ten optimizer steps of eight examples; the final learning rate is that of the eleventh.
    assert [line.split()[:2] + line.split()[3:] for line in lines[:3]] == [
        ["1", "10", "PolynomialDecay"],
        ["4", "10", "PolynomialDecay"],
        ["4", "10", "PolynomialDecay"],
    ]
    assert [float(line.split()[2]) for line in lines[:3]] == [0.0, 0.0, 0.0]
    assert float(lines[3]) < 1e-5
    assert float(lines[4]) < 1e-5
    assert json.loads(lines[5]) == pytest.approx([1.0, 1.0, 0.9, 0.5])


def never_called(*arguments, **options):
    raise AssertionError("data must not be read")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"epochs": 0}, r"`epochs` must be a whole number of at least 1. Received: epochs=0"),
        ({"epochs": 1.5}, r"`epochs` must be a whole number .* epochs=1.5"),
        ({"epochs": True}, r"`epochs` must be a whole number .* epochs=True"),
        ({"epochs": 1, "checkpoint_interval": 0}, r"`checkpoint_interval` must be .*Received: checkpoint_interval=0"),
    ],
)
def test_numbers_are_checked_first(tmp_path, options, text):
    workload = Workload("small", never_called, never_called, never_called, global_batch_size=8)
    with pytest.raises(ValueError, match=text):
        train(workload, PLAN, run_dir=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_run_directory_is_checked_before_anything_starts(tmp_path):
    (tmp_path / "notes").write_text("kept")
    workload = Workload("small", never_called, never_called, never_called, global_batch_size=8)
    with pytest.raises(RunDirError, match="holds no run of tfaccel"):
        train(workload, PLAN, run_dir=tmp_path, epochs=1)
