"""The installed package trains: the first recipe by its command, and two replicas as one device does."""

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest


def test_recipe_trains_by_its_command(tmp_path):
    command = Path(sysconfig.get_path("scripts")) / "tfaccel"
    arguments = ["train", "--recipe=image_classification", "--epochs=1", "--run_dir=run", "--quiet"]
    ended = subprocess.run(
        [command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["recipe"] == "image_classification"
    assert (tmp_path / "run/plan.json").is_file()
    assert (tmp_path / "run/model.keras").is_file()


@pytest.mark.slow
def test_two_replicas_give_what_one_device_gives(run_python):
    child = run_python(
        """
import keras, numpy as np, tensorflow as tf, tfaccel

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(43, 8)).astype("float32"), rng.integers(0, 3, 43)

def build():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model

options = dict(batch_size=16, epochs=4, shuffle=False, verbose=0)
plain = build()
expected = plain.fit(x, y, **options).history
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    mirrored = build()
received = tfaccel.fit(mirrored, x, y, **options).history
print(max(np.abs(a - b).max() for a, b in zip(plain.get_weights(), mirrored.get_weights(), strict=True)))
print(max(np.abs(np.subtract(expected[name], received[name])).max() for name in ("loss", "accuracy")))
""",
        fresh=True,
    )
    weights_difference, history_difference = map(float, child.stdout.split()[-2:])
    assert weights_difference < 1e-5
    assert history_difference < 1e-5
