"""The examples in the docstrings of the HTML report run and give what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["figures", "records", "page", "progress_sections", "texts", "write_report"]
)  # fmt: skip
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(f"tfaccel.html_report.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
