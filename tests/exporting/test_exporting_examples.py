"""The examples in the docstrings of tfaccel.exporting run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import tfaccel.exporting

PROGRAM = "tfaccel.exporting.litert_program"  # is copied beside LiteRT files, and tested there
MODULES = [module.name for module in pkgutil.iter_modules(tfaccel.exporting.__path__, "tfaccel.exporting.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if name != PROGRAM])
def test_examples(name, logical_devices):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 3
