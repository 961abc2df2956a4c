"""Machines and a workload made up for planning, and the values of a field in the plans for them."""

from tfaccel.hardware.hardware import Cluster, Device, Hardware
from tfaccel.planning.workload import Workload


def gpus(count, model, capability):
    return tuple(Device(kind="GPU", index=i, model=model, compute_capability=capability) for i in range(count))


def tpus(count, model="TPU v5e"):
    return tuple(Device(kind="TPU", index=i, model=model) for i in range(count))


def host(cores, *features, **kwargs):
    return Hardware(num_physical_cores=cores, num_usable_cores=cores, cpu_features=features, **kwargs)


TWO_CORES = host(2, "AVX2", "FMA")
MANY_CORES = host(64, "AVX2", "AVX512F", "AVX512_BF16")
ONE_T4 = host(4, devices=gpus(1, "Tesla T4", (7, 5)))
ONE_V100 = host(8, devices=gpus(1, "Tesla V100-SXM2-16GB", (7, 0)))
ONE_P100 = host(8, devices=gpus(1, "Tesla P100-PCIE-16GB", (6, 0)))
FOUR_A100 = host(48, devices=gpus(4, "NVIDIA A100-SXM4-40GB", (8, 0)))
EIGHT_H100 = host(96, devices=gpus(8, "NVIDIA H100 80GB HBM3", (9, 0)))
UNKNOWN_GPU = host(8, devices=(Device(kind="GPU", index=0),))
MIXED_GPUS = host(
    16, devices=(*gpus(1, "Tesla T4", (7, 5)), *[Device(kind="GPU", index=i, model="A100") for i in (1, 2)])
)
TPU_V5E = host(112, devices=tpus(8), tpu_environment="kaggle")
TWO_WORKERS = host(2, cluster=Cluster(source="tf_config", num_workers=2, task_index=1))
TWO_GPU_WORKERS = host(
    96, devices=gpus(8, "NVIDIA H100 80GB HBM3", (9, 0)), cluster=Cluster(source="slurm", num_workers=2, task_index=0)
)
CONTAINER = Hardware(num_physical_cores=32, num_usable_cores=4)
TPU_SLICE = host(112, devices=tpus(4), cluster=Cluster(source="cloud_tpu", num_workers=4, task_index=0))

MACHINES = {
    "two cores": TWO_CORES,
    "many cores": MANY_CORES,
    "T4": ONE_T4,
    "V100": ONE_V100,
    "P100": ONE_P100,
    "4 A100": FOUR_A100,
    "8 H100": EIGHT_H100,
    "unknown GPU": UNKNOWN_GPU,
    "mixed GPUs": MIXED_GPUS,
    "TPU v5e-8": TPU_V5E,
    "two workers": TWO_WORKERS,
    "two GPU workers": TWO_GPU_WORKERS,
    "container": CONTAINER,
}


def no_data(global_batch_size, *, seed=0, epoch=0):
    raise AssertionError("planning must not touch the data")


def workload(global_batch_size=256, **kwargs):
    return Workload("made_up", object, dict, no_data, global_batch_size=global_batch_size, **kwargs)


def values(plans, field):
    """The values of a field, each once, in the order of the plans."""
    return list(dict.fromkeys(getattr(plan, field) for plan in plans))
