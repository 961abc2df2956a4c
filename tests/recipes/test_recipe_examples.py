"""The examples in the docstrings of the recipe, and of what it is made of, run and give what they say."""

import doctest
import importlib

import pytest

MODULES = (
    "tfaccel.data.images.digits",
    "tfaccel.data.batches",
    "tfaccel.data.images.arrays",
    "tfaccel.data.images.batches",
    "tfaccel.data.images.image_data",
    "tfaccel.data.images.files",
    "tfaccel.data.images.moves",
    "tfaccel.data.images.image_set",
    "tfaccel.reporting.prediction_grid",
    "tfaccel.reporting.comparison_table",
    "tfaccel.training.recipe",
    "tfaccel.training.recipe",
    "tfaccel.training.schedules",
    "tfaccel.training.training_options",
    "tfaccel.training.rematerialize",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples(logical_devices, name):
    result = doctest.testmod(importlib.import_module(name))
    assert (result.failed, result.attempted > 0) == (0, True)
