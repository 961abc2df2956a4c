"""What recipes state to reach: bounds of both kinds, and a name for every recipe that has validation data."""

import pytest

from tfaccel.benchmarks.stated_results import STATED_RESULTS, StatedResult
from tfaccel.planning.load_workload import list_recipes


def test_bounds():
    assert StatedResult(metric="accuracy", at_least=0.97).is_reached(0.97)
    assert not StatedResult(metric="accuracy", at_least=0.97).is_reached(0.96)
    assert StatedResult(metric="loss", at_most=0.5).is_reached(0.5)
    assert not StatedResult(metric="loss", at_most=0.5).is_reached(float("nan"))
    assert str(StatedResult(metric="loss", at_most=0.5)) == "loss <= 0.5"


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1.0, "at_most": 2.0}])
def test_one_bound(bounds):
    with pytest.raises(ValueError, match=r"has one bound, at_least or at_most\. Received: StatedResult"):
        StatedResult(metric="loss", **bounds)


def test_every_recipe_but_the_gan():
    assert set(STATED_RESULTS) == {recipe.name for recipe in list_recipes()} - {"gan"}
