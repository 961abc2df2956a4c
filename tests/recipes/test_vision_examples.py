"""The examples in the docstrings of the vision recipes, and of what they are made of, run and give what they say."""

import doctest
import importlib

import pytest

MODULES = (
    "tfaccel.data.boxes.batches",
    "tfaccel.data.boxes.box_data",
    "tfaccel.data.example_data",
    "tfaccel.data.images.gan_data",
    "tfaccel.data.series.series_data",
    "tfaccel.data.tables.table_data",
    "tfaccel.data.boxes.digit_scenes",
    "tfaccel.data.images.augmentation",
    "tfaccel.data.images.noise_batches",
    "tfaccel.data.tables.number_rows",
    "tfaccel.data.images.few_digits",
    "tfaccel.models.backbones",
    "tfaccel.models.centre_detector",
    "tfaccel.models.digits_backbone",
    "tfaccel.models.variational",
    "tfaccel.reporting.tables",
    "tfaccel.reporting.coco_scores",
    "tfaccel.reporting.detections",
    "tfaccel.reporting.image_pictures",
    "tfaccel.reporting.samples",
    "tfaccel.training.staged_optimizer",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(logical_devices, name):
    result = doctest.testmod(importlib.import_module(name))
    assert (result.failed, result.attempted > 0) == (0, True)
