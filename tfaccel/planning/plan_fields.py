"""The allowed values of each field of a `Plan`. `plan_checks` checks their combinations."""

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tfaccel.errors import PlanError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.option_checks import MAX_COUNT, shortened

if TYPE_CHECKING:
    from tfaccel.planning.plan import Plan

STRATEGIES = ("none", "one_device", "mirrored", "multi_worker_mirrored", "tpu")
DTYPE_POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
AUGMENTATION_PLACES = ("host", "device")
EMBEDDING_UPDATES = ("keras", "rows", "rows_lazy")
EMBEDDING_PLACES = ("device", "host")
SLOT_DTYPES = ("float32", "bfloat16")
OPTIMIZER_STATES = ("replicated", "sharded", "host")
MEMORY_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "glibc_huge_pages")
GPU_THREAD_MODES = ("global", "gpu_private", "gpu_shared")
COMMUNICATIONS = ("tensorflow_default", "nccl", "ring", "hierarchical_copy")

REFUSED_STRATEGIES = {
    "parameter_server": "Keras 3 does not support ParameterServerStrategy: its fit and predict fail, and asynchronous "
    "workers lose counts of optimizer.iterations",
    "central_storage": "CentralStorageStrategy with Keras 3 reports wrong losses and metrics, clips gradients wrongly, "
    "and crashes with a loss scale, EMA or gradient accumulation",
}
REFUSED_DTYPE_POLICIES = {
    "float16": "pure float16 keeps the weights in float16 too, where small updates are lost; use mixed_float16",
    "bfloat16": "pure bfloat16 keeps the weights in bfloat16 too, where small updates are lost; use mixed_bfloat16",
    "float64": "float64 is not accelerated on any of these devices; use float32",
}

_CHOICES = {
    "strategy": STRATEGIES,
    "dtype_policy": DTYPE_POLICIES,
    "communication": COMMUNICATIONS,
    "augment_on": AUGMENTATION_PLACES,
    "embedding_updates": EMBEDDING_UPDATES,
    "embeddings_on": EMBEDDING_PLACES,
    "optimizer_state": OPTIMIZER_STATES,
    "optimizer_slots_dtype": SLOT_DTYPES,
}
OPTIONAL_CHOICES = {"memory_allocator": MEMORY_ALLOCATORS, "gpu_thread_mode": GPU_THREAD_MODES}
_REFUSALS = {"strategy": REFUSED_STRATEGIES, "dtype_policy": REFUSED_DTYPE_POLICIES}
# Field -> the smallest and the largest value. TensorFlow creates all logical CPUs and threads at startup.
COUNT_FIELDS = {
    "num_logical_cpus": (1, 1_024),
    "num_workers": (1, 65_536),
    "pipeline_stages": (1, 1_024),
    "global_batch_size": (1, MAX_COUNT),
    "accumulation_steps": (1, MAX_COUNT),
    "bytes_per_pack": (0, MAX_COUNT),
    "prefetch_batches": (0, 65_536),
}
OPTIONAL_COUNT_FIELDS = {
    "steps_per_execution": (1, MAX_COUNT),
    "intra_op_threads": (1, 4_096),
    "inter_op_threads": (1, 4_096),
    "gpu_memory_limit_bytes": (1, 2**50),
    "data_threads": (1, 4_096),
    "data_service": (1, 1_024),
}
_NONE = {"data_service": "for no data workers"}
OPTIONAL_SWITCH_FIELDS = ("onednn",)
SWITCH_FIELDS = (
    "jit_compile",
    "xla_auto_clustering",
    "grappler_bfloat16",
    "gpu_memory_growth",
    "sum_duplicate_indices",
    "synchronize_batch_norm",
    "prefetch_to_device",
    "cache_data",
    "fused_kernels",
    "rematerialization",
)


def check_fields(plan: "Plan") -> None:
    """Raises PlanError for a field whose value has the wrong type or is not allowed."""
    for field in fields(plan):
        if field.name != "reasons":
            check_value(field.name, getattr(plan, field.name))


