"""What a notebook shows of plans and results: at most some 300 characters."""

from dataclasses import dataclass, is_dataclass, make_dataclass
from importlib import import_module

import pytest

from tfaccel import Plan, Workload
from tfaccel.short_repr import LENGTH, short_repr


@pytest.mark.parametrize("package", ["tfaccel", "tfaccel.data", "tfaccel.layers", "tfaccel.reporting"])
def test_every_public_dataclass_has_a_short_repr(package, logical_devices):
    module = import_module(package)
    classes = [value for name in module.__all__ if isinstance(value := getattr(module, name), type)]
    found = [one.__name__ for one in classes if is_dataclass(one) and one.__repr__.__module__ != short_repr.__module__]
    assert not found and any(map(is_dataclass, classes))


def test_a_plan_shows_what_differs_from_the_defaults():
    reasons = tuple((name, "a long reason " * 9) for name in ("strategy", "devices"))
    plan = Plan(
        strategy="none", devices=("CPU:0",), global_batch_size=64, dtype_policy="mixed_bfloat16", reasons=reasons
    )
    assert (
        repr(plan) == "Plan(strategy='none', devices=('CPU:0',), dtype_policy='mixed_bfloat16', global_batch_size=64)"
    )


def test_many_long_fields_are_shortened():
    @short_repr
    @dataclass
    class Result:
        history: dict
        parts: tuple
        texts: list
        notes: str = ""
        other: float = 0.0

    history = {f"metric {number}": [0.123456] * 100 for number in range(20)}
    parts = tuple(Workload("a" * 500, object, dict, print, global_batch_size=1) for _ in range(50))
    result = Result(history, parts, ["text" * 1000] * 10, "note" * 100, 1.0)
    assert len(repr(result)) <= LENGTH
    assert repr(result).startswith("Result(history={'metric 0': [0.123456, 0.123456,") and repr(result).endswith(
        ", ...)"
    )
    assert repr(Result({}, (), [], other=2.5)) == "Result(history={}, parts=(), texts=[], other=2.5)"


def test_jupyter_shows_the_same_fields_as_a_table():
    names = tuple(f"field_{number}" for number in range(30))
    shown = short_repr(make_dataclass("Shown", [(name, str) for name in names]))(*["<b>value</b>" * 20] * 30)
    html = shown._repr_html_()
    assert html.count("<tr>") == 16 and len(html) < 5000 and "<b>" not in html
    assert html.startswith("<table><caption>Shown</caption><tr><th>field_0</th><td>&#x27;&lt;b&gt;value")
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=64)
    assert plan._repr_html_().count("<tr>") == 3


@pytest.mark.parametrize(
    "name", ["html_report.write_report:WrittenReport", "extras.inspection.findings:InspectionReport"]
)
def test_what_other_functions_return_is_short_too(name):
    module, _, kind = name.partition(":")
    assert getattr(import_module(f"tfaccel.{module}"), kind).__repr__.__module__ == short_repr.__module__
