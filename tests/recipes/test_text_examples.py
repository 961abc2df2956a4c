"""The examples in the docstrings of what the text recipes are made of, and of the recipes, give what they say."""

import doctest
import importlib

import pytest

MODULES = (
    "tfaccel.data.epoch_positions",
    "tfaccel.data.texts.batches",
    "tfaccel.data.texts.dates",
    "tfaccel.data.texts.documentation",
    "tfaccel.data.texts.files",
    "tfaccel.data.texts.labelled_texts",
    "tfaccel.data.texts.labels",
    "tfaccel.data.texts.pairs",
    "tfaccel.data.texts.sentences",
    "tfaccel.data.texts.vocabulary",
    "tfaccel.models.transformer",
    "tfaccel.models.beam_search",
    "tfaccel.models.sampling",
    "tfaccel.models.sequence_to_sequence",
    "tfaccel.models.losses",
    "tfaccel.planning.option_checks",
    "tfaccel.reporting.tables",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_text_modules(logical_devices, name):
    result = doctest.testmod(importlib.import_module(name))
    assert (result.failed, result.attempted > 0) == (0, True)
