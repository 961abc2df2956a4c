"""Default plans of all recipes on machines of many kinds: what holds for each, and what single machines get."""

import re
from importlib import import_module

import pytest
from planning_machines import gpus, host, tpus, workload

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Cluster, Device, Hardware
from tfaccel.planning.candidates import candidate_plans, default_plan
from tfaccel.planning.load_workload import list_recipes
from tfaccel.planning.plan import plan_field_names

K80, T4, V100 = ("Tesla K80", (3, 7)), ("Tesla T4", (7, 5)), ("Tesla V100-SXM2-16GB", (7, 0))
A100, H100 = ("NVIDIA A100-SXM4-40GB", (8, 0)), ("NVIDIA H100 80GB HBM3", (9, 0))
SLICE = ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0))


def numbered(*models):
    return tuple(Device(kind="GPU", index=i, model=m, compute_capability=c) for i, (m, c) in enumerate(models))


def cluster(num_workers):
    return Cluster(source="slurm", num_workers=num_workers, task_index=0)


MACHINES = {
    "CPU": host(2),
    "64 cores": host(64, "AVX512F", "AVX512_BF16"),
    "256 cores": Hardware(num_physical_cores=128, num_usable_cores=256),
    "K80": host(8, devices=gpus(2, *K80)),
    "K80 and V100": host(8, devices=numbered(K80, V100)),
    "T4": host(4, devices=gpus(1, *T4)),
    "V100": host(8, devices=gpus(4, *V100)),
    **{f"{count} A100": host(48, devices=gpus(count, *A100)) for count in (1, 3, 8)},
    "8 H100": host(96, devices=gpus(8, *H100)),
    "slices": host(16, devices=gpus(7, *SLICE)),
    "mixed": host(32, devices=numbered(T4, A100, A100, V100)),
    "all different": host(32, devices=numbered(T4, A100, V100)),
    "unknown": host(8, devices=(Device(kind="GPU", index=0), Device(kind="GPU", index=1))),
    **{f"TPU {version}": host(96, devices=tpus(8, f"TPU {version}")) for version in ("v2", "v3", "v4", "v5e")},
    "4 workers": host(4, cluster=cluster(4)),
    "2 workers, 8 H100": host(96, devices=gpus(8, *H100), cluster=cluster(2)),
    "3 workers, 3 A100": host(48, devices=gpus(3, *A100), cluster=cluster(3)),
    "2 workers, K80": host(8, devices=gpus(1, *K80), cluster=cluster(2)),
}
FIXED = (
    [{"global_batch_size": size} for size in (1, 7, 32, 33, 97, 1000)]
    + [{"strategy": strategy} for strategy in ("none", "one_device", "mirrored", "tpu", "multi_worker_mirrored")]
    + [{"devices": devices} for devices in (("CPU:0",), ("GPU:0",), ("GPU:0", "GPU:1"), ("GPU:1",))]
    + [{"global_batch_size": 33, "strategy": "mirrored"}, {"global_batch_size": 30, "accumulation_steps": 3}]
    + [{"dtype_policy": "float32"}, {"num_workers": 1}, {"num_logical_cpus": 4, "global_batch_size": 64}]
)


@pytest.fixture(scope="module")
def recipes():
    """The workloads of all recipes that need no data of the user, and some that are made up."""
    names = [entry.name for entry in list_recipes()]
    found = {name: import_module(f"tfaccel.recipes.{name}").workload() for name in names}
    assert len(found) >= 13
    large = workload(256, num_train_examples=10**6, bfloat16_on_cpu=True, min_replica_batch_size=16)
    return {**found, "nothing known": workload(64), "large": large, "odd": workload(31)}


def check(plan, hardware, work, fixed):
    assert plan.global_batch_size % (plan.num_replicas * plan.accumulation_steps) == 0
    reasons = dict(plan.reasons)
    assert list(reasons) == list(plan_field_names())
    assert all(len(reason) > 9 for reason in reasons.values())
    for name, value in fixed.items():
        assert getattr(plan, name) == value
        assert reasons[name] == "Set by you."
    used = [device for device in hardware.devices if device.name in plan.devices]
    assert all((device.compute_capability or (9, 0)) >= (6, 0) for device in used)
    assert sum("MIG" in device.model for device in used) <= 1
    if "global_batch_size" not in fixed and plan.global_batch_size != work.global_batch_size:
        assert f"nearest to the recommended {work.global_batch_size} " in reasons["global_batch_size"]
    if "devices" not in fixed and plan.devices[0].startswith("GPU") and len(used) < len(hardware.devices):
        assert "--devices=" in reasons["devices"] or "is not used: " in reasons["devices"]
        assert plan.strategy != "none" or "idle" in reasons["strategy"] or "strategy" in fixed