def check_value(name: str, value: Any) -> None:
    """Raises PlanError if this field cannot have this value in any plan.

    Example:
        >>> check_value("jit_compile", "auto")
        Traceback (most recent call last):
        ...
        tfaccel.errors.PlanError: `jit_compile` must be true or false. Received: jit_compile='auto'.
    """
    if name in _CHOICES:
        _check_choice(name, value, _CHOICES[name])
    elif name in OPTIONAL_CHOICES and value is not None:
        _check_choice(name, value, OPTIONAL_CHOICES[name], or_none=True)
    elif name == "devices":
        _check_devices(value)
    elif name in COUNT_FIELDS:
        _check_count(name, value, *COUNT_FIELDS[name])
    elif name in OPTIONAL_COUNT_FIELDS and value is not None:
        _check_count(name, value, *OPTIONAL_COUNT_FIELDS[name], or_none=True)
    elif name in OPTIONAL_SWITCH_FIELDS and value is not None and type(value) is not bool:
        raise PlanError(f"`{name}` must be true, false, or None to leave it to TensorFlow. Received: {name}={value!r}.")
    elif name in SWITCH_FIELDS and type(value) is not bool:
        raise PlanError(f"`{name}` must be true or false. Received: {name}={value!r}.")
    elif name == "tpu" and value is not None and (not isinstance(value, str) or not value):
        raise PlanError(f"`tpu` must be a TPU's name or address, 'local', or None. Received: tpu={value!r}.")


def parse_device(device: Any) -> tuple[str, int]:
    """Kind and index of a device name: ("GPU", 1) for "GPU:1"; PlanError if it is not one."""
    match = re.fullmatch(r"(CPU|GPU|TPU):(0|[1-9]\d*)", device) if isinstance(device, str) else None
    if match is None:
        raise PlanError(
            f"A device is written KIND:INDEX, with CPU, GPU or TPU and a number from 0, such as 'GPU:0'. "
            f"Received: {device!r}."
        )
    return match[1], int(match[2])


def _check_choice(name: str, value: Any, allowed: tuple[str, ...], *, or_none: bool = False) -> None:
    refusal = _REFUSALS.get(name, {}).get(value) if isinstance(value, str) else None
    if refusal is not None:
        raise PlanError(f"`{name}` cannot be {value!r}: {refusal}. Choose one of: {', '.join(allowed)}.")
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise PlanError(
            f"`{name}` must be one of {', '.join(allowed)}{', or None' if or_none else ''}. "
            f"Received: {name}={value!r}.{hint}"
        )


def _check_devices(devices: Any) -> None:
    if not isinstance(devices, tuple) or not devices:
        raise PlanError(
            f"`devices` must list at least one device, such as ('CPU:0',) or ('GPU:0', 'GPU:1'). "
            f"Received: devices={devices!r}."
        )
    kinds = sorted({parse_device(device)[0] for device in devices})
    if len(kinds) > 1:
        raise PlanError(
            f"`devices` must all be of one kind: replicas on {' and '.join(kinds)} would wait for the slowest. "
            f"Received: devices={','.join(devices)}. Use those of one kind."
        )
    twice = sorted({device for device in devices if devices.count(device) > 1})
    if twice:
        raise PlanError(
            f"`devices` must name each device once. Received: devices={','.join(devices)}. "
            f"Name {', '.join(twice)} once."
        )


def _check_count(name: str, value: Any, minimum: int, maximum: int, *, or_none: bool = False) -> None:
    none = _NONE.get(name, "to leave it to TensorFlow")
    alternative = f", or None {none}" if or_none else ""
    if type(value) is not int or value < minimum:
        raise PlanError(
            f"`{name}` must be a whole number of at least {minimum}{alternative}. Received: {name}={shortened(value)}."
        )
    if value > maximum:
        raise PlanError(f"`{name}` must be at most {maximum}{alternative}. Received: {name}={shortened(value)}.")
