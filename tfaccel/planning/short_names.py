"""Plan fields in the words that people know: `devices=2`, `precision="bf16"`, and "auto" for what the rules choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.known_names import did_you_mean
from tfaccel.planning.placements import usable_gpus
from tfaccel.planning.plan_checks import PRECISION

AUTO = "auto"
_POLICIES = {
    "float32": ("float32", "fp32", "32", "32-true"),
    "mixed_float16": ("mixed_float16", "fp16", "16-mixed"),
    "mixed_bfloat16": ("mixed_bfloat16", "bf16", "bf16-mixed"),
}
_WORDS = {word: policy for policy, words in _POLICIES.items() for word in words}
_FIRST_WORDS = ", ".join(words[1] for words in _POLICIES.values())
_OPTIONAL = ("strategy", "devices", "dtype_policy", PRECISION)  # which may be "auto"


def full_names(fields: Mapping[str, Any], hardware: Hardware | None = None) -> dict[str, Any]:
    """Plan fields as a plan holds them.

    Args:
        fields: name -> value. `precision` is one of "fp32", "fp16", "bf16" (as a word, `dtype_policy`'s own included);
            `devices` a list of names, one name, or how many to train on: GPUs, if there are any that TensorFlow can
            use, otherwise parts of the CPU.
        hardware: the machine that a number of devices is meant for; None for this one.

    Raises:
        PlanError: for an unknown precision, one beside `dtype_policy`, or more devices than there are.

    Example:
        >>> full_names({"devices": 2, "precision": "bf16", "strategy": "auto"}, Hardware())
        {'devices': ('CPU:0', 'CPU:1'), 'dtype_policy': 'mixed_bfloat16'}
    """
    found = {name: value for name, value in fields.items() if not (name in _OPTIONAL and value in (AUTO, None))}
    if PRECISION in found:
        if "dtype_policy" in found:
            raise PlanError("`precision` is a short name for `dtype_policy`. Received both. Leave out one of them.")
        found["dtype_policy"] = _policy(found.pop(PRECISION))
    devices = found.get("devices")
    if isinstance(devices, str):
        found["devices"] = tuple(name.strip() for name in devices.split(","))
    elif isinstance(devices, list):
        found["devices"] = tuple(devices)
    elif type(devices) is int:
        found["devices"] = _named_devices(devices, detect_hardware() if hardware is None else hardware)
    return found


def _policy(precision: Any) -> str:
    word = str(precision).lower() if type(precision) in (str, int) else ""
    if word not in _WORDS:
        hint = did_you_mean(word, _WORDS) if word else ""
        raise PlanError(f'`precision` must be one of {_FIRST_WORDS}, or "auto". Received: {precision=!r}.{hint}')
    return _WORDS[word]


def _named_devices(count: int, hardware: Hardware) -> tuple[str, ...]:
    """The names of so many devices."""
    if count < 1:
        raise PlanError(f"`devices` must be at least 1 if it is a number. Received: devices={count}.")
    if hardware.tpus and not hardware.gpus:
        names = tuple(tpu.name for tpu in hardware.tpus)
        if count != len(names):
            raise PlanError(f"TPUStrategy uses all {len(names)} devices of this TPU. Received: devices={count}.")
        return names
    gpus = usable_gpus(hardware)
    if not gpus:
        return tuple(f"CPU:{index}" for index in range(count))
    if count > len(gpus):
        there = ", ".join(gpu.name for gpu in gpus)
        raise PlanError(
            f"There are {len(gpus)} GPUs that TensorFlow can use here ({there}). Received: devices={count}. For parts "
            f"of the CPU, name them: devices=['CPU:0', 'CPU:1']."
        )
    return tuple(gpu.name for gpu in gpus[:count])
