"""Out of memory while training: smaller batches, the same global batch, the same results; or an error that helps."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tfaccel import Plan
from tfaccel.errors import DataError, OutOfMemoryError, RunDirError
from tfaccel.planning.placements import SET_BY_YOU

HERE = Path(__file__).parent
# TensorFlow's allocator for oneDNN refuses what is above the limit, so that nothing else in the process runs short.
LIMIT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_MKL_ALLOC_MAX_BYTES": str(52 << 20)}


def outcomes(run_python, folder, *cases):
    env = {**LIMIT, "PYTHONPATH": str(HERE)}
    child = run_python("memory_workload", *cases, cwd=folder, env=env, fresh=True)
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.slow
def test_whole_run_is_that_with_smaller_batches_from_the_start(run_python, tmp_path):
    found, lines = outcomes(run_python, tmp_path, "none:1", "none:2")
    assert found["none:1"]["accumulation_steps"] == 2
    assert found["none:1"]["weights"] == found["none:2"]["weights"]
    assert found["none:1"]["history"] == found["none:2"]["history"]
    assert lines == [
        "Out of memory with batches of 1024 rows per replica (OOM when allocating tensor with shape[1024,256,32]): "
        "training continues from its start with 512 rows and accumulation_steps=2, so that the global batch stays "
        "1024. To start with it: --accumulation_steps=2"
    ]
    plan = Plan.from_json(found["none:1"]["saved_plan"])
    assert (plan.accumulation_steps, plan.global_batch_size) == (2, 1024)
    assert dict(plan.reasons)["accumulation_steps"] == "Batches of 1024 rows per replica ran out of memory."


@pytest.mark.slow
def test_on_two_replicas_and_in_a_later_epoch(run_python, tmp_path):
    cases = ("mirrored_2:1", "mirrored_2:2", "normalized", "never", "late", "within an epoch")
    found, lines = outcomes(run_python, tmp_path, *cases)
    assert found["mirrored_2:1"]["accumulation_steps"] == 2
    assert found["mirrored_2:1"]["weights"] == found["mirrored_2:2"]["weights"]
    assert "batch normalization (norm) would take its statistics over fewer rows" in found["normalized"]["error"]
    # The second epoch ran out of memory; neither lost nor repeated examples: the result is that without a shortage.
    assert "training continues from the newest checkpoint (epoch 2, step 1) with 256 rows" in lines[-2]
    assert "training continues from the newest checkpoint (epoch 2, step 5) with 256 rows" in lines[-1]
    assert found["never"]["accumulation_steps"] == 1
    for case in ("late", "within an epoch"):
        assert found[case]["accumulation_steps"] == 2
        for one, other in zip(found["never"]["weights"], found[case]["weights"], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_steps_are_repeated_when_a_replica_was_cancelled_and_nobody_knows_why(run_python, tmp_path):
    found, lines = outcomes(run_python, tmp_path, "cancelled 0", "cancelled 2")
    assert found["cancelled 2"]["weights"] == found["cancelled 0"]["weights"]
    assert found["cancelled 2"]["history"] == found["cancelled 0"]["history"]
    assert found["cancelled 2"]["accumulation_steps"] == 1
    assert len(lines) == 2
    assert lines[0].startswith("A replica was cancelled, because another one had failed; TensorFlow does not say how")


@pytest.mark.slow
def test_error_of_a_replica_that_is_cancelled_again_and_again_is_raised(logical_devices, tmp_path, monkeypatch):
    import tensorflow as tf

    from tfaccel.training.run import recovery
    from tfaccel.training.run.out_of_memory import smaller_batches_if_out_of_memory
    from tfaccel.training.run.run_dir import RunDir
    from tfaccel.training.steps.replicas import Replicas

    model, work = model_and_work()
    plan = Plan(strategy="mirrored", devices=("CPU:0", "CPU:1"), global_batch_size=8, num_logical_cpus=2)
    strategy, attempts = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), []

    class Cancelled:
        dropped, place = frozenset(), "from its start"

        def __init__(self, *given, **where):
            attempts.append(given)

        def run(self):
            with smaller_batches_if_out_of_memory(model, work, plan, Replicas(strategy)):
                raise tf.errors.CancelledError(None, None, "Function was cancelled before it was started")

    monkeypatch.setattr(recovery, "TrainSession", Cancelled)
    runtime, directory = SimpleNamespace(seed_generators=lambda: None), RunDir(tmp_path / "run", {})
    run = SimpleNamespace(workload=work, directory=directory, runtime=runtime, epochs=1, limit=None)
    with pytest.raises(tf.errors.CancelledError, match="before it was started"):
        recovery.train_until_done(run, plan)
    assert len(attempts) == 3


def test_shortage_is_told_from_other_exhausted_resources(logical_devices):
    import tensorflow as tf

    from tfaccel.errors import is_out_of_memory

    exhausted = tf.errors.ResourceExhaustedError
    assert is_out_of_memory(exhausted(None, None, "Out of memory while trying to allocate 8 bytes."))
    assert not is_out_of_memory(exhausted(None, None, "run/file; Too many open files"))
    assert not is_out_of_memory(MemoryError())


def model_and_work(normalized=False, loss="mse", data=None, num_rows=8):
    import keras
    import tensorflow as tf

    from tfaccel import Workload

    x = np.ones((8, 4), "float32")
    normalizing = [keras.layers.BatchNormalization(name="norm")] if normalized else []
    model = keras.Sequential([keras.Input((4,)), *normalizing, keras.layers.Dense(4)])
    model.compile("sgd", loss)

    def train_data(global_batch_size, *, seed, epoch):
        values = np.random.default_rng(0).normal(size=(num_rows, 4)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((values, values)).batch(global_batch_size)

    given = {"optimizer": "sgd", "loss": "mse"}
    if data is not None:
        return model, Workload.of(lambda: keras.models.clone_model(model), data(x), **given)
    return model, Workload("small", object, dict, train_data, global_batch_size=8)


def why_not(model, work, **fields):
    from tfaccel.training.run.out_of_memory import why_not_smaller
    from tfaccel.training.steps.replicas import Replicas

    plan = Plan(**{"strategy": "none", "devices": ("CPU:0",), "global_batch_size": 8, **fields})
    return why_not_smaller(model, work, plan, Replicas(model.distribute_strategy))


def test_reasons_against_smaller_batches(logical_devices):
    import keras
    import tensorflow as tf

    def contrastive(y_true, y_pred):
        return tf.reduce_mean(tf.matmul(y_pred, y_true, transpose_b=True) ** 2)

    assert why_not(*model_and_work()) is None
    assert "batch normalization (norm)" in why_not(*model_and_work(normalized=True))
    assert "the loss (contrastive) is not a mean over the rows" in why_not(*model_and_work(loss=contrastive))
    by_sum = keras.losses.MeanSquaredError(reduction="sum")
    assert "the loss (mean_squared_error) has reduction='sum'" in why_not(*model_and_work(loss=by_sum))
    assert "an epoch of 12 rows does not divide into batches of 8" in why_not(*model_and_work(num_rows=12))
    dataset = model_and_work(data=lambda x: tf.data.Dataset.from_tensor_slices((x, x)).batch(8))
    assert "the tf.data.Dataset decides how many rows a batch has" in why_not(*dataset)
    assert "One row is the smallest batch. What helps: a smaller model" in why_not(
        *model_and_work(), accumulation_steps=8
    )
    assert "3 rows cannot be halved" in why_not(*model_and_work(), global_batch_size=3)
    chosen = why_not(*model_and_work(), reasons=[("accumulation_steps", SET_BY_YOU)])
    assert chosen == (
        "accumulation_steps=1 was set by you, and is not changed: set accumulation_steps=2 (--accumulation_steps=2)."
    )
    model, work = model_and_work()
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=4), "mse")
    assert "the optimizer accumulates gradients itself, over 4 batches" in why_not(model, work)


def test_any_other_error_passes(logical_devices):
    import tensorflow as tf

    from tfaccel.training.run.out_of_memory import BatchTooLarge, smaller_batches_if_out_of_memory
    from tfaccel.training.steps.replicas import Replicas

    def raising(error, **fields):
        model, work = model_and_work()
        plan = Plan(**{"strategy": "none", "devices": ("CPU:0",), "global_batch_size": 8, **fields})
        with smaller_batches_if_out_of_memory(model, work, plan, Replicas(model.distribute_strategy)):
            raise error

    with pytest.raises(DataError):
        raising(DataError("odd"))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"):
        raising(tf.errors.ResourceExhaustedError(None, None, "file; No space left on device"))
    shortage = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9,9] and type float")
    with pytest.raises(BatchTooLarge, match=r"OOM when allocating tensor with shape\[9,9\]") as caught:
        raising(shortage)
    assert caught.value.plan.accumulation_steps == 2
    with pytest.raises(
        OutOfMemoryError, match=r"batches of 1 rows per replica \(OOM .*\[9,9\]\)\. One row is the small"
    ):
        raising(shortage, accumulation_steps=8)


def in_one(steps):
    import keras

    return keras.optimizers.Adam(0.1, gradient_accumulation_steps=steps)


def in_parts_of_one(steps):
    import keras

    kinds = keras.optimizers
    rest = kinds.SGD(0.1, momentum=0.9, gradient_accumulation_steps=steps)
    return kinds.MultiOptimizer(kinds.OptimizerMap(rest, {".*kernel": in_one(steps)}))


# With a half accumulated gradient, or without accumulators in the checkpoint: accumulation, batch, first row after it.
BEGUN = [(2, 8, 24), (None, 16, 16)]


@pytest.mark.parametrize(
    ("optimizer", "num_replicas"),
    [
        (in_one, 1),
        (in_parts_of_one, 1),
        *(pytest.param(kind, 2, marks=pytest.mark.slow) for kind in (in_one, in_parts_of_one)),
    ],
)
def test_state_of_a_run_that_accumulates_continues_in_smaller_batches(logical_devices, optimizer, num_replicas):
    import keras
    import tensorflow as tf

    from tfaccel import fit
    from tfaccel.training.run.changed_run import state_in_parts
    from tfaccel.training.run.checkpoint import read_state, write_state
    from tfaccel.training.steps.model_parts import get_optimizers
    from tfaccel.training.steps.replicas import Replicas

    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")

    def make_model(steps):
        keras.utils.set_random_seed(0)
        several = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
        strategy = several if num_replicas > 1 else tf.distribute.get_strategy()
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(optimizer(steps), "mse")
            model.optimizer.build(model.trainable_variables)
        return model, Replicas(strategy)

    def trained(model, rows, size):
        fit(model, rows, rows[:, :1], batch_size=size, epochs=1, shuffle=False, verbose=0)

    whole, _ = make_model(2)
    trained(whole, x, 8)
    for before, size, first in BEGUN:
        begun, replicas = make_model(before)
        trained(begun, x[:first], size)
        model, replicas = make_model(4)
        parts = 4 // (before or 1)
        state = state_in_parts(read_state(begun, replicas), model, parts, num_replicas=num_replicas)
        write_state(model, replicas, state)
        trained(model, x[first:], 4)
        counters = [int(one.variables[0].numpy()) for one in get_optimizers(model).values()]
        assert counters == [8]  # batches, of a `MultiOptimizer` too
        for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_batches_of_a_checkpoint_are_never_joined():
    from tfaccel.training.run.changed_run import parts_per_batch

    assert parts_per_batch({"step": 4}, 3) == 1  # written before checkpoints said it
    with pytest.raises(RunDirError, match=r"accumulation_steps=2, and can be continued with a multiple of it only"):
        parts_per_batch({"accumulation_steps": 2}, 3)
