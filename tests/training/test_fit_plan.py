"""`fit(plan=...)` applies a plan to a compiled model; settings that contradict the model raise an error naming them."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel import Plan, fit
from tfaccel.errors import PlanError
from tfaccel.training.fit import plan_of_model
from tfaccel.training.steps.engine import get_engine

pytestmark = pytest.mark.usefixtures("logical_devices")

X, Y = np.ones((12, 3), "float32"), np.ones((12, 1), "float32")
ONE = Plan(strategy="none", devices=("CPU:0",), global_batch_size=4)


def model(strategy=None, **options):
    with (strategy or tf.distribute.get_strategy()).scope():
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.01, **options), "mse")
    return made


def test_fields_of_the_plan_apply():
    made = model()
    plan = dataclasses.replace(ONE, jit_compile=True, steps_per_execution=2, sum_duplicate_indices=True)
    fit(made, X, Y, plan=plan, verbose=0)
    assert made.optimizer.iterations == 3  # batches of 4
    assert made.jit_compile is True
    assert made.steps_per_execution == 2
    assert get_engine(made).options.sum_duplicate_indices
    fit(made, X, Y, plan=ONE, verbose=0)
    assert made.jit_compile is False
    assert get_engine(made).options.sum_duplicate_indices is False
    fit(made, tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), plan=ONE, shuffle=False, verbose=0)


def test_plan_of_a_model_fits_it():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    made = model(strategy, gradient_accumulation_steps=3)
    plan = plan_of_model(made, batch_size=4, bytes_per_pack=1024)
    assert (plan.strategy, plan.devices, plan.global_batch_size) == ("mirrored", ("CPU:0", "CPU:1"), 12)
    fit(made, X, Y, batch_size=4, plan=plan, verbose=0)
    assert get_engine(made).options.bytes_per_pack == 1024


@pytest.mark.parametrize(
    ("changed", "batch_size", "message"),
    [
        (
            {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2},
            None,
            "strategy is mirrored in the plan and none here; replicas is 2 in the plan and 1 here. Build the model",
        ),
        ({"dtype_policy": "mixed_bfloat16"}, None, "dtype_policy is mixed_bfloat16 in the plan and float32 here"),
        ({}, 3, "batch_size is 4 in the plan and 3 here"),
        ({"accumulation_steps": 2}, None, "accumulation_steps is 2 in the plan and 1 here"),
    ],
)
def test_contradictions_are_refused(changed, batch_size, message):
    made = model()
    with pytest.raises(PlanError, match=message):
        fit(made, X, Y, batch_size=batch_size, plan=dataclasses.replace(ONE, **changed), verbose=0)
    assert made.optimizer.iterations == 0


def test_other_batches_of_a_data_set_and_other_things_are_refused():
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
    with pytest.raises(PlanError, match="batch_size is 4 in the plan and 6 here"):
        fit(model(), batches, plan=ONE, shuffle=False, verbose=0)
    with pytest.raises(PlanError, match=r"`plan` must be a tfaccel.Plan, such as .* Received: \{'strategy'"):
        fit(model(), X, Y, plan={"strategy": "none"}, verbose=0)
