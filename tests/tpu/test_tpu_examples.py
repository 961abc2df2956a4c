"""The examples in the docstrings of tfaccel.extras.tpu run and give what they say."""

import doctest
import importlib

import pytest

NAMES = ["graph_findings", "preflight", "readiness"]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(f"tfaccel.extras.tpu.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_the_examples_of_the_child_process():
    module = importlib.import_module("tfaccel.hardware.doctor_child")
    outcome = doctest.testmod(module)
    assert (outcome.attempted > 0, outcome.failed) == (True, 0)
