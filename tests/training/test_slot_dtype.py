"""Slots in bfloat16: the same wherever they are, updated in float32, and saved as any others."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from slot_models import (
    BOTH,
    OPTIMIZERS,
    assert_equal,
    built,
    compare,
    fit,
    optimizers,
)

import tfaccel
from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan

pytestmark = pytest.mark.usefixtures("logical_devices")


@pytest.mark.slow
@BOTH
def test_slots_in_bfloat16_are_the_same_everywhere(how, tmp_path):
    rounded = {"optimizer_slots_dtype": "bfloat16"}
    models = compare(OPTIMIZERS["AdamW"], how, fields=rounded)
    slots = [slot for slot in models[1].optimizer.variables if slot.shape.rank]
    assert slots
    assert {slot.value.dtype for slot in slots} == {tf.bfloat16}
    exact = built(OPTIMIZERS["AdamW"])
    losses = fit(exact, "replicated")["loss"], fit(built(OPTIMIZERS["AdamW"]), how, fields=rounded)["loss"]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    models[1].save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer.variables
    for one, other in zip(models[1].optimizer.variables, loaded, strict=True):
        np.testing.assert_array_equal(np.asarray(one.numpy(), "float64"), np.asarray(other.numpy(), "float64"))


def test_update_of_bfloat16_slots_is_computed_in_float32():
    model = built(lambda: optimizers.SGD(0.5, momentum=0.9), (0,))
    fit(model, "replicated", epochs=1, fields={"optimizer_slots_dtype": "bfloat16"}, steps_per_epoch=1)
    exact = built(lambda: optimizers.SGD(0.5, momentum=0.9), (0,))
    fit(exact, "replicated", epochs=1, steps_per_epoch=1)
    for weight, other in zip(model.trainable_weights, exact.trainable_weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), other.numpy(), rtol=0, atol=1e-6)
    for slot, other in zip(model.optimizer.variables, exact.optimizer.variables, strict=True):
        np.testing.assert_allclose(np.asarray(slot.numpy(), "float32"), other.numpy(), rtol=2**-8, atol=1e-9)


@pytest.mark.slow
def test_a_run_with_bfloat16_slots_resumes_to_the_last_bit(tmp_path):
    rounded = {"optimizer_slots_dtype": "bfloat16"}
    whole = built(OPTIMIZERS["Adam"])
    fit(whole, "replicated", epochs=3, fields=rounded)
    for how, epochs in (("sharded", 1), ("replicated", 3)):
        resumed = built(OPTIMIZERS["Adam"])
        fit(resumed, how, epochs=epochs, fields=rounded, callbacks=[tfaccel.Resume(tmp_path / "run")])
    assert_equal(whole, resumed)


@pytest.mark.slow
def test_the_next_call_of_fit_may_store_slots_in_float32_again():
    model = built(OPTIMIZERS["Adam"])
    fit(model, "sharded", fields={"optimizer_slots_dtype": "bfloat16"})
    fit(model, "replicated")
    assert {slot.value.dtype for slot in model.optimizer.variables if slot.shape.rank} == {tf.float32}


def test_bfloat16_slots_are_refused():
    model = built(lambda: optimizers.ScheduleFreeAdamW(0.01))
    with pytest.raises(PlanError, match=r"Received: ScheduleFreeAdamW, which keeps weights in its slots. Use "):
        fit(model, "replicated", fields={"optimizer_slots_dtype": "bfloat16"})
    with pytest.raises(PlanError, match=r"is for updates of whole weights outside of TPUs. Received: strategy='none'"):
        Plan(
            strategy="none",
            devices=("CPU:0",),
            global_batch_size=8,
            optimizer_slots_dtype="bfloat16",
            embedding_updates="rows",
        )
