"""Candidate plans for made-up machines: what holds for all of them, and what each machine gets."""

import dataclasses

import pytest
from planning_machines import (
    CONTAINER,
    EIGHT_H100,
    FOUR_A100,
    MACHINES,
    MANY_CORES,
    MIXED_GPUS,
    ONE_P100,
    ONE_T4,
    ONE_V100,
    TPU_V5E,
    TWO_CORES,
    TWO_GPU_WORKERS,
    TWO_WORKERS,
    UNKNOWN_GPU,
    host,
    values,
    workload,
)

from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import candidate_plans, default_plan
from tfaccel.planning.plan import Plan, plan_field_names
from tfaccel.planning.rules import AUGMENT_ON_UNMEASURED

WORKLOADS = {
    "nothing known": workload(),
    "all known": workload(100, num_train_examples=5000, bfloat16_on_cpu=True, min_replica_batch_size=50),
    "tiny batch": workload(3),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_candidate_is_sound(machine, name):
    hardware, plans = MACHINES[machine], candidate_plans(MACHINES[machine], WORKLOADS[name])
    assert 2 <= len(plans) <= 24 or machine == "TPU v5e-8"
    assert len(set(plans)) == len(plans)
    there = {f"CPU:{i}" for i in range(8)} if not hardware.devices else {device.name for device in hardware.devices}
    for plan in plans:
        assert Plan.from_json(plan.to_json()) == plan
        assert [field for field, _ in plan.reasons] == list(plan_field_names())
        assert all(reason.endswith(".") for _, reason in plan.reasons)
        assert set(plan.devices) <= there
        assert abs(plan.global_batch_size - WORKLOADS[name].global_batch_size) < plan.num_replicas
    assert default_plan(hardware, WORKLOADS[name]) == plans[0]


@pytest.mark.parametrize(
    ("hardware", "strategy", "devices", "dtype_policy", "jit_compile", "communication"),
    [
        (TWO_CORES, "none", "CPU:0", "float32", False, "tensorflow_default"),
        (MANY_CORES, "none", "CPU:0", "float32", False, "tensorflow_default"),
        (ONE_T4, "none", "GPU:0", "mixed_float16", True, "tensorflow_default"),
        (ONE_V100, "none", "GPU:0", "mixed_float16", True, "tensorflow_default"),
        (ONE_P100, "none", "GPU:0", "float32", True, "tensorflow_default"),
        (UNKNOWN_GPU, "none", "GPU:0", "float32", True, "tensorflow_default"),
        (FOUR_A100, "mirrored", "GPU:0 GPU:1 GPU:2 GPU:3", "mixed_bfloat16", True, "nccl"),
        (MIXED_GPUS, "mirrored", "GPU:1 GPU:2", "float32", True, "nccl"),
        (TPU_V5E, "tpu", " ".join(f"TPU:{i}" for i in range(8)), "mixed_bfloat16", False, "tensorflow_default"),
        (TWO_WORKERS, "multi_worker_mirrored", "CPU:0", "float32", False, "ring"),
    ],
)
def test_default_plan(hardware, strategy, devices, dtype_policy, jit_compile, communication):
    plan = default_plan(hardware, workload())
    assert (plan.strategy, " ".join(plan.devices), plan.dtype_policy) == (strategy, devices, dtype_policy)
    assert (plan.jit_compile, plan.communication) == (jit_compile, communication)
    assert plan.global_batch_size == 256
    assert plan.gpu_memory_growth == devices.startswith("GPU")
    assert plan.tpu == ("local" if strategy == "tpu" else None)


def test_augmentation_on_the_device_is_a_further_candidate_with_an_accelerator():
    def train_data(global_batch_size, *, seed, epoch, augmented=True):
        raise AssertionError("planning must not touch the data")

    augmenting = dataclasses.replace(workload(), train_data=train_data, augment=list)
    for machine in MACHINES.values():
        plans = candidate_plans(machine, augmenting)
        assert values(plans, "augment_on") == (["host", "device"] if machine.devices else ["host"])
        assert sum(plan.augment_on == "device" for plan in plans) == bool(machine.devices)
        assert values(candidate_plans(machine, workload()), "augment_on") == ["host"]
        reason = dict(plans[0].reasons)["augment_on"]
        assert (reason == AUGMENT_ON_UNMEASURED) == bool(machine.devices)


def test_prefetching_to_the_device_is_a_further_candidate_with_one_gpu():
    for name, machine in MACHINES.items():
        found = [plan for plan in candidate_plans(machine, workload()) if plan.prefetch_to_device]
        assert len(found) == (name in ("T4", "V100", "P100", "unknown GPU")), name
    assert not any(plan.prefetch_to_device for plan in candidate_plans(ONE_T4, workload(), prefetch_batches=0))


def test_large_batches_are_prefetched_to_one_gpu():
    """77 MB kept an H100 waiting for a third of a step; batches of 4 MiB and more are copied during the step before."""

    def rule(machine, example_bytes, **fixed):
        images = dataclasses.replace(workload(), example_bytes=example_bytes, global_batch_size=128)
        plan = default_plan(machine, images, **fixed)
        return plan.prefetch_to_device, dict(plan.reasons)["prefetch_to_device"]

    assert rule(ONE_T4, 4 * 224 * 224 * 3) == (
        True,
        "A batch of 77 MB is copied to the GPU during a step; a GPU would wait 1 ms for each 7 MB.",
    )
    assert rule(ONE_T4, 1 << 15)[0]
    assert not rule(ONE_T4, (1 << 15) - 1)[0]
    assert not rule(ONE_T4, None)[0]
    assert rule(ONE_T4, 1 << 20, prefetch_to_device=False)[0] is False
    assert not rule(Hardware(), 1 << 20)[0]


def test_dtype_policies_by_capability():
    policies = {
        name: values(candidate_plans(machine, workload()), "dtype_policy") for name, machine in MACHINES.items()
    }
    assert policies["two cores"] == policies["P100"] == policies["unknown GPU"] == ["float32"]
    assert policies["many cores"] == ["float32", "mixed_bfloat16"]
    assert policies["T4"] == policies["V100"] == ["mixed_float16", "float32"]
    assert policies["4 A100"] == policies["8 H100"] == ["mixed_bfloat16", "mixed_float16", "float32"]
    assert policies["TPU v5e-8"] == ["mixed_bfloat16", "float32"]
    assert values(candidate_plans(host(2, "AMX_BF16"), workload()), "dtype_policy") == ["float32", "mixed_bfloat16"]


def test_bfloat16_on_cpus_comes_first_where_the_workload_recommends_it():
    def plans(machine, recommended):
        return candidate_plans(machine, workload(bfloat16_on_cpu=recommended))

    assert values(plans(MANY_CORES, False), "dtype_policy") == ["float32", "mixed_bfloat16"]
    assert values(plans(MANY_CORES, True), "dtype_policy") == ["mixed_bfloat16", "float32"]
    assert values(plans(host(2, "AMX_BF16"), True), "dtype_policy") == ["mixed_bfloat16", "float32"]
    assert values(plans(TWO_CORES, True), "dtype_policy") == ["float32"]
    assert plans(ONE_T4, True) == plans(ONE_T4, False)
    reasons = [dict(plans(MANY_CORES, recommended)[0].reasons)["dtype_policy"] for recommended in (False, True)]
    assert "but the workload does not recommend bfloat16, in which small steps are slower" in reasons[0]
    assert reasons[1] == (
        "The workload recommends it for CPUs that multiply in bfloat16, as this one does (AVX512_BF16)."
    )


def test_bfloat16_on_cpus_comes_first_for_steps_known_to_be_large():
    def policies(machine, step_operations):
        return values(candidate_plans(machine, workload(), step_operations=step_operations), "dtype_policy")

    assert policies(MANY_CORES, 10**8) == ["mixed_bfloat16", "float32"]
    assert policies(MANY_CORES, 10**8 - 1) == policies(MANY_CORES, None) == ["float32", "mixed_bfloat16"]
    assert policies(TWO_CORES, 10**12) == ["float32"]
    plan = default_plan(MANY_CORES, workload(), step_operations=23 * 10**8)
    assert dict(plan.reasons)["dtype_policy"] == (
        "This CPU multiplies in bfloat16 (AVX512_BF16), and a step is large: 2.3e+09 operations."
    )


def test_a_workload_says_how_many_examples_are_worth_a_gpu():
    def devices(recommended, **fixed):
        return len(default_plan(EIGHT_H100, workload(256, min_replica_batch_size=recommended), **fixed).devices)

    assert [devices(least) for least in (None, 32, 64, 100, 256, 1000)] == [8, 8, 4, 2, 1, 1]
    assert devices(256, global_batch_size=2048) == 8
    assert devices(256, strategy="mirrored") == 8
    reason = dict(default_plan(EIGHT_H100, workload(256, min_replica_batch_size=256)).reasons)["devices"]
    assert reason.startswith(
        "One of 8 GPUs: with more, a replica would have fewer than 256 of the 256 examples of a step"
    )


def test_mirrored_is_not_proposed_for_one_device():
    for hardware in (TWO_CORES, ONE_T4, CONTAINER):
        assert values(candidate_plans(hardware, workload()), "strategy") == ["none"]


def test_eight_gpus_are_also_tried_alone_and_first_for_tiny_shares():
    assert values(candidate_plans(EIGHT_H100, workload()), "strategy") == ["mirrored", "none"]
    assert values(candidate_plans(EIGHT_H100, workload(32)), "strategy") == ["none", "mirrored"]


def test_both_communications_and_packs_are_tried_once():
    others = [(plan.communication, plan.bytes_per_pack) for plan in candidate_plans(EIGHT_H100, workload())[-2:]]
    assert sorted(others) == [("hierarchical_copy", 0), ("nccl", 50 * 2**20)]
    assert "ring" in values(candidate_plans(TWO_GPU_WORKERS, workload()), "communication")
    for machine in (ONE_T4, TWO_CORES, TPU_V5E):
        assert values(candidate_plans(machine, workload()), "bytes_per_pack") == [0]


def test_logical_cpus_on_many_cores():
    assert values(candidate_plans(MANY_CORES, workload()), "num_logical_cpus") == [1, 2, 4]
    assert values(candidate_plans(MANY_CORES, workload(16)), "num_logical_cpus") == [1, 2]
    assert values(candidate_plans(host(16), workload()), "num_logical_cpus") == [1, 2]
    assert values(candidate_plans(MANY_CORES, workload(), global_batch_size=99), "num_logical_cpus") == [1]
    plans = candidate_plans(EIGHT_H100, workload(), num_logical_cpus=2)
    assert values(plans, "devices") == [("CPU:0", "CPU:1")]
    plans = candidate_plans(TWO_CORES, workload(), num_logical_cpus=3, strategy="none")
    assert values(plans, "devices") == [("CPU:0",)]


def test_threads():
    plan = default_plan(CONTAINER, workload())
    assert (plan.intra_op_threads, plan.inter_op_threads) == (4, 4)
    assert "may use 4 of 32 cores" in dict(plan.reasons)["intra_op_threads"]
    assert default_plan(TWO_CORES, workload()).intra_op_threads is None
    assert default_plan(EIGHT_H100, workload()).data_threads == 94
    hyperthreads = Hardware(num_physical_cores=8, num_usable_cores=16)
    assert values(candidate_plans(hyperthreads, workload()), "intra_op_threads") == [None, 8]
