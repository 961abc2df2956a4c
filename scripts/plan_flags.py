"""The flags that set fields of a plan, shared by several commands."""

from typing import Any

from absl import flags

from tfaccel.errors import PlanError
from tfaccel.planning.override_flags import OVERRIDE_FLAGS, override_flag
from tfaccel.planning.plan import check_field_names
from tfaccel.planning.plan_fields import (
    COUNT_FIELDS,
    OPTIONAL_CHOICES,
    OPTIONAL_COUNT_FIELDS,
    OPTIONAL_SWITCH_FIELDS,
    SWITCH_FIELDS,
    check_value,
)

AUTO = "auto"
_HELP = {
    "strategy": "none, one_device, mirrored, multi_worker_mirrored, tpu, or auto",
    "devices": "devices that hold replicas, such as GPU:0,GPU:1, or auto",
    "logical_cpus": "number of logical devices to split the CPU into, or auto",
    "dtype_policy": "float32, mixed_float16, mixed_bfloat16, or auto",
    "xla": "on, off, or auto: whether to compile the forward and backward pass with XLA",
    "global_batch_size": "examples per optimizer step over all replicas, or auto",
    "accumulation_steps": "micro-batches per optimizer step, or auto",
    "steps_per_execution": "optimizer steps per call, or auto",
    "synchronize_batch_norm": "on, off, or auto: whether batch normalization synchronizes statistics across replicas",
    "num_threads": "number of threads for TensorFlow's operations, or auto",
    "data_service": "number of tf.data service workers that prepare the training batches, or auto for none",
}


def define_plan_flags(values: flags.FlagValues) -> None:
    """Adds the flags to those of a command."""
    for name, text in _HELP.items():
        flags.DEFINE_string(name, AUTO, text, flag_values=values)
    text = "set another field of the plan, as FIELD=VALUE; can be repeated"
    flags.DEFINE_multi_string("set", [], text, flag_values=values)


def fixed_fields(values: flags.FlagValues) -> dict[str, Any]:
    """The plan fields set by flags, without those left at auto.

    Raises:
        PlanError: for an invalid value, an unknown field, or a field that is set twice.
    """
    fixed: dict[str, Any] = {}
    for field, flag in OVERRIDE_FLAGS.items():
        text = str(values[flag].value).strip()
        if text != AUTO:
            fixed[field] = _value(field, text, f"--{flag}")
    for assignment in values.set or []:
        field, equals, text = assignment.partition("=")
        if not equals:
            raise PlanError(f"--set is written --set=FIELD=VALUE. Received: --set={assignment}.")
        check_field_names([field])
        if field in fixed or field == "reasons":
            raise PlanError(f"`{field}` cannot be set by --set={assignment}: {_why_not(field)}.")
        fixed[field] = _value(field, text.strip(), f"--set={field}")
    return fixed


def _why_not(field: str) -> str:
    return "reasons are given by the rules" if field == "reasons" else f"it is set already ({override_flag(field)})"


def _value(field: str, text: str, flag: str) -> Any:
    """Converts the text of a flag to the field's value."""
    value: Any = text
    if text.lower() == "none" and field in (*OPTIONAL_CHOICES, *OPTIONAL_COUNT_FIELDS, *OPTIONAL_SWITCH_FIELDS, "tpu"):
        value = None
    elif field in SWITCH_FIELDS or field in OPTIONAL_SWITCH_FIELDS:
        value = _switch(text, flag)
    elif field == "devices":
        value = tuple(part.strip() for part in text.split(","))
    elif field in COUNT_FIELDS or field in OPTIONAL_COUNT_FIELDS:
        value = _count(text, flag)
    check_value(field, value)
    return value


def _switch(text: str, flag: str) -> bool:
    words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
    if text.lower() not in words:
        raise PlanError(f"{flag} must be on or off{_or_auto(flag)}. Received: {flag}={text}.")
    return words[text.lower()]


def _count(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PlanError(f"{flag} must be a whole number{_or_auto(flag)}. Received: {flag}={text}.") from None


def _or_auto(flag: str) -> str:
    return "" if flag.startswith("--set=") else ", or auto"
