"""Plan fields that are given: every candidate has them, the others follow, and what cannot be is refused."""

import re

import numpy as np
import pytest
from planning_machines import (
    EIGHT_H100,
    FOUR_A100,
    MACHINES,
    MANY_CORES,
    MIXED_GPUS,
    ONE_T4,
    TPU_SLICE,
    TPU_V5E,
    TWO_CORES,
    TWO_GPU_WORKERS,
    TWO_WORKERS,
    host,
    values,
    workload,
)

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Cluster
from tfaccel.planning.candidates import candidate_plans, default_plan
from tfaccel.planning.moves import moves
from tfaccel.planning.workload import Workload


def refused(message, hardware, **fixed):
    with pytest.raises(PlanError, match=re.escape(message)):
        candidate_plans(hardware, workload(), **fixed)


FIXED_VALUES = {
    "dtype_policy": "mixed_float16",
    "jit_compile": True,
    "global_batch_size": 480,
    "accumulation_steps": 2,
    "steps_per_execution": 3,
    "intra_op_threads": None,
    "inter_op_threads": 1,
    "gpu_memory_growth": False,
    "communication": "tensorflow_default",
    "bytes_per_pack": 0,
    "sum_duplicate_indices": True,
    "embedding_updates": "keras",
    "embeddings_on": "device",
    "optimizer_state": "replicated",
    "optimizer_slots_dtype": "float32",
    "synchronize_batch_norm": False,
    "data_threads": 3,
    "data_service": 2,
    "prefetch_batches": 1,
    "prefetch_to_device": False,
    "cache_data": True,
    "augment_on": "device",
    "num_workers": 1,
    "num_logical_cpus": 2,
    "tpu": None,
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("field", FIXED_VALUES)
def test_a_fixed_field_is_in_every_plan_or_refused(machine, field):
    try:
        plans = candidate_plans(MACHINES[machine], workload(), **{field: FIXED_VALUES[field]})
    except PlanError as error:
        assert machine == "TPU v5e-8" and field in ("dtype_policy", "jit_compile", "tpu"), error
        return
    assert values(plans, field) == [FIXED_VALUES[field]]
    assert all(dict(plan.reasons)[field] == "Set by you." for plan in plans)


def test_recommended_batch_is_kept_or_the_nearest_that_divides():
    def batch(recommended, hardware=EIGHT_H100, **fixed):
        return default_plan(hardware, workload(recommended), strategy="mirrored", **fixed).global_batch_size

    assert [batch(size) for size in (256, 99, 100, 101, 3, 500)] == [256, 99, 100, 100, 3, 496]
    assert batch(100, accumulation_steps=4) == 100
    assert batch(100, hardware=TWO_CORES, accumulation_steps=3) == 99


def test_fixed_batch_takes_the_gpus_that_share_it_evenly():
    plan = default_plan(EIGHT_H100, workload(), global_batch_size=100, strategy="mirrored")
    assert (plan.strategy, len(plan.devices), plan.replica_batch_size) == ("mirrored", 5, 20)
    assert dict(plan.reasons)["devices"] == (
        "5 of 8 GPUs: the largest number that shares 100 evenly. For all of them: --global_batch_size=96 or 104 with "
        "--devices=GPU:0,GPU:1,GPU:2,GPU:3,GPU:4,GPU:5,GPU:6,GPU:7."
    )
    plan = default_plan(EIGHT_H100, workload(), global_batch_size=100)
    assert (plan.strategy, len(plan.devices), plan.replica_batch_size) == ("mirrored", 2, 50)
    assert dict(plan.reasons)["devices"].endswith("To use 5: --devices=GPU:0,GPU:1,GPU:2,GPU:3,GPU:4.")
    assert default_plan(EIGHT_H100, workload(), global_batch_size=97).devices == ("GPU:0",)
    plan = default_plan(TWO_GPU_WORKERS, workload(), global_batch_size=20)
    assert (plan.num_workers, len(plan.devices), plan.replica_batch_size) == (2, 1, 10)


def test_devices_given():
    plan = default_plan(FOUR_A100, workload(), devices=["GPU:3"])
    assert (plan.strategy, plan.devices) == ("one_device", ("GPU:3",))
    assert default_plan(FOUR_A100, workload(), devices=("GPU:3", "GPU:1")).strategy == "mirrored"
    plan = default_plan(FOUR_A100, workload(), devices=("CPU:0", "CPU:1"))
    assert (plan.strategy, plan.num_logical_cpus, plan.dtype_policy) == ("mirrored", 2, "float32")
    plan = default_plan(ONE_T4, workload(), strategy="mirrored")
    assert (plan.strategy, plan.devices, plan.communication) == ("mirrored", ("GPU:0",), "tensorflow_default")


def test_strategy_given():
    assert default_plan(EIGHT_H100, workload(), strategy="none").devices == ("GPU:0",)
    assert default_plan(EIGHT_H100, workload(), strategy="one_device").devices == ("GPU:0",)
    assert default_plan(TPU_V5E, workload(), strategy="none").devices == ("CPU:0",)
    assert default_plan(TWO_WORKERS, workload(), strategy="none").num_workers == 1
    assert default_plan(TWO_CORES, workload(), strategy="mirrored").devices == ("CPU:0",)
    assert default_plan(MIXED_GPUS, workload(), strategy="none").devices == ("GPU:0",)


def test_workers():
    plan = default_plan(TWO_GPU_WORKERS, workload())
    assert (plan.num_workers, plan.num_replicas, plan.replica_batch_size, plan.communication) == (2, 8, 32, "nccl")
    assert default_plan(TWO_WORKERS, workload(), num_workers=1).strategy == "none"
    assert default_plan(TWO_CORES, workload(), num_workers=3).num_workers == 3
    evaluator = host(2, cluster=Cluster(source="tf_config", num_workers=2, task_index=0, task_type="evaluator"))
    assert default_plan(evaluator, workload()).strategy == "none"


def test_tpu_slice_needs_its_name():
    refused("This machine is one of 4 of a TPU slice", TPU_SLICE)
    cores = tuple(f"TPU:{i}" for i in range(16))
    plan = default_plan(TPU_SLICE, workload(), tpu="my-slice", devices=cores)
    assert (plan.strategy, plan.tpu, plan.num_replicas, plan.num_workers) == ("tpu", "my-slice", 16, 1)
    plan = default_plan(TPU_SLICE, workload(), strategy="tpu")
    assert (plan.tpu, plan.num_replicas) == ("local", 4)


def test_gpu_memory_limit_stops_growth():
    plan = default_plan(ONE_T4, workload(), gpu_memory_limit_bytes=2**30)
    assert (plan.gpu_memory_growth, plan.gpu_memory_limit_bytes) == (False, 2**30)


@pytest.mark.parametrize(
    ("hardware", "fixed", "message"),
    [
        (TWO_CORES, {"stratgy": "none"}, "Plan has no field 'stratgy'. Did you mean 'strategy'?"),
        (TWO_CORES, {"reasons": ()}, "Plan has no field 'reasons'."),
        (TWO_CORES, {"strategy": "ddp"}, "Received: strategy='ddp'."),
        (TWO_CORES, {"strategy": "central_storage"}, "CentralStorageStrategy with Keras 3 reports wrong losses"),
        (TWO_CORES, {"devices": ()}, "`devices` must list at least one device"),
        (FOUR_A100, {"devices": ("GPU:4",)}, "GPU:4 is not there. Devices here: CPU:0, GPU:0, GPU:1, GPU:2, GPU:3."),
        (FOUR_A100, {"devices": ("CPU:1", "CPU:3")}, "CPU:3 is not there. Devices here: CPU:0, GPU:0,"),
        (FOUR_A100, {"devices": ("GPU:9", "GPU:8")}, "GPU:9, GPU:8 are not there."),
        (ONE_T4, {"strategy": "tpu"}, "strategy='tpu' needs a TPU. Devices here: CPU:0, GPU:0."),
        (TWO_CORES, {"tpu": "my-tpu"}, "strategy='tpu' needs a TPU. Devices here: CPU:0."),
        (TWO_CORES, {"strategy": "multi_worker_mirrored"}, "needs a cluster of several workers"),
        (TWO_WORKERS, {"num_workers": 3}, "has 2 workers. Received: num_workers=3. Use 2, or 1"),
        (TWO_CORES, {"communication": "nccl"}, "Received: communication='nccl', strategy='none', devices=CPU:0."),
        (EIGHT_H100, {"communication": "ring"}, "communication='ring' can be chosen for several workers only"),
        (TPU_V5E, {"jit_compile": True}, "TPUStrategy compiles with XLA by itself"),
        (TPU_V5E, {"dtype_policy": "mixed_float16"}, "TPUs compute in bfloat16, not in float16."),
        (EIGHT_H100, {"global_batch_size": 97, "strategy": "mirrored"}, "num_replicas=8. Use 96 or 104, or fewer"),
        (TWO_CORES, {"global_batch_size": 33, "num_logical_cpus": 2}, "num_replicas=2. Use 32 or 34, or fewer"),
        (FOUR_A100, {"strategy": "none", "devices": ("GPU:0", "GPU:1")}, "strategy='none' runs on one device."),
        (
            host(2, cluster=Cluster(source="tf_config", num_workers=2, task_index=0, task_type="ps")),
            {},
            "This process is a parameter server of its cluster. Keras 3 does not support ParameterServerStrategy",
        ),
    ],
)
def test_refused(hardware, fixed, message):
    refused(message, hardware, **fixed)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_model_keeps_its_dtype_policy(logical_devices, policy):
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    keras.config.set_dtype_policy(before)
    model.compile("sgd", "mse")
    work = Workload.of(model, np.zeros((512, 2)), np.zeros(512), batch_size=256)
    for machine in (MANY_CORES, EIGHT_H100):
        assert values(candidate_plans(machine, work), "dtype_policy") == [policy]
        assert "precision" not in [move.axis for move in moves(machine, work, {}, step_operations=10**9)]
    assert dict(default_plan(MANY_CORES, work).reasons)["dtype_policy"].startswith("The model's own.")
    with pytest.raises(PlanError, match=f"with the dtype policy {policy}, which the plan cannot change"):
        default_plan(MANY_CORES, work, dtype_policy="mixed_bfloat16")