@pytest.mark.parametrize("machine", MACHINES)
def test_every_plan_is_sensible(machine, recipes):
    hardware = MACHINES[machine]
    for name, work in recipes.items():
        for plan in candidate_plans(hardware, work):
            check(plan, hardware, work, {})
        for fixed in FIXED if name in ("large", "nothing known", "odd", "transfer_learning") else ():
            try:
                plan = default_plan(hardware, work, **fixed)
            except PlanError as error:
                assert re.search(
                    r"\bUse |Devices here|cannot be used|needs |uses |takes |has \d+ workers|runs on one", str(error)
                ), error
                continue
            check(plan, hardware, work, fixed)


def test_recipes_take_bfloat16_on_cpus_where_they_multiply_large_matrices(recipes):
    small = {"recommendation", "tabular_classification", "tabular_regression", "text_classification"}
    for name, work in recipes.items():
        found = {machine: default_plan(MACHINES[machine], work).dtype_policy for machine in ("CPU", "64 cores")}
        large = name not in small | {"nothing known", "odd"}
        assert found == {"CPU": "float32", "64 cores": "mixed_bfloat16" if large else "float32"}, name


def test_recipes_take_one_gpu_and_keep_their_batch(recipes):
    """Their steps take less time on a GPU than the sums of gradients would."""
    for machine in ("3 A100", "8 A100", "8 H100"):
        for name, work in recipes.items():
            if name in ("large", "nothing known", "odd"):
                continue
            plan = default_plan(MACHINES[machine], work)
            assert (plan.strategy, plan.devices) == ("none", ("GPU:0",)), name
            assert plan.global_batch_size == work.global_batch_size
            reason = dict(plan.reasons)["devices"]
            assert re.match(
                r"One of \d GPUs: with more, a replica would have fewer than \d+ of the \d+ examples", reason
            )


@pytest.mark.parametrize(
    ("machine", "name", "strategy", "devices", "batch", "reason"),
    [
        ("8 H100", "large", "mirrored", 8, 256, "All 8 GPUs: they are of one model."),
        ("3 A100", "large", "mirrored", 3, 255, "All 3 GPUs"),
        ("8 H100", "nothing known", "mirrored", 2, 64, "2 of 8 GPUs: with more, a replica would have fewer than 32 of"),
        (
            "8 H100",
            "odd",
            "none",
            1,
            31,
            "One of 8 GPUs: the largest number that shares 31 evenly. For all of them: "
            "--global_batch_size=24 or 32 with --devices=GPU:0,",
        ),
        ("K80", "large", "none", 1, 256, "GPU:0 is not used: Tesla K80 has compute capability 3.7, and TensorFlow"),
        ("2 workers, K80", "large", "multi_worker_mirrored", 1, 256, "GPU:0 is not used: Tesla K80 has"),
        ("K80 and V100", "large", "one_device", 1, 256, "The only GPU. GPU:0 is not used: Tesla K80"),
        ("slices", "large", "none", 1, 256, "GPU:1 is not used: a process can use one slice of a GPU (MIG), GPU:0."),
        ("mixed", "large", "mirrored", 2, 256, "The 2 GPUs of one model (NVIDIA A100-SXM4-40GB); replicas on others"),
        ("all different", "large", "one_device", 1, 256, "One GPU (NVIDIA A100-SXM4-40GB): the others are of other"),
        ("2 workers, 8 H100", "large", "multi_worker_mirrored", 8, 256, "All 8 GPUs"),
        ("2 workers, 8 H100", "image_classification", "multi_worker_mirrored", 1, 64, "One of 8 GPUs: with more"),
        ("TPU v5e", "large", "tpu", 8, 256, "All TPU devices"),
    ],
)
def test_single_machines(recipes, machine, name, strategy, devices, batch, reason):
    plan = default_plan(MACHINES[machine], recipes[name])
    assert (plan.strategy, len(plan.devices), plan.global_batch_size) == (strategy, devices, batch)
    assert reason in dict(plan.reasons)["devices"]
    if machine == "all different":
        assert plan.devices == ("GPU:1",)
        assert "--devices=GPU:0,GPU:1,GPU:2" in dict(plan.reasons)["devices"]
    if machine == "K80":
        assert plan.devices == ("CPU:0",)


@pytest.mark.parametrize(
    ("machine", "devices", "message"),
    [
        ("K80", ("GPU:0",), "GPU:0 cannot be used: Tesla K80 has compute capability 3.7"),
        ("K80 and V100", ("GPU:0", "GPU:1"), "GPU:0 cannot be used: Tesla K80 has compute capability 3.7"),
        ("slices", ("GPU:2", "GPU:5"), "GPU:5 cannot be used: a process can use one slice of a GPU (MIG), GPU:2"),
    ],
)
def test_devices_that_tensorflow_cannot_use_are_refused(machine, devices, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        default_plan(MACHINES[machine], workload(), devices=devices)
    assert default_plan(MACHINES["slices"], workload(), devices=("GPU:2",)).devices == ("GPU:2",)
