"""The examples in the docstrings of tfaccel.planning run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import tfaccel.planning

MODULES = [module.name for module in pkgutil.iter_modules(tfaccel.planning.__path__, "tfaccel.planning.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 8
