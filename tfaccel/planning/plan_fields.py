"""What each field of a `Plan` may hold by itself. What may stand together is decided in `plan_checks`."""

import re
from typing import TYPE_CHECKING, Any

from tfaccel.errors import PlanError
from tfaccel.planning.near_name import near_name

if TYPE_CHECKING:
    from tfaccel.planning.plan import Plan

STRATEGIES = ("none", "one_device", "mirrored", "multi_worker_mirrored", "tpu")
DTYPE_POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
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

# Field -> the smallest value.
_COUNTS = {
    "num_logical_cpus": 1,
    "num_workers": 1,
    "global_batch_size": 1,
    "accumulation_steps": 1,
    "steps_per_execution": 1,
    "bytes_per_pack": 0,
    "prefetch_batches": 0,
}
_OPTIONAL_COUNTS = ("intra_op_threads", "inter_op_threads", "gpu_memory_limit_bytes", "data_threads")
_SWITCHES = ("jit_compile", "gpu_memory_growth", "sum_duplicate_indices", "cache_data")


def check_fields(plan: "Plan") -> None:
    """Raises PlanError for a field whose value has the wrong type or is not one of those allowed."""
    _check_choice("strategy", plan.strategy, STRATEGIES, REFUSED_STRATEGIES)
    _check_choice("dtype_policy", plan.dtype_policy, DTYPE_POLICIES, REFUSED_DTYPE_POLICIES)
    _check_choice("communication", plan.communication, COMMUNICATIONS, {})
    _check_devices(plan.devices)
    for name, minimum in _COUNTS.items():
        _check_count(name, getattr(plan, name), minimum)
    for name in _OPTIONAL_COUNTS:
        if getattr(plan, name) is not None:
            _check_count(name, getattr(plan, name), 1, or_none=True)
    for name in _SWITCHES:
        if type(getattr(plan, name)) is not bool:
            raise PlanError(f"`{name}` must be true or false. Received: {name}={getattr(plan, name)!r}.")
    if plan.tpu is not None and (not isinstance(plan.tpu, str) or not plan.tpu):
        raise PlanError(f"`tpu` must be a TPU's name or address, 'local', or None. Received: tpu={plan.tpu!r}.")


def parse_device(device: Any) -> tuple[str, int]:
    """Kind and index of a device name: ("GPU", 1) for "GPU:1"; PlanError if it is not one."""
    match = re.fullmatch(r"(CPU|GPU|TPU):(0|[1-9]\d*)", device) if isinstance(device, str) else None
    if match is None:
        raise PlanError(
            f"A device is written KIND:INDEX, with CPU, GPU or TPU and a number from 0, such as 'GPU:0'. "
            f"Received: {device!r}."
        )
    return match[1], int(match[2])


def _check_choice(name: str, value: Any, allowed: tuple[str, ...], refused: dict[str, str]) -> None:
    if isinstance(value, str) and value in refused:
        raise PlanError(f"`{name}` cannot be {value!r}: {refused[value]}. Choose one of: {', '.join(allowed)}.")
    if not isinstance(value, str) or value not in allowed:
        hint = near_name(value, allowed) if isinstance(value, str) else ""
        raise PlanError(f"`{name}` must be one of {', '.join(allowed)}. Received: {name}={value!r}.{hint}")


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


def _check_count(name: str, value: Any, minimum: int, *, or_none: bool = False) -> None:
    if type(value) is not int or value < minimum:
        alternative = ", or None to leave it to TensorFlow" if or_none else ""
        raise PlanError(
            f"`{name}` must be a whole number of at least {minimum}{alternative}. Received: {name}={value!r}."
        )
