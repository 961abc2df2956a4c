"""Numbers that recipes take as options are refused with one clear line where they cannot be."""

import re

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None])
def test_counts_that_are_none_are_refused(value):
    message = f"`width` must be a whole number of at least 1. Received: width={value!r}."
    with pytest.raises(WorkloadError, match=re.escape(message)):
        check_counts(epochs=1, width=value)


@pytest.mark.parametrize("value", [1, -0.1, "0", None, float("nan")])
def test_parts_that_are_none_are_refused(value):
    message = f"`dropout` must be a number from 0 to below 1. Received: dropout={value!r}."
    with pytest.raises(WorkloadError, match=re.escape(message)):
        check_fractions(label_smoothing=0, dropout=value)


def test_choices_and_numbers_that_can_be_are_taken():
    check_counts(epochs=2**31 - 1, width=10**6)
    check_fractions(dropout=0, label_smoothing=0.999)
    check_choice("model", "lstm", ("lstm", "transformer"))
