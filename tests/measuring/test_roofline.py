"""The limits of a step: what bounds it and its layers, and the real measurement of a small model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tfaccel.costs.model_cost import LayerCost, StepCost
from tfaccel.measuring.roofline import Roofline
from tfaccel.planning.machine_ceilings import MachineCeilings
from tfaccel.planning.plan import Plan

PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
DENSE = LayerCost(name="dense", matrix_flops=4 * 10**9, least_bytes=10**7)  # 40 ms and 1 ms at the ceilings
RELU = LayerCost(name="relu", other_flops=10**7, least_bytes=10**8)  # 10 ms
FOUND = Roofline(
    workload="made up",
    plan=PLAN,
    ceilings=MachineCeilings(
        device="CPU", matrix_flops_per_second={"float32": 1e11, "bfloat16": 4e11}, bytes_per_second=1e10
    ),
    cost=StepCost(rows=(DENSE, RELU)),
    step_seconds=0.08,
    input_wait_share=0.0,
    cpu_utilization=0.9,
)


def test_layers_and_shares():
    dense, relu = FOUND.layers()
    assert (dense.bound, relu.bound) == ("arithmetic", "memory")
    assert (dense.least_seconds, dense.share) == pytest.approx((0.04, 0.8))
    assert (relu.least_seconds, relu.share) == pytest.approx((0.01, 0.2))
    assert (FOUND.mfu, FOUND.least_seconds, FOUND.memory_share) == pytest.approx((0.5, 0.05, 0.1375))
    assert Roofline.from_json(json.loads(json.dumps(FOUND.to_json()))) == FOUND
    assert FOUND.to_json()["limit_share"] == pytest.approx(0.625)
    assert FOUND.rows()[0] == ["dense", "4", "10", "400", "arithmetic", "40,000 us", "-", "-"]


def test_share_of_the_limit_by_layer():
    found = replace(FOUND, layer_seconds={"dense": 0.05, "other": 0.01, "host": 0.02})
    dense, relu = found.layers()
    assert (dense.limit_share, relu.seconds, relu.limit_share) == (pytest.approx(0.8), None, None)
    assert [row[5:] for row in found.rows()] == [
        ["40,000 us", "50,000 us", "80 %"],
        ["10,000 us", "-", "-"],
        ["-", "20,000 us", "-"],
    ]
    assert Roofline.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("changes", "bound", "text"),
    [
        ({}, "arithmetic", "Bound by arithmetic: MFU 0.50, memory at 14 % of its speed."),
        ({"input_wait_share": 0.3}, "input", "30 % of the step time is spent waiting for it."),
        ({"input_wait_share": None}, "arithmetic", "MFU 0.50"),
        ({"step_seconds": 0.5}, "host", "arithmetic and memory explain 10 % of the step time"),
        ({"cost": StepCost(rows=(RELU,)), "step_seconds": 0.012}, "memory", "memory at 83 % of its speed"),
    ],
)
def test_what_bounds_a_step(changes, bound, text):
    found = replace(FOUND, **changes)
    assert found.bound == bound
    assert text in found.text


def test_limits_in_doubt_are_said():
    found = replace(FOUND, ceilings=replace(FOUND.ceilings, disturbed=("float32",)))
    assert FOUND.text.endswith("14 % of its speed.")
    assert found.text.endswith(" The limits (float32) were measured while other programs ran, and may be too low.")
    assert Roofline.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_ceilings_of_the_plan():
    bfloat16 = replace(FOUND, plan=replace(PLAN, dtype_policy="mixed_bfloat16"))
    assert bfloat16.mfu == 0.125
    gpus = replace(FOUND, plan=replace(PLAN, strategy="mirrored", devices=("GPU:0", "GPU:1"), global_batch_size=8))
    assert (gpus.mfu, gpus.bytes_ceiling) == (0.25, 2e10)


MEASURED = """
import json, sys
from tfaccel import train
from tfaccel.estimates import roofline
from tfaccel.planning.cache import kept_roofline
from fastest_cases import workload

said = []
first = roofline(workload(), intra_op_threads=1, on_progress=said.append)
again = roofline(workload(), intra_op_threads=1, on_progress=said.append)
assert first.ceilings == again.ceilings or first.ceilings.disturbed
trained = train(workload(), again.plan, run_dir="run", epochs=1, verbose=0)
assert kept_roofline(trained.workload_key, trained.plan) == json.loads(json.dumps(again.to_json()))
print(json.dumps([first.to_json(), said]))
"""


@pytest.mark.slow
def test_machine_and_step_are_measured(run_python, tmp_path):
    environment = {"TFACCEL_CACHE": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    data, said = json.loads(run_python(MEASURED, env=environment, cwd=tmp_path).stdout.splitlines()[-1])
    found = Roofline.from_json(data)
    assert set(found.ceilings.matrix_flops_per_second) == {"float32", "bfloat16", "float16"}
    assert found.cost.matrix_flops == 2 * 32 * (2 * 16 * 64 + 3 * 64 * 2)
    assert found.plan.intra_op_threads == 1
    assert 0 < found.mfu < 1
    assert 0 <= found.input_wait_share <= 1
    assert sum(one.share for one in found.layers()) == pytest.approx(1)
    waited = found.step_seconds * found.input_wait_share
    assert sum(found.layer_seconds.values()) == pytest.approx(found.step_seconds - waited)
    assert {"dense", "dense_1", "optimizer", "host"} <= set(found.layer_seconds)
    assert all(one.seconds > 0 for one in found.layers() if one.cost.matrix_flops)
    measured = 1 + bool(found.ceilings.disturbed)  # again if other programs ran
    assert sum("measuring the machine's limits" in line for line in said) == measured
