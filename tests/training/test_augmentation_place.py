"""Augmentation on the host and on the device gives the same training; the place is measured and logged once."""

import json
import logging
import re
from dataclasses import replace

import numpy as np
import pytest

from tfaccel import Plan, Workload, train
from tfaccel.errors import PlanError
from tfaccel.planning.rules import AUGMENT_ON_UNMEASURED
from tfaccel.training.run.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("logical_devices")

BATCH, NUM_ROWS = 8, 35
ONE = Plan(strategy="none", devices=("CPU:0",), global_batch_size=BATCH)
TWO = Plan(strategy="mirrored", devices=("CPU:0", "CPU:1"), num_logical_cpus=2, global_batch_size=BATCH)
UNPLACED = replace(ONE, reasons=(("augment_on", AUGMENT_ON_UNMEASURED),))
WAIT_SECONDS = 0.02


def added(batch):
    """Adds to each row the noise that was drawn for it."""
    (x, y), noise = batch
    return x + noise, y


def blended(batch):
    """Adds to each row a random multiple of the previous row of the global batch."""
    import tensorflow as tf

    (x, y), noise = batch
    return x + tf.roll(x, 1, axis=0) * noise, y


def waiting(value):
    """Returns the value after a delay."""
    import time

    import tensorflow as tf

    def wait(value):
        time.sleep(WAIT_SECONDS)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [value], value.dtype), value.shape)


def build_model():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])


def workload(augment=added, *, on_host=None):
    """Regression on noisy rows; `on_host` replaces `augment` in the pipeline."""

    def train_data(global_batch_size, *, seed, epoch, start_step=0, shard=None, augmented=True):
        import tensorflow as tf

        from tfaccel.data.epochs import Part

        generator = np.random.default_rng([seed, epoch])
        x, noise = generator.normal(size=(2, NUM_ROWS, 3)).astype("float32")
        places = Part(
            global_batch_size=global_batch_size, seed=seed, epoch=epoch, start_step=start_step, shard=shard
        ).positions(NUM_ROWS)
        arrays = (x[places], x[places].sum(-1, keepdims=True)), noise[places]
        batches = tf.data.Dataset.from_tensor_slices(arrays)
        return batches.map(lambda *batch: (on_host or augment)(batch)) if augmented else batches

    return Workload(
        "noisy",
        build_model,
        lambda: {"optimizer": "sgd", "loss": "mse"},
        train_data,
        global_batch_size=BATCH,
        augment=augment,
        augment_mixes_rows=augment is blended,
    )


def on_device(plan):
    return replace(plan, augment_on="device")


def weights_after_training(work, plan, *, whole_step=False):
    from tfaccel.training.private import private_models
    from tfaccel.training.run.session import compiled_model
    from tfaccel.training.run.workload_source import WorkloadSource
    from tfaccel.training.runtime import Runtime
    from tfaccel.training.steps.engine import EngineOptions, get_engine
    from tfaccel.training.steps.replicas import Replicas

    work = replace(work, build_model=lambda: keras_model_without_dropout())
    with Runtime(plan, seed=1) as runtime:
        source = WorkloadSource(work, plan, Replicas(runtime.strategy), seed=0)
        with runtime.strategy.scope():
            model = compiled_model(work, plan, num_steps=None)
        private_models.build_model(model, source.batch_spec)
        engine = get_engine(model, EngineOptions(whole_step=whole_step))
        assert engine.run("train", source.feed(), 4).num_steps == 4
        source.close()
        return np.concatenate([weight.ravel() for weight in model.get_weights()])


def keras_model_without_dropout():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


@pytest.mark.parametrize("augment", [pytest.param(added, marks=pytest.mark.slow), blended])
def test_training_is_the_same_wherever_batches_are_augmented(augment):
    work = workload(augment)
    expected = weights_after_training(work, ONE)
    assert not np.allclose(expected, weights_after_training(workload(on_host=lambda batch: batch[0]), ONE), atol=1e-3)
    assert weights_after_training(work, on_device(ONE)) == pytest.approx(expected, abs=1e-6)
    for whole_step in (False, True):
        assert weights_after_training(work, TWO, whole_step=whole_step) == pytest.approx(expected, abs=1e-6)
        found = weights_after_training(work, on_device(TWO), whole_step=whole_step)
        assert found == pytest.approx(expected, abs=1e-6)


