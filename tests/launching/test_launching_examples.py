"""The examples in the docstrings of tfaccel.launching run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import tfaccel.launching

MODULES = [module.name for module in pkgutil.iter_modules(tfaccel.launching.__path__, "tfaccel.launching.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
