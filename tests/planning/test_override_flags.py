"""Each field of a plan can be overridden, and the explanation says how."""

from planning_machines import EIGHT_H100, workload

from tfaccel.planning.candidates import default_plan
from tfaccel.planning.override_flags import OVERRIDE_FLAGS, explain
from tfaccel.planning.plan import Plan, plan_field_names


def test_explain():
    explanations = {explanation.field: explanation for explanation in explain(default_plan(EIGHT_H100, workload()))}
    assert list(explanations) == list(plan_field_names())
    assert all(explanation.reason for explanation in explanations.values())
    assert explanations["dtype_policy"].value == "mixed_bfloat16"
    assert explanations["dtype_policy"].flag == "--dtype_policy"
    assert explanations["communication"].flag == "--set=communication=VALUE"


def test_a_plan_without_reasons():
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
    assert {explanation.reason for explanation in explain(plan)} == {""}


def test_flags_are_of_fields():
    assert set(OVERRIDE_FLAGS) <= set(plan_field_names())