def test_nothing_is_placed_without_augment_or_with_several_workers():
    from tfaccel.training.run.augmentation_place import place_augmentation

    plain = replace(workload(), augment=None)
    assert place_augmentation(plain, UNPLACED) is UNPLACED
    workers = replace(UNPLACED, strategy="multi_worker_mirrored", num_workers=2, augment_on="device")
    placed = place_augmentation(workload(), workers)
    assert placed.augment_on == "host"
    assert dict(placed.reasons)["augment_on"].startswith("Not measured: there are several workers")


@pytest.mark.slow
@pytest.mark.parametrize("plan", [ONE, TWO], ids=["one", "two"])
def test_the_faster_place_is_found(plan):
    from tfaccel.training.run.augmentation_place import place_augmentation
    from tfaccel.training.runtime import Runtime

    def slow(batch):
        (x, y), noise = batch
        return added(((waiting(x), y), noise))

    with Runtime(plan, seed=0):
        slow_host = place_augmentation(workload(on_host=slow), plan, window_seconds=0.1)
        slow_device = place_augmentation(workload(slow, on_host=added), on_device(plan), window_seconds=0.1)
    assert (slow_host.augment_on, slow_device.augment_on) == ("device", "host")
    assert replace(slow_host, augment_on="host") == plan
    pattern = r"Measured here: a step takes ([\d.e+]+) ms on the host and ([\d.e+]+) ms on the device\."
    times = [re.fullmatch(pattern, dict(p.reasons)["augment_on"]).groups() for p in (slow_host, slow_device)]
    assert float(times[0][0]) > float(times[0][1])
    assert float(times[1][0]) < float(times[1][1])


def test_a_device_that_cannot_run_it_leaves_it_to_the_host():
    import tensorflow as tf

    from tfaccel.training.run.augmentation_place import place_augmentation

    def impossible(batch):
        with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), ["no such kernel"])]):
            return added(batch)

    placed = place_augmentation(workload(impossible, on_host=added), ONE)
    assert placed.augment_on == "host"
    assert dict(placed.reasons)["augment_on"].startswith(
        "The device cannot run `augment`: assertion failed: [no such kernel]"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such kernel"):  # an error on the host is raised
        place_augmentation(workload(added, on_host=impossible), ONE)


@pytest.mark.slow
def test_train_places_what_the_rules_left_open(tmp_path, caplog):
    def slow(batch):
        (x, y), noise = batch
        return added(((waiting(x), y), noise))

    work = workload(on_host=slow)
    caplog.set_level(logging.INFO, "tfaccel")
    placed = train(work, UNPLACED, run_dir=tmp_path / "placed", epochs=2, verbose=0)
    said = [record.message for record in caplog.records if record.message.startswith("augment_on=")]
    assert len(said) == 1
    assert said[0].startswith("augment_on=device: Measured here: a step takes ")
    assert said[0].endswith("To decide it yourself: --set=augment_on=VALUE")
    assert placed.plan.augment_on == "device"
    assert json.loads((tmp_path / "placed" / "plan.json").read_text())["augment_on"] == "device"

    fixed = train(work, on_device(ONE), run_dir=tmp_path / "fixed", epochs=2, verbose=0)
    assert fixed.history == placed.history  # the measurement changes neither weights nor dropout
    assert len([r for r in caplog.records if r.message.startswith("augment_on=")]) == 1


def test_a_run_goes_on_with_the_place_that_it_began_with(tmp_path):
    from tfaccel.training.run.augmentation_place import place_for_run
    from tfaccel.training.runtime import Runtime

    RunDir(tmp_path / "run", {}).start(on_device(ONE).to_json())
    resumed = RunDir(tmp_path / "run", {}, resume="auto")
    placed = place_for_run(workload(), UNPLACED, resumed, Runtime(ONE), epochs=1)
    assert placed.augment_on == "device"
    assert dict(placed.reasons)["augment_on"] == "The run started with it."
    assert place_for_run(workload(), ONE, resumed, Runtime(ONE), epochs=1) is ONE


def test_a_plan_with_nothing_to_augment_on_the_device_is_refused(tmp_path):
    with pytest.raises(PlanError, match=r"workload 'noisy' has no `augment`\. Set augment_on='host'\."):
        train(replace(workload(), augment=None), on_device(ONE), run_dir=tmp_path / "run", epochs=1, verbose=0)
    assert not (tmp_path / "run").exists()
