"""The settings of plan fields: what is said about each, and how it is overridden."""

import re
from dataclasses import fields

from planning_machines import EIGHT_H100, workload

from tfaccel.planning.candidates import default_plan
from tfaccel.planning.moves import AXES
from tfaccel.planning.placements import PLACEMENT_FIELDS
from tfaccel.planning.plan import SETTINGS, Plan, explain, plan_field_names
from tfaccel.planning.plan_checks import EVERYDAY, EXPERIMENTAL
from tfaccel.planning.rules import RULES
from tfaccel.training.steps.engine import EngineOptions


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


def test_every_field_has_a_rule_or_the_reason_of_its_default():
    decided = {*RULES, *PLACEMENT_FIELDS}
    assert decided <= set(SETTINGS)
    for name, setting in SETTINGS.items():
        assert (name in decided) != bool(setting.reason), name


def test_every_field_is_told_apart_in_the_docs_of_plan():
    paragraph = (Plan.__doc__ or "").split("Args:")[0].partition("Six fields are for every day:")[2]
    everyday, experimental = paragraph.split("Six are experimental")
    for level, text in ((EVERYDAY, everyday), (EXPERIMENTAL, experimental)):
        assert re.findall(r"`(\w+)`", text) == [name for name, one in SETTINGS.items() if one.level == level]


def test_every_axis_is_tried_in_some_order():
    assert {axis for one in SETTINGS.values() for axis in one.axes} == set(AXES)
    assert all(AXES.values())


def test_the_step_has_the_fields_that_it_reads():
    read = {name for name, one in SETTINGS.items() if one.in_engine}
    assert read == set(plan_field_names()) & {field.name for field in fields(EngineOptions)}
