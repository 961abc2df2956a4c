"""The examples in the docstrings of the parity modules that need no TensorFlow run."""

import doctest
import importlib

import pytest

MODULES = ["tfaccel.parity.axes", "tfaccel.parity.compare", "tfaccel.parity.covering"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
