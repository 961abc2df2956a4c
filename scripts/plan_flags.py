"""The flags that set fields of a plan, shared by several commands."""

import re
from typing import Any

from absl import flags

from tfaccel.errors import PlanError
from tfaccel.planning.plan import SETTINGS, check_field_names, check_value, override_flag
from tfaccel.planning.plan_checks import EXPERIMENTAL, EXPERT, PRECISION
from tfaccel.planning.short_names import full_names

AUTO = "auto"


def define_plan_flags(values: flags.FlagValues) -> None:
    """Adds the flags to those of a command."""
    for name, text in {one.flag: one.help for one in SETTINGS.values() if one.flag is not None}.items():
        flags.DEFINE_string(name, AUTO, text, flag_values=values)
    flags.DEFINE_string(PRECISION, AUTO, "fp32, fp16, bf16, or auto: --dtype_policy in short", flag_values=values)
    others = {
        level: ", ".join(name for name, one in SETTINGS.items() if one.level == level and one.flag is None)
        for level in (EXPERT, EXPERIMENTAL)
    }
    text = (
        "set another field of the plan, as FIELD=VALUE; can be repeated. For experts: "
        f"{others[EXPERT]}. Experimental: {others[EXPERIMENTAL]}"
    )
    flags.DEFINE_multi_string("set", [], text, flag_values=values)


def fixed_fields(values: flags.FlagValues) -> dict[str, Any]:
    """The plan fields set by flags, without those left at auto.

    Raises:
        PlanError: for an invalid value, an unknown field, or a field that is set twice.
    """
    fixed: dict[str, Any] = {}
    for field, setting in SETTINGS.items():
        text = AUTO if setting.flag is None else str(values[setting.flag].value).strip()
        if text != AUTO:
            fixed[field] = _value(field, text, override_flag(field))
    if str(values[PRECISION].value).strip() != AUTO:
        if "dtype_policy" in fixed:
            raise PlanError("--precision is short for --dtype_policy. Received both. Leave out one of them.")
        fixed |= full_names({PRECISION: values[PRECISION].value.strip()})
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
    setting = SETTINGS[field]
    if text.lower() == "none" and setting.none is not None:
        value = None
    elif field == "devices":
        if re.fullmatch(r"[+-]?\d+", text):
            return int(text)  # which ones depends on the machine; see `full_names`
        value = full_names({field: text})[field]
    elif setting.bounds is not None:
        value = _count(text, flag)
    elif setting.is_switch and field != "tpu":
        value = _switch(text, flag)
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
