"""Slots on the replica that updates their weight, or on the host: the weights of replicated slots, to the last bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from slot_models import (
    BATCH,
    BOTH,
    OPTIMIZERS,
    X,
    Y,
    assert_equal,
    built,
    compare,
    fit,
    optimizers,
    state,
    strategy_of,
)

import tfaccel
from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan
from tfaccel.training.fit_plan import plan_of_model
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slots import owners_by_size, slot_bytes

pytestmark = pytest.mark.usefixtures("logical_devices")

QUICK = ("global_clipnorm",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OPTIMIZERS]
)
def test_sharded_slots_give_the_weights_of_replicated_ones(name):
    compare(OPTIMIZERS[name], "sharded")


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_on_the_host_give_the_weights_of_replicated_ones(name):
    compare(OPTIMIZERS[name], "host", (1, 2))


def test_slots_on_the_host_of_one_replica():
    [_, model] = compare(OPTIMIZERS["AdamW"], "host", (1,))
    assert {v.value.device[-5:] for v in model.optimizer.variables if v.shape.rank} == {"CPU:0"}
    assert {v.value.device[-5:] for v in model.weights} == {"CPU:1"}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "name"), [("sharded", "Adam"), ("host", "Adam"), ("sharded", "accumulation")])
def test_under_xla(how, name):
    compare(OPTIMIZERS[name], how, jit_compile=True)


@pytest.mark.slow
def test_xla_rounds_accumulated_gradients_otherwise_on_the_host():
    """Keras's update is within a condition on the devices, and without one on the host: XLA fuses them differently."""
    models = [built(OPTIMIZERS["accumulation"], jit_compile=True) for _ in range(2)]
    for model, how in zip(models, ("replicated", "host"), strict=True):
        fit(model, how)
    for one, other in zip(*map(state, models), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


@pytest.mark.slow
@BOTH
def test_with_fused_kernels_and_more_replicas_than_large_weights(how):
    compare(OPTIMIZERS["AdamW"], how, (0, 1, 2, 3), fields={"fused_kernels": True})


@pytest.mark.slow
def test_replicas_without_a_weight_count_steps():
    def make_model(how):
        keras.utils.set_random_seed(1)
        with strategy_of((0, 1, 2, 3)).scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, use_bias=False)])
            model.compile(optimizers.Nadam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        fit(model, how)
        return model

    sharded = make_model("sharded")
    assert_equal(make_model("replicated"), sharded)
    local = sharded.distribute_strategy.experimental_local_results(sharded.optimizer.iterations.value)
    assert [int(part) for part in local] == [12, 12, 12, 12]


@pytest.mark.slow
def test_overflow_on_one_replica_skips_the_step_on_all():
    x = X.copy()
    x[2 * BATCH - 1] = np.inf  # of the last replica, in the second batch
    models = [built(lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=1e4)) for _ in range(2)]
    for model, how in zip(models, ("replicated", "sharded"), strict=True):
        plan = plan_of_model(model, batch_size=BATCH, optimizer_state=how, synchronize_batch_norm=False)
        options = {"batch_size": BATCH, "verbose": 0, "shuffle": False, "check_rows": False}
        tfaccel.fit(model, x, Y, plan=plan, **options)
    assert int(models[1].optimizer.iterations.numpy()) == 5  # of six
    assert_equal(*models)


class TwoUpdates(keras.Model):
    """Updates its weights twice in a step of its own, the second time by what the first has changed."""

    def train_step(self, data):
        x, y = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            weights = self.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@pytest.mark.slow
@BOTH
def test_own_train_step(how):
    compare(OPTIMIZERS["Adam"], how, kind=TwoUpdates)


@pytest.mark.slow
@BOTH
def test_batches_that_are_left_out(how):
    x = X.copy()
    x[20] = np.nan
    models = [built(OPTIMIZERS["Adam"]) for _ in range(2)]
    for model, one in zip(models, ("replicated", how), strict=True):
        plan = plan_of_model(model, batch_size=BATCH, optimizer_state=one, synchronize_batch_norm=False)
        options = {"batch_size": BATCH, "verbose": 0, "shuffle": False, "check_rows": False, "on_nonfinite": "skip"}
        tfaccel.fit(model, x, Y, plan=plan, **options)
        assert int(model.optimizer.iterations.numpy()) == 5  # of six
    assert_equal(*models)


def test_half_of_the_slots_on_each_of_two_replicas():
    def get_bytes(how):
        keras.utils.set_random_seed(1)
        with strategy_of((0, 1)).scope():
            layers = [keras.layers.Dense(size) for size in (300, 300, 300, 3)]
            model = keras.Sequential([keras.Input((300,)), *layers])
            model.compile("adam", "mse")
        x, y = np.zeros((4, 300), "float32"), np.zeros((4, 3), "float32")
        tfaccel.fit(model, x, y, batch_size=4, verbose=0, plan=plan_of_model(model, batch_size=4, optimizer_state=how))
        return slot_bytes(model.optimizer, Replicas(model.distribute_strategy))

    replicated, sharded, on_host = (get_bytes(how) for how in ("replicated", "sharded", "host"))
    assert len(replicated) == len(sharded) == 2
    assert sum(sharded.values()) == min(replicated.values()) == max(replicated.values())
    assert sum(on_host.values()) == min(replicated.values())
    assert [device[-5:] for device in on_host] == ["CPU:0"]


