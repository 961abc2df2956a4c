"""constraints.txt holds a version of every package that setup.cfg names, and of none besides."""

import importlib.metadata
import re

import pytest
from packaging.requirements import Requirement
from source_tree import ROOT, setup_cfg

NOT_IN_DEV = {"jax", "libtpu", "nvidia-ml-py"}  # of extras that need other machines, or a process of their own


def requirements():
    parser = setup_cfg()
    extras = parser["options.extras_require"].values()
    lines = [line for text in (parser["options"]["install_requires"], *extras) for line in text.splitlines() if line]
    return [Requirement(line) for line in lines]


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "..."


def test_every_package_has_a_version():
    wanted = {one.name for one in requirements()} - NOT_IN_DEV
    missing = [f"{name}=={installed(name)}" for name in sorted(wanted - {one.name for one in constraints()})]
    assert missing == [], "add these lines to constraints.txt"
    assert sorted({one.name for one in constraints()} - wanted) == [], "setup.cfg does not name these"


@pytest.mark.parametrize("one", constraints(), ids=lambda one: one.name)
def test_version_is_one_that_setup_cfg_allows(one):
    assert re.fullmatch(r"==\d[\w.]*", str(one.specifier)), "name one version"
    version = str(one.specifier).removeprefix("==")
    assert [str(other) for other in requirements() if other.name == one.name and version not in other.specifier] == []


def test_constraints_stand_in_order():
    names = [one.name for one in constraints()]
    assert names == sorted(set(names))
