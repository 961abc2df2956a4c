"""Each package has a budget of lines, which only goes down; CHANGELOG.md says why one goes up."""

import pytest
from source_tree import sources

# Package of tfaccel, without those listed apart -> lines of its files.
BUDGET = {
    "": 1_575,
    "compressing": 6_600,
    "costs": 850,
    "data": 12_050,
    "exporting": 3_700,
    "extras": 50,
    "extras.cluster": 1_850,
    "extras.data_service": 600,
    "extras.estimates": 1_700,
    "extras.inspection": 1_350,
    "extras.serving": 3_420,
    "extras.tpu": 1_600,
    "hardware": 2_250,
    "html_report": 2_450,
    "keras_file": 350,
    "launching": 1_100,
    "layers": 50,
    "measuring": 4_350,
    "models": 1_750,
    "ops": 50,
    "planning": 5_375,
    "processes": 1_320,
    "reporting": 2_800,
    "training": 4_400,
    "training.kernels": 1_385,
    "training.private": 2_610,
    "training.proof": 2_690,
    "training.run": 7_520,
    "training.stages": 850,
    "training.steps": 7_250,
    "training.workers": 850,
    "tuning": 4_480,
}
MAX_FILES = 395

UNUSED_LINES, UNUSED_SHARE = 100, 0.05  # what a budget may be above its package, before it has to be lowered


def get_package(path):
    """The most specific package of the budget that a file is in: "training.run" for tfaccel/training/run/resume.py."""
    folders = path.removeprefix("tfaccel/").split("/")[:-1]
    names = [".".join(folders[:depth]) for depth in range(len(folders), -1, -1)]
    return next(name for name in names if name in BUDGET)


def lines_by_package():
    lines = dict.fromkeys(BUDGET, 0)
    for source in sources():
        if source.in_library:
            lines[get_package(source.path)] += len(source.text.splitlines())
    return lines


@pytest.mark.parametrize("package", BUDGET)
def test_a_package_keeps_its_budget(package):
    assert lines_by_package()[package] <= BUDGET[package], (
        "Take something away, or say in CHANGELOG.md why it must grow."
    )


@pytest.mark.parametrize("package", BUDGET)
def test_a_budget_follows_its_package_down(package):
    unused = BUDGET[package] - lines_by_package()[package]
    assert unused <= max(UNUSED_LINES, UNUSED_SHARE * BUDGET[package]), "Lower the budget."


def test_there_are_no_more_files():
    assert sum(source.in_library for source in sources()) <= MAX_FILES
