"""The reference of a search: the plan with whose losses all others are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfaccel.planning.moves import MEASURED
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.plan import Plan, plan_field_names
from tfaccel.planning.workload import Workload

_FLOAT32_ALONE: Mapping[str, Any] = {
    "dtype_policy": "float32",
    "jit_compile": False,
    "grappler_bfloat16": False,
    "xla_auto_clustering": False,
}
_REASON = f"{MEASURED}: float32 without XLA, with which all plans are compared."


def num_settings(plan: Plan, reference: Plan) -> int:
    """The number of fields in which a plan differs from the reference: of two that are as fast, fewer are simpler.

    Example:
        >>> plain = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
        >>> num_settings(replace(plain, jit_compile=True), plain)
        1
    """
    return sum(getattr(plan, name) != getattr(reference, name) for name in plan_field_names())


def get_reference(first: Plan, workload: Workload) -> Plan:
    """The rules' plan in float32 without XLA; a Keras model keeps its own dtype policy, which no plan can change.

    Example:
        >>> work = Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=8)
        >>> first = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, dtype_policy="mixed_bfloat16")
        >>> get_reference(first, work).dtype_policy
        'float32'
    """
    fields = dict(_FLOAT32_ALONE)
    if isinstance(workload.build_model, RebuiltModel):
        del fields["dtype_policy"]
    reference = replace(first, **fields)
    if reference == first:
        return first
    return replace(reference, reasons=tuple({**dict(first.reasons), **dict.fromkeys(fields, _REASON)}.items()))
