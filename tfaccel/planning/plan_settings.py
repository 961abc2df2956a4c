"""What a field of a `Plan` may be: `Plan` gives each of its fields a `Setting`, which checks its values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.option_checks import MAX_COUNT, shortened

EVERYDAY, EXPERT, EXPERIMENTAL = "everyday", "expert", "experimental"
LEVELS = (EVERYDAY, EXPERT, EXPERIMENTAL)
LEFT_TO_TENSORFLOW = "to leave it to TensorFlow"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a plan field may be, and what is said about it.

    Args:
        level: who sets it: `EVERYDAY`, `EXPERT` or `EXPERIMENTAL`.
        values: the allowed texts; None for a switch, a count, or a field with a check of its own.
        refused: text -> why it is refused although it names something that exists.
        bounds: the smallest and the largest count; None for a switch.
        none: what None means, if the field may be None.
        reason: why a plan has the default, for a field that no rule decides.
        flag: its own command-line flag; None for --set=FIELD=VALUE.
        help: the flag's help.
        axes: the axes along which `find_fastest` changes it.
        in_engine: whether the training step reads it: it is a field of `EngineOptions`, too.
    """

    level: str = EXPERT
    values: tuple[str, ...] | None = None
    refused: Mapping[str, str] | None = None
    bounds: tuple[int, int] | None = None
    none: str | None = None
    reason: str = ""
    flag: str | None = None
    help: str = ""
    axes: tuple[str, ...] = ()
    in_engine: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether the values are true and false, and perhaps None."""
        return self.values is None and self.bounds is None


def switch(default: Any = MISSING, **known: Any) -> Any:
    """A field of `Plan` that is true or false, or has a check of its own.

    Args:
        default: its default, if it has one.
        **known: what `Setting` takes.
    """
    return field(default=default, metadata={"setting": Setting(**known)})


def choice(*values: str, default: Any = MISSING, **known: Any) -> Any:
    """A field that is one of several texts."""
    return switch(default, values=values, **known)


def count(low: int, high: int = MAX_COUNT, *, default: Any = MISSING, **known: Any) -> Any:
    """A field that is a whole number."""
    return switch(default, bounds=(low, high), **known)


def parse_device(device: Any) -> tuple[str, int]:
    """Kind and index of a device name: ("GPU", 1) for "GPU:1"; PlanError if it is not one."""
    match = re.fullmatch(r"(CPU|GPU|TPU):(0|[1-9]\d*)", device) if isinstance(device, str) else None
    if match is None:
        raise PlanError(
            f"A device is written KIND:INDEX, with CPU, GPU or TPU and a number from 0, such as 'GPU:0'. "
            f"Received: {device!r}."
        )
    return match[1], int(match[2])


def check_setting(name: str, value: Any, setting: Setting) -> None:
    """Raises PlanError if this field cannot have this value in any plan."""
    if value is None and setting.none is not None:
        return
    if name == "devices":
        _check_devices(value)
    elif name == "tpu":
        if not isinstance(value, str) or not value:
            raise PlanError(f"`tpu` must be a TPU's name or address, 'local', or None. Received: tpu={value!r}.")
    elif setting.values is not None:
        _check_choice(name, value, setting.values, setting)
    elif setting.bounds is not None:
        _check_count(name, value, *setting.bounds, setting)
    elif type(value) is not bool:
        words = "true or false" if setting.none is None else f"true, false, or None {setting.none}"
        raise PlanError(f"`{name}` must be {words}. Received: {name}={value!r}.")


def _check_choice(name: str, value: Any, allowed: tuple[str, ...], setting: Setting) -> None:
    refusal = (setting.refused or {}).get(value) if isinstance(value, str) else None
    if refusal is not None:
        raise PlanError(f"`{name}` cannot be {value!r}: {refusal}. Choose one of: {', '.join(allowed)}.")
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        or_none = "" if setting.none is None else ", or None"
        raise PlanError(f"`{name}` must be one of {', '.join(allowed)}{or_none}. Received: {name}={value!r}.{hint}")


def _check_count(name: str, value: Any, low: int, high: int, setting: Setting) -> None:
    or_none = "" if setting.none is None else f", or None {setting.none}"
    if type(value) is not int or value < low:
        raise PlanError(
            f"`{name}` must be a whole number of at least {low}{or_none}. Received: {name}={shortened(value)}."
        )
    if value > high:
        raise PlanError(f"`{name}` must be at most {high}{or_none}. Received: {name}={shortened(value)}.")


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
