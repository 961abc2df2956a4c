"""The examples in the docstrings of what the text recipes are made of, and of the recipes, give what they say."""

import doctest
import importlib

import pytest

MODULES = (
    "tfaccel.data.epochs",
    "tfaccel.data.texts.text_data",
    "tfaccel.data.texts.pairs",
    "tfaccel.data.texts.documentation",
    "tfaccel.data.texts.files",
    "tfaccel.data.class_labels",
    "tfaccel.data.texts.vocabulary",
    "tfaccel.models.attention",
    "tfaccel.models.beam_search",
    "tfaccel.models.language_model",
    "tfaccel.models.sampling",
    "tfaccel.models.sequence_to_sequence",
    "tfaccel.models.token_loss",
    "tfaccel.models.transformer",
    "tfaccel.models.transformer_stack",
    "tfaccel.planning.option_checks",
    "tfaccel.reporting.result_table",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_text_modules(logical_devices, name):
    result = doctest.testmod(importlib.import_module(name))
    assert (result.failed, result.attempted > 0) == (0, True)
