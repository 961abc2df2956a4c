"""Recipes recommend bfloat16 on CPUs where a step is large enough for it, as counted in the step that is traced."""

from importlib import import_module

import pytest

import tfaccel
from tfaccel.planning.load_workload import list_recipes
from tfaccel.recipes import autoencoder, text_classification

PAYS_FROM_OPERATIONS = 1e8


def agree(work):
    return work.bfloat16_on_cpu == (tfaccel.estimates.get_cost(work).step.matrix_flops >= PAYS_FROM_OPERATIONS)


@pytest.mark.slow
def test_the_recommendation_follows_the_model(logical_devices, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("x,y,z\n" + "".join(f"{i % 7},{i % 5 / 2},{i % 3}\n" for i in range(600)))
    small, large = text_classification.workload(), text_classification.workload(model="lstm")
    of_rows = autoencoder.workload(data_dir=str(rows))
    assert [work.bfloat16_on_cpu for work in (small, large, of_rows)] == [False, True, False]
    assert all(map(agree, (small, large, of_rows)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in list_recipes()])
def test_every_recipe_recommends_what_its_step_needs(logical_devices, name):
    assert agree(import_module(f"tfaccel.recipes.{name}").workload())
