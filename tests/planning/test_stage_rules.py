"""Pipeline stages in plans: proposed only where training does not fit on one of several GPUs, or asked for."""

import re

import pytest
from planning_machines import EIGHT_H100, MANY_CORES, ONE_T4, TWO_CORES, host, values, workload

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device
from tfaccel.planning.candidates import candidate_plans, default_plan

FOUR = host(16, devices=tuple(Device(kind="GPU", index=i, model="A", memory_bytes=10 * 2**30) for i in range(4)))


def reason(plan):
    return dict(plan.reasons)["pipeline_stages"]


@pytest.mark.parametrize("training_bytes", [None, 9 * 2**30])
def test_a_model_that_fits_is_not_cut(training_bytes):
    for machine in (FOUR, EIGHT_H100, ONE_T4, MANY_CORES):
        plans = candidate_plans(machine, workload(), training_bytes=training_bytes)
        assert values(plans, "pipeline_stages") == [1]
    assert "The model is not cut" in reason(default_plan(FOUR, workload(), training_bytes=training_bytes))


def test_a_model_that_does_not_fit_is_cut_into_as_many_stages_as_are_needed():
    plans = candidate_plans(FOUR, workload(), training_bytes=14 * 2**30)
    assert values(plans, "pipeline_stages") == [2]
    assert reason(plans[0]) == (
        "The model is cut into 2 stages, each on a GPU of its own: training takes an estimated 14.0 GiB, and a GPU has "
        "room for 9.0."
    )
    assert (plans[0].strategy, plans[0].num_replicas, plans[0].accumulation_steps) == ("mirrored", 2, 4)
    assert {(plan.strategy, len(plan.devices)) for plan in plans} == {("mirrored", 4), ("none", 2)}
    assert not any(plan.jit_compile for plan in plans)
    whole = default_plan(FOUR, workload(), training_bytes=25 * 2**30)
    assert (whole.strategy, whole.pipeline_stages, whole.num_replicas) == ("none", 4, 1)


def test_a_model_that_fits_nowhere_is_not_cut():
    plan = default_plan(FOUR, workload(), training_bytes=60 * 2**30)
    assert plan.pipeline_stages == 1
    assert "room for 9.0, but 4 stages would not fit either." in reason(plan)


def test_stages_that_are_asked_for_get_devices():
    plan = default_plan(TWO_CORES, workload(), pipeline_stages=2)
    assert (plan.strategy, plan.devices, plan.num_logical_cpus) == ("none", ("CPU:0", "CPU:1"), 2)
    assert (plan.num_replicas, plan.accumulation_steps) == (1, 4)
    plan = default_plan(FOUR, workload(), pipeline_stages=2, strategy="none")
    assert (plan.strategy, plan.devices) == ("none", ("GPU:0", "GPU:1"))
    given = default_plan(FOUR, workload(), pipeline_stages=2, devices=["GPU:2", "GPU:3"], accumulation_steps=1)
    assert (given.strategy, given.devices, given.accumulation_steps) == ("none", ("GPU:2", "GPU:3"), 1)


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"devices": ["GPU:0"]}, "Each of the 2 stages of each replica needs a device of its own."),
        ({"jit_compile": True}, "`jit_compile` is not supported with pipeline stages"),
        ({"strategy": "one_device"}, "`pipeline_stages` is for the devices of one process, with strategy='none'"),
    ],
)
def test_stages_that_cannot_be_are_refused(fixed, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        candidate_plans(FOUR, workload(), pipeline_stages=2, **fixed)
