"""The width of the models of recipes that have one: checked, kept, and obeyed."""

import math

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.recipes import (
    autoencoder,
    gan,
    object_detection,
    recommendation,
    sequence_forecasting,
    tabular_classification,
    tabular_regression,
)

SIZED = [autoencoder, gan, object_detection, recommendation, sequence_forecasting]
SIZED += [tabular_classification, tabular_regression]


@pytest.mark.parametrize("recipe", SIZED)
def test_a_width_is_checked_kept_and_obeyed(logical_devices, recipe):
    with pytest.raises(WorkloadError, match=r"`width` must be a whole number of at least 1. Received: width=0"):
        recipe.workload(width=0)
    usual, narrow = recipe.workload(), recipe.workload(width=8)
    assert narrow.options == {**usual.options, "width": 8}
    sizes = [sum(math.prod(w.shape) for w in work.build_model().trainable_weights) for work in (narrow, usual)]
    assert 0 < sizes[0] < sizes[1]
