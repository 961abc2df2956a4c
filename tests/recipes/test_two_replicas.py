"""Every recipe obeys the one rule: N replicas give the losses that one device gives on the same global batches.

What is drawn at random in the data (augmentation, noise, words made unknown) is drawn for the global batch, whatever
the replicas. Dropout alone is drawn by each replica for its own rows, so that there is none here; that its masks are
those of one device that draws as many is proved by `tfaccel.parity`.

Replicas add up gradients in another order than one device, which rounds in another way. The detector, with its many
batch normalizations one behind the other, enlarges such a difference some tenfold with every step. One device does so
too: on the digit scenes, with the rows of each batch in reverse order, its losses are off by 7e-7, 8e-5, 1e-4 and
1.5e-2 in steps 2 to 5, those of two replicas by 6e-7, 8e-6, 5e-4 and 7e-4. So the losses of its first two steps are
compared; the others make some twelve, and are evaluated.
"""

import json

import pytest
from own_data import CASES, PROGRAM, write_own_data

from tfaccel.planning.load_workload import list_recipes

# A table; the others need --all.
QUICK = ("classes",)


def alike(case):
    """The case without dropout, or with few steps."""
    if case["name"] == "detection":
        return {**case, "name": "detection alike", "batch": 24, "epochs": 1}
    none = {} if case["name"] == "images" else {"dropout": 0.0}
    return {**case, "name": f"{case['name']} alike", "options": {**case["options"], **none}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    write_own_data(folder)
    return folder


@pytest.fixture
def runs(run_python, folder, tmp_path):
    """A function that runs cases in one child process, each in several ways: histories and final figures."""

    def runs(names, kinds):
        place = {"run_dirs": str(tmp_path)}
        cases = [{**alike(case), "kind": kind, **place} for case in CASES if case["name"] in names for kind in kinds]
        child = run_python(PROGRAM, folder, json.dumps(cases), timeout_seconds=900)
        rows = [(history, final) for _, history, final in json.loads(child.stdout.splitlines()[-1])]
        return {name: rows[i * len(kinds) : (i + 1) * len(kinds)] for i, name in enumerate(names)}

    return runs


def assert_alike(rows, *, evaluated=True):
    (history, final), *others = rows
    for other, other_final in others:
        assert other.keys() == history.keys()
        for name in [name for name in history if name.endswith("loss") and (evaluated or name == "loss")]:
            assert other[name] == pytest.approx(history[name], rel=1e-5), name
        assert not evaluated or other_final["loss"] == pytest.approx(final["loss"], rel=1e-5)


def test_all_recipes_are_here():
    assert {case["recipe"] for case in CASES} == {recipe.name for recipe in list_recipes()}


@pytest.mark.slow
def test_two_replicas_give_the_losses_of_one_device(runs):
    for rows in runs([case["name"] for case in CASES if case["name"] in QUICK], ["whole", "2 replicas"]).values():
        assert_alike(rows)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_two_and_four_replicas_give_the_losses_of_one_device(runs, case):
    (rows,) = runs([case["name"]], ["whole", "2 replicas", "4 replicas"]).values()
    assert_alike(rows, evaluated=case["name"] != "detection")
