"""`estimate_scaling` and `compare_devices` for workloads in files beside the user, in child processes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.extras.estimates.compare_devices import estimated_gpu, get_gpu, plan_on
from tfaccel.extras.estimates.device_comparison import GpuAssumptions
from tfaccel.extras.estimates.estimate_scaling import StepFacts
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import keep_plan
from tfaccel.planning.workload import Workload

HERE = Path(__file__).parent
NUM_BYTES = 4 * (16 * 64 + 64 + 64 * 2 + 2)
PLAN = Plan(strategy="none", devices=("GPU:0",), global_batch_size=32)
T4 = Device(kind="GPU", index=0, model="Tesla T4")
WORKLOAD = Workload("made_up", object, dict, list, global_batch_size=64)
START = """
import json
from tfaccel import Hardware
from tfaccel.estimates import ComparisonOptions, Interconnect, ScalingOptions, compare_devices, estimate_scaling
from tfaccel.options import Device
from tfaccel.errors import TfaccelError

LINK = Interconnect(name="slow", machine_latency_seconds=0.01, machine_bytes_per_second=1e6)
T4 = Hardware(devices=(Device(kind="GPU", index=0, model="Tesla T4"),))

def refused(call):
    try:
        call()
    except TfaccelError as error:
        return str(error)

def predicted(name="workload", **options):
    path = f"scaling_cases:{name}"
    return estimate_scaling(path, replicas=[1, 4], interconnect=LINK, step_seconds=0.05, **options).to_json()

def compared(name="workload", **given):
    given = ComparisonOptions(cpu_step_seconds=0.01, **given)
    return compare_devices(f"scaling_cases:{name}", hardware=T4, given=given).to_json()
"""


def get_result(run_python, code):
    done = run_python(START + code, env={"PYTHONPATH": str(HERE)}, cwd=HERE)
    return json.loads(done.stdout.splitlines()[-1])


def test_given_times_and_refused_ones(run_python):
    code = """
calls = [
    lambda: predicted(assume=ScalingOptions(scaling="strong"), global_batch_size=2),
    lambda: predicted(strategy="mirrored", devices=("CPU:0", "CPU:1"), num_logical_cpus=2),
    lambda: predicted(assume=ScalingOptions(fixed_step_seconds=0.1)),
    lambda: compare_devices("scaling_cases:workload", hardware=Hardware()),
    lambda: compare_devices("scaling_cases:workload", hardware=T4, devices=("CPU:0",)),
    lambda: ComparisonOptions(epochs=0),
]
print(json.dumps([compared(gpu_step_seconds=0.001), *map(refused, calls)]))
"""
    times, strong, devices, fixed, no_gpu, chosen, epochs = get_result(run_python, code)
    assert (times["cpu"]["source"], times["gpu"]["source"]) == ("given", "given")
    assert times["break_even_examples"] == 32 * 10 / 0.009 // 1 + 1
    assert "2 examples has too few for 4 replicas" in strong
    assert "The step of one device is measured. Received: strategy='mirrored'" in devices
    assert "fixed_seconds must be from 0 to step_seconds=0.05. Received: fixed_seconds=0.1" in fixed
    assert "The hardware file describes no GPU. Give --hardware=FILE with a GPU" in no_gpu
    assert "The comparison chooses devices. Received: devices=('CPU:0',). Leave it out." in chosen
    assert epochs == "epochs must be positive. Received: epochs=0."


def test_the_gpu_of_a_model_is_the_one_that_is_here():
    other = Device(kind="GPU", index=0, model="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0))
    second = replace(T4, index=1, compute_capability=(7, 5))
    here = Hardware(devices=(other, second))
    assert get_gpu(None, here) == (other, True)
    assert get_gpu(Hardware(devices=(T4,)), here) == (second, True)
    gpu, is_here = get_gpu(Hardware(devices=(replace(T4, index=3),)), Hardware())
    assert (gpu.name, gpu.compute_capability, is_here) == ("GPU:0", (7, 5), False)
    assert plan_on(second, here, WORKLOAD, {}).devices == ("GPU:1",)


def test_kept_plans_are_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path))
    here = Hardware(num_usable_cores=2)
    rules = plan_on(None, here, WORKLOAD, {})
    kept = replace(rules, jit_compile=True, strategy="one_device")
    keep_plan(here, WORKLOAD, {}, kept, speedup=2.0, report={})
    assert plan_on(None, here, WORKLOAD, {}) == kept
    assert plan_on(None, here, WORKLOAD, {"jit_compile": False}) == rules
    assert plan_on(T4, here, WORKLOAD, {}).devices == ("GPU:0",)  # estimated: not here
    here = replace(here, devices=(T4,))
    keep_plan(here, WORKLOAD, {}, replace(PLAN, global_batch_size=64), speedup=2.0, report={})
    assert plan_on(T4, here, WORKLOAD, {}).jit_compile is False
    assert plan_on(None, here, WORKLOAD, {}) == rules


def test_estimate_says_what_it_rests_on():
    counts = {"operations": 81 * 10**9, "num_kernels": 1000, "moved_bytes": 32 * 10**6}
    facts = StepFacts(gradient_bytes=(4,), batch_bytes=16 * 10**6, **counts)
    found = estimated_gpu(T4, PLAN, facts, GpuAssumptions(), 2.0)
    assert found.parts["arithmetic"] == pytest.approx(0.01 / 0.3)
    assert found.parts["launches"] == pytest.approx(0.008)
    assert (found.source, found.start_seconds) == ("estimated", 12.0)
    assert found.notes[0].endswith("in float32, at 30% of 8.1 Tflop/s (data sheet of T4)")
    assert "10 s to initialize CUDA" in found.notes[-1]


def test_operations_that_cannot_be_counted_ask_for_the_time():
    facts = StepFacts(gradient_bytes=(4,), batch_bytes=16, uncounted="The operations of loop cannot be counted.")
    with pytest.raises(WorkloadError, match=r"cannot be estimated\. The operations of loop.*--gpu_step_seconds"):
        estimated_gpu(T4, PLAN, facts, GpuAssumptions(), 0.0)


@pytest.mark.slow
def test_measured_and_estimated_steps(run_python):
    code = """
