"""Steps per execution: from an estimate of the step's time, bounded, and moderate where nothing is known."""

import pytest
from planning_machines import EIGHT_H100, ONE_T4, ONE_V100, TPU_V5E, TWO_CORES, UNKNOWN_GPU, host, workload

from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import default_plan


def steps(hardware, *, fixed=None, **known):
    plan = default_plan(hardware, workload(**known), **(fixed or {}))
    return plan.steps_per_execution, dict(plan.reasons)["steps_per_execution"]


@pytest.mark.parametrize(("hardware", "expected"), [(TWO_CORES, 10), (ONE_T4, 20), (TPU_V5E, 100)])
def test_without_operations_a_moderate_number(hardware, expected):
    assert steps(hardware) == (
        expected,
        "A moderate number: without the operations per example, a step's time cannot be estimated.",
    )


def test_without_the_devices_speed_a_moderate_number():
    assert steps(UNKNOWN_GPU, flops_per_example=1e9) == (
        20,
        "A moderate number: without this device's speed, a step's time cannot be estimated.",
    )


# A step takes 256 examples * operations / (peak * 0.3) / replicas: 0.5 s divided by that, rounded down to 1, 2, 5, ...
@pytest.mark.parametrize(
    ("hardware", "flops", "expected", "said"),
    [
        (ONE_V100, 12.3e9, 5, "84 ms"),  # 125e12 in float16: 84 ms
        (ONE_T4, 12.3e9, 2, "0.16 s"),  # 65e12: 161 ms
        (EIGHT_H100, 12.3e9, 200, "1.3 ms"),  # 989.5e12 in bfloat16 on 8 replicas: 1.3 ms
        (TPU_V5E, 12.3e9, 50, "6.7 ms"),  # 197e12 on 8 replicas: 6.7 ms
        (TWO_CORES, 1e6, 50, "5.3 ms"),  # 2 * 0.08e12: 5.3 ms
        (TWO_CORES, 1e12, 1, "5333 s"),
        (TWO_CORES, 1.0, 1000, "0.15 ms"),  # bounded by the shortest step that was measured
        (host(2, "AVX512F"), 1e6, 100, "2.7 ms"),
    ],
)
def test_estimate(hardware, flops, expected, said):
    number, reason = steps(hardware, flops_per_example=flops)
    assert number == expected
    assert f"at {said} (good to a factor of a few)" in reason


def test_float32_on_a_gpu_is_estimated_slower():
    fast, _ = steps(ONE_V100, flops_per_example=1e9)
    slow, _ = steps(ONE_V100, flops_per_example=1e9, fixed={"dtype_policy": "float32"})
    assert slow < fast


def test_usable_cores_count():
    container = Hardware(num_physical_cores=32, num_usable_cores=2)
    assert steps(container, flops_per_example=1e6)[0] == steps(TWO_CORES, flops_per_example=1e6)[0]


def test_at_most_an_epoch():
    number, reason = steps(TWO_CORES, num_train_examples=1500)
    assert (number, reason) == (5, "The whole epoch of 5 steps in one call.")
    assert steps(TWO_CORES, num_train_examples=100)[0] == 1
    assert steps(TWO_CORES, num_train_examples=10**6)[0] == 10
    assert steps(TWO_CORES, num_train_examples=1500, fixed={"steps_per_execution": 50})[0] == 50


def test_batch_normalization_sees_the_global_batch_and_says_where_not():
    def reason(hardware, **fixed):
        plan = default_plan(hardware, workload(), **fixed)
        assert plan.synchronize_batch_norm
        return dict(plan.reasons)["synchronize_batch_norm"]

    assert reason(TWO_CORES) == "Batch normalization takes its statistics over the whole batch."
    in_parts = reason(TWO_CORES, accumulation_steps=4)
    assert in_parts.endswith("over each of 4 micro-batches, which gives other numbers than one step.")
    several = reason(EIGHT_H100, jit_compile=True)
    assert "over the rows of one replica they would depend on the number of replicas" in several
    assert several.endswith("XLA cannot compile the sums over replicas, and stays off for models that have it.")
    assert "XLA" not in reason(EIGHT_H100, jit_compile=False)
    plan = default_plan(EIGHT_H100, workload(), synchronize_batch_norm=False)
    assert (plan.synchronize_batch_norm, dict(plan.reasons)["synchronize_batch_norm"]) == (False, "Set by you.")
