"""Whether steps run in a loop is decided once, and a resumed run keeps what was decided."""

CODE = """
import keras
import tensorflow as tf
from tfaccel import Plan, Workload, train
from tfaccel.training import windows
from tfaccel.training.checkpoint import load_newest
from pathlib import Path
import sys

def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

def train_data(size, *, seed, epoch):
    return tf.data.Dataset.from_tensors((tf.ones((size, 4)), tf.zeros((size, 1)))).repeat(6)

work = Workload("steps", build_model, lambda: {"optimizer": "sgd", "loss": "mse"}, train_data, global_batch_size=8)
plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
run_dir = Path(sys.argv[1])

class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt

def decided(long_step_seconds, name, callbacks):
    windows.LONG_STEP_SECONDS = long_step_seconds
    try:
        train(work, plan, run_dir=run_dir / name, epochs=2, resume="auto", verbose=0, callbacks=callbacks)
    except KeyboardInterrupt:
        pass
    _, position = load_newest(run_dir / name / "checkpoints")
    return position["epoch"], position["loops"]["train"]

assert decided(0.0, "long", [Stop()]) == (1, False)
assert decided(1000.0, "long", []) == (2, False)
assert decided(1000.0, "short", [Stop()]) == (1, True)
assert decided(0.0, "short", []) == (2, True)
"""


def test_decision_on_loops_is_kept(run_python, tmp_path):
    run_python(CODE, tmp_path)