def test_owners_are_balanced():
    assert owners_by_size([4, 4, 4, 4], 2) == [0, 1, 0, 1]
    assert owners_by_size([1, 9, 2, 6], 2) == [1, 0, 1, 1]
    assert owners_by_size([], 3) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", [("sharded", "replicated"), ("host", "sharded"), ("replicated", "host")])
def test_each_call_of_fit_may_place_slots_elsewhere(path):
    moved, kept = built(OPTIMIZERS["EMA"]), built(OPTIMIZERS["EMA"])
    for how in path:
        fit(moved, how, epochs=1)
        fit(kept, "replicated", epochs=1)
    assert_equal(moved, kept)


@pytest.mark.slow
def test_saved_models_have_all_slots(tmp_path):
    [_, model] = compare(OPTIMIZERS["Adam"], "sharded")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("sharded", (0, 1)), ("replicated", (0, 1))),
        (("replicated", (0, 1)), ("sharded", (0, 1))),
        (("sharded", (0, 1)), ("host", (0, 1))),
    ],
)
def test_a_run_resumes_with_slots_elsewhere(tmp_path, first, second):
    whole = built(OPTIMIZERS["accumulation"])
    fit(whole, "replicated", epochs=4)
    for (how, devices), epochs in ((first, 2), (second, 4)):
        resumed = built(OPTIMIZERS["accumulation"], devices)
        fit(resumed, how, epochs=epochs, callbacks=[tfaccel.Resume(tmp_path / "run")])
    assert_equal(whole, resumed)


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_replicas(tmp_path):
    fields = {"synchronize_batch_norm": True}
    whole = built(OPTIMIZERS["AdamW"], (0,), synchronized=True)
    fit(whole, "replicated", epochs=4, fields=fields)
    for how, devices, epochs in (("sharded", (0, 1), 2), ("sharded", (0, 1, 2, 3), 3), ("replicated", (0,), 4)):
        resumed = built(OPTIMIZERS["AdamW"], devices, synchronized=True)
        fit(resumed, how, epochs=epochs, fields=fields, callbacks=[tfaccel.Resume(tmp_path / "run")])
    for one, other in zip(state(whole), state(resumed), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_one_replica_is_told_that_sharding_changes_nothing(caplog):
    models = [built(OPTIMIZERS["Adam"], (1,)) for _ in range(2)]
    for model, how in zip(models, ("replicated", "sharded"), strict=True):
        fit(model, how)
    assert_equal(*models)
    found = [record.message for record in caplog.records if "optimizer_state" in record.message]
    assert found == ["optimizer_state='sharded' changes nothing: there is one replica, which has all slots."]


@pytest.mark.slow
def test_plain_keras_does_not_update_slots_twice():
    model = built(OPTIMIZERS["Adam"])
    fit(model, "sharded")
    with pytest.raises(PlanError, match=r"slots are not on every replica.*compile the model with a new optimizer for"):
        model.fit(X, Y, batch_size=BATCH, verbose=0)
    fit(model, "replicated")
    model.optimizer.apply([tf.zeros(v.shape) for v in model.trainable_variables], model.trainable_variables)


class Everywhere(optimizers.SGD):
    """Looks at all gradients together."""

    def _clip_gradients(self, grads):
        return [gradient / len(grads) for gradient in grads]


class Elsewhere(optimizers.SGD):
    """Keeps a slot outside the lists."""

    def build(self, variables):
        super().build(variables)
        self.of_first = self.add_variable_from_reference(variables[0], name="first")


def accumulating_parts():
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.Adam(gradient_accumulation_steps=2), {"second": optimizers.SGD(0.1)})
    )


@pytest.mark.parametrize(
    ("make_optimizer", "how", "message"),
    [
        (lambda: Everywhere(0.1), "sharded", "which also defines _clip_gradients. Use optimizer_state='replicated'."),
        (lambda: Elsewhere(0.1), "sharded", "in model.optimizer, which keeps .*first elsewhere"),
        (accumulating_parts, "sharded", "not for parts of a MultiOptimizer that accumulate gradients"),
        (
            lambda: optimizers.Adam(use_ema=True, gradient_accumulation_steps=2),
            "host",
            "Received: Adam with use_ema=True and gradient_accumulation_steps=2. Use optimizer_state='sharded'",
        ),
    ],
)
def test_refused_before_the_first_step(make_optimizer, how, message):
    model = built(make_optimizer)
    before = [weight.numpy() for weight in model.weights]
    with pytest.raises(PlanError, match=message):
        fit(model, how)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


def test_callbacks_that_read_slots_everywhere():
    model = built(OPTIMIZERS["EMA"])
    with pytest.raises(
        PlanError, match=r"SwapEMAWeights reads the optimizer's slots .* Use the optimizer's use_ema alone"
    ):
        fit(model, "sharded", callbacks=[keras.callbacks.SwapEMAWeights()])


def test_not_with_row_updates():
    with pytest.raises(PlanError, match=r"embedding_updates='rows' rows of them on every replica. Received: both. Use"):
        Plan(
            strategy="mirrored",
            devices=("GPU:0", "GPU:1"),
            global_batch_size=8,
            optimizer_state="sharded",
            embedding_updates="rows",
        )


def test_not_on_tpus():
    with pytest.raises(PlanError, match=r"Received: optimizer_state='sharded', strategy='tpu'. Use optimizer_state="):
        Plan(strategy="tpu", devices=("TPU:0", "TPU:1"), global_batch_size=8, tpu="local", optimizer_state="sharded")
