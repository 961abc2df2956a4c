"""The examples in the docstrings of tfaccel.launching run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import tfaccel.launching

# Its example forks this process, which must not have started TensorFlow; test_notebook_launch.py does the same.
FORKS = "tfaccel.launching.notebook_launch"
MODULES = [module.name for module in pkgutil.iter_modules(tfaccel.launching.__path__, "tfaccel.launching.")]


@pytest.mark.parametrize("name", [name for name in MODULES if name != FORKS])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
