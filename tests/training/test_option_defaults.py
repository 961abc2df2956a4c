"""A recipe's own defaults hold where the user's options leave room for them."""

import re

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.training.option_defaults import options_with_defaults


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (2e-3, 1.0, None)),
        ({"optimizer": "AdamW"}, (2e-3, 1.0, None)),
        ({"optimizer": "sgd"}, (None, 1.0, None)),
        ({"learning_rate": 0.5, "global_clipnorm": None}, (0.5, None, None)),
        ({"clipnorm": 3.0}, (2e-3, None, 3.0)),
    ],
)
def test_defaults(options, expected):
    found = options_with_defaults(options, learning_rate=2e-3, global_clipnorm=1.0)
    assert (found.learning_rate, found.global_clipnorm, found.clipnorm) == expected


def test_unknown_option_is_refused():
    with pytest.raises(WorkloadError, match=re.escape("There is no option 'optimiser'. Did you mean 'optimizer'?")):
        options_with_defaults({"optimiser": "sgd"}, learning_rate=1.0)
