"""The plans worth considering for a machine and a workload, best first by rule of thumb."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.placements import SET_BY_YOU, Case, Choice, placements
from tfaccel.planning.plan import SETTINGS, Plan, check_field_names, check_value, default_value, plan_field_names
from tfaccel.planning.plan_checks import PRECISION
from tfaccel.planning.rules import RULES
from tfaccel.planning.short_names import full_names
from tfaccel.planning.workload import Workload

# All combinations of these fields are tried: the gain of one depends on the other. Further choices of the other fields
# are tried only on the best plan, one at a time.
_COMBINED = ("dtype_policy", "jit_compile")
# Rank penalty of a second choice: a worse placement ranks below every combination, a single change below all.
_PLACEMENT_COST, _SINGLE_COST = 10, 100


_NO_WORKLOAD: Any = None  # required; a default, so that the error message can say so


def candidate_plans(
    hardware: Hardware,
    workload: Workload = _NO_WORKLOAD,
    *,
    step_operations: int | None = None,
    training_bytes: int | None = None,
    **fixed: Any,
) -> list[Plan]:
    """The plans worth measuring, best first by rule of thumb, with a reason for the value of every field.

    Args:
        hardware: the machine to plan for, this one (`detect_hardware()`) or another.
        workload: the workload to train.
        step_operations: floating-point operations of an optimizer step's matrix products and convolutions, as
            `tfaccel.estimates.get_cost(workload).step.matrix_flops` counts them; None if unknown.
        training_bytes: memory of training on one device, as `tfaccel.estimates.estimate_memory` estimates it; None if
            unknown. A model that does not fit on one of several GPUs is cut into stages.
        **fixed: plan fields with fixed values, which every returned plan has; `devices` may be a number, and
            `precision` stand for `dtype_policy`: see `tfaccel.planning.short_names`.

    Raises:
        PlanError: if a fixed field is unknown, has an invalid value, or cannot run on this machine or with the others.

    Example:
        >>> from tfaccel.hardware.hardware import Device
        >>> digits = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=256)
        >>> gpus = tuple(Device(kind="GPU", index=i, compute_capability=(9, 0)) for i in range(8))
        >>> [plan.strategy for plan in candidate_plans(Hardware(devices=gpus), digits, dtype_policy="float32")]
        ['mirrored', 'mirrored', 'none', 'none', 'mirrored', 'mirrored', 'mirrored']
    """
    if not isinstance(hardware, Hardware) or not isinstance(workload, Workload):
        raise PlanError(
            "Plans are made for a machine and a workload, in this order: default_plan(detect_hardware(), workload). "
            f"Received: {type(hardware).__name__} and {type(workload).__name__}."
        )
    fixed = checked_fields(fixed, hardware)
    if "dtype_policy" in fixed and isinstance(workload.build_model, RebuiltModel):
        workload.build_model.check_dtype_policy(fixed["dtype_policy"])
    case = Case(hardware=hardware, workload=workload, fixed=fixed, choices={}, step_operations=step_operations)
    cases = [
        replace(case, choices=placement, cost=rank * _PLACEMENT_COST)
        for rank, placement in enumerate(placements(case, training_bytes))
    ]
    for name in dict.fromkeys([*_COMBINED, *RULES, *(name for name, one in SETTINGS.items() if one.reason)]):
        cost = 1 if name in _COMBINED else _SINGLE_COST
        cases = [further for case in cases for further in _apply(case, name, cost=cost)]
    return _plans(sorted(cases, key=lambda case: case.cost))


def default_plan(
    hardware: Hardware, workload: Workload = _NO_WORKLOAD, *, step_operations: int | None = None, **fixed: Any
) -> Plan:
    """The first of `candidate_plans`, which takes the same arguments: the plan to use without measuring.

    Raises:
        PlanError: as `candidate_plans`.

    Example:
        >>> digits = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
        >>> default_plan(Hardware(), digits).devices
        ('CPU:0',)
    """
    return candidate_plans(hardware, workload, step_operations=step_operations, **fixed)[0]


def checked_fields(fixed: Mapping[str, Any], hardware: Hardware | None = None) -> dict[str, Any]:
    """Plan fields with fixed values, as a plan holds them; see `full_names`.

    Raises:
        PlanError: for an unknown field, or an invalid value.

    Example:
        >>> checked_fields({"devices": ["CPU:0"]})
        {'devices': ('CPU:0',)}
    """
    values = full_names(fixed, hardware)
    check_field_names(values, can_be_set=True)
    for name, value in values.items():
        check_value(name, value)
    return values


def taken_fields(
    options: dict[str, Any], plan: Plan | None = None, *, hardware: Hardware | None = None
) -> dict[str, Any]:
    """Removes the plan fields from the options of a call, and returns them, as a plan holds them.

    Args:
        options: what a verb was called with.
        plan: a plan that was given as well.
        hardware: the machine that the plan is for; None for this one.

    Raises:
        PlanError: for an invalid value, or for fields beside a plan.

    Example:
        >>> options = {"strategy": "none", "width": 8}
        >>> taken_fields(options), options
        ({'strategy': 'none'}, {'width': 8})
    """
    fixed = {name: options.pop(name) for name in (*plan_field_names(), PRECISION) if name in options}
    if plan is not None and fixed:
        raise PlanError(f"Give a plan, or fields of one. Received both: plan, {', '.join(fixed)}.")
    return checked_fields(fixed, hardware)


def given_plan(plan: Plan | Mapping[str, Any] | None, options: dict[str, Any]) -> Plan | None:
    """The plan that a verb was called with. The fields in a mapping join the options of the call instead.

    Raises:
        PlanError: for an unknown field, or one that the call names as well.

    Example:
        >>> options = {}
        >>> given_plan({"precision": "bf16"}, options), options
        (None, {'precision': 'bf16'})
    """
    if not isinstance(plan, Mapping):
        return plan
    check_field_names(set(plan) - {PRECISION}, can_be_set=True)
    twice = sorted({*plan} & {*options})
    if twice:
        raise PlanError(f"`{twice[0]}` is in the plan's fields and an argument of its own. Leave out one of them.")
    options.update(plan)
    return None


def _apply(case: Case, name: str, *, cost: int) -> list[Case]:
    """The case with each choice of one field; only the best case gets further choices of single fields."""
    if name in case.fixed:
        choices = [Choice(case.fixed[name], SET_BY_YOU)]
    elif name in RULES:
        choices = RULES[name](case)
    else:
        choices = [Choice(default_value(name), SETTINGS[name].reason)]
    if cost >= _SINGLE_COST and case.cost > 0:
        choices = choices[:1]
    return [
        replace(case, choices={**case.choices, name: choice}, cost=case.cost + rank * cost)
        for rank, choice in enumerate(choices)
    ]


def _plans(cases: list[Case]) -> list[Plan]:
    """The plans of all valid cases; raises the error of the best case if none is valid."""
    plans: list[Plan] = []
    errors: list[PlanError] = []
    for case in cases:
        values = {name: choice.value for name, choice in case.choices.items()}
        reasons = tuple((name, case.choices[name].reason) for name in plan_field_names())
        try:
            plans.append(Plan(**values, reasons=reasons))
        except PlanError as error:
            errors.append(error)
    if not plans:
        raise errors[0]
    return list(dict.fromkeys(plans))
