"""The examples in the docstrings of tfaccel.measuring's nouns run and give what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["measurement", "figure", "report", "interleaved"])
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(f"tfaccel.measuring.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
