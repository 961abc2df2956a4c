"""The examples in the docstrings of tfaccel.extras.serving run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import tfaccel.extras.serving

MODULES = [module.name for module in pkgutil.iter_modules(tfaccel.extras.serving.__path__, "tfaccel.extras.serving.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, logical_devices):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 3
