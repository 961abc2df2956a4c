"""The command-line flag that overrides each field of a plan, and the explanation of a plan field by field."""

from dataclasses import dataclass
from typing import Any

from tfaccel.planning.plan import Plan, plan_field_names

# Fields with a dedicated flag; the others are set with --set=FIELD=VALUE.
OVERRIDE_FLAGS = {
    "strategy": "strategy",
    "devices": "devices",
    "num_logical_cpus": "logical_cpus",
    "dtype_policy": "dtype_policy",
    "jit_compile": "xla",
    "global_batch_size": "global_batch_size",
    "accumulation_steps": "accumulation_steps",
    "steps_per_execution": "steps_per_execution",
    "synchronize_batch_norm": "synchronize_batch_norm",
    "intra_op_threads": "num_threads",
    "inter_op_threads": "num_threads",
    "data_service": "data_service",
}


@dataclass(frozen=True)
class FieldExplanation:
    """One field of a plan: its value, the reason for it, and the flag that overrides it."""

    field: str
    value: Any
    reason: str
    flag: str


def override_flag(field: str) -> str:
    """The flag that sets a plan field.

    Example:
        >>> override_flag("jit_compile"), override_flag("bytes_per_pack")
        ('--xla', '--set=bytes_per_pack=VALUE')
    """
    return f"--{OVERRIDE_FLAGS[field]}" if field in OVERRIDE_FLAGS else f"--set={field}=VALUE"


def explain(plan: Plan) -> tuple[FieldExplanation, ...]:
    """Every field of a plan with its reason ("" if the plan has none) and its flag.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, reasons=[("strategy", "One device.")])
        >>> explain(plan)[0]
        FieldExplanation(field='strategy', value='none', reason='One device.', flag='--strategy')
    """
    reasons = dict(plan.reasons)
    return tuple(
        FieldExplanation(name, getattr(plan, name), reasons.get(name, ""), override_flag(name))
        for name in plan_field_names()
    )
