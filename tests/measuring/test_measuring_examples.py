"""The examples in the docstrings of what is measured run and give what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "measuring.measurement",
        "measuring.interleaved",
        "measuring.candidate",
        "measuring.duel",
        "measuring.next_moves",
        "measuring.plan_times",
        "measuring.search_limits",
        "measuring.loss_check",
        "measuring.reference_plan",
        "measuring.report",
        pytest.param("measuring.find_fastest", marks=pytest.mark.slow),
        pytest.param("extras.estimates.estimate_scaling", marks=pytest.mark.slow),
        "extras.estimates.compare_devices",
        "extras.estimates.loopback",
        "benchmarks.published_scaling",
        "benchmarks.figure",
        "benchmarks.report",
    ],
)
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(f"tfaccel.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