policy = predicted(dtype_policy="mixed_bfloat16")["step"]["gradient_bytes"]
kinds = [estimate_scaling(
    "scaling_cases:workload", replicas=[1, 2], interconnect=LINK, assume=ScalingOptions(scaling=kind)
).to_json()["step"] for kind in ("weak", "strong")]
found = compare_devices("scaling_cases:workload", hardware=T4).to_json()
calls = [lambda: predicted("failing"), lambda: compared("uncounted")]
given = predicted(global_batch_size=64)
print(json.dumps([given, policy, *kinds, found["cpu"], found["gpu"], *map(refused, calls)]))
"""
    found, policy, weak, strong, cpu, gpu, failing, uncounted = get_result(run_python, code)
    assert found["step"]["gradient_bytes"] == [4 * 16 * 64, 4 * 64, 4 * 64 * 2, 4 * 2]
    assert found["step"]["batch_size"] == 64
    assert found["step"]["num_train_examples"] == 256
    one, four = found["rows"]
    assert one["step_seconds"] == 0.05
    assert four["step_seconds"] == pytest.approx(0.05 + 6 * 0.01 + 6 / 4 * NUM_BYTES / 1e6)
    assert sum(policy) == NUM_BYTES
    assert (weak["source"], cpu["source"], gpu["source"]) == ("measured", "measured", "estimated")
    assert 0 < weak["step_seconds"] < 1
    assert (weak["device"], found["step"]["device"]) == ("CPU:0", "")
    assert weak["spread"] >= 0
    assert weak["fixed_seconds"] == 0
    assert 0 <= strong["fixed_seconds"] <= strong["step_seconds"]
    assert cpu["start_seconds"] > 0
    operations = 2 * 32 * (2 * 16 * 64 + 3 * 64 * 2)
    assert gpu["notes"][0].startswith(f"{operations:,} floating-point operations per step")
    assert gpu["parts"]["launches"] > 0
    assert "no such file: vocabulary.txt" in failing
    assert "cannot be estimated. The operations of" in uncounted
