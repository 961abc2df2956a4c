"""The image has what the wheel is made from, and runs as the user whom Kubernetes' workers are. No image is built."""

import re

import pytest
from source_tree import ROOT, setup_cfg

from tfaccel.extras.cluster.kubernetes_manifest import KubernetesOptions


@pytest.fixture(scope="module")
def instructions():
    """Instruction and arguments of each line, in order."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def setup():
    return setup_cfg()


def copied(instructions):
    """What is copied, with its place in the image."""
    return {
        source: target
        for name, words in instructions
        if name == "COPY"
        for *sources, target in [words.split()]
        for source in sources
    }


def test_all_that_the_wheel_needs_is_copied(instructions, setup):
    folders = re.findall(r"= (\w+)$", setup["options"]["package_dir"], re.MULTILINE)
    assert len(folders) == 5
    files = {"setup.cfg", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    wanted = {**dict.fromkeys(files, "./"), **{folder: folder for folder in folders}}
    assert copied(instructions) == wanted
    assert [name for name in wanted if not (ROOT / name).exists()] == []


def test_nothing_copied_is_ignored(instructions):
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".*", "tests"} <= set(ignored)
    assert not set(ignored) & set(copied(instructions))


def test_python_and_extras_are_ones_of_setup_cfg(instructions, setup):
    arguments = dict(words.split("=") for name, words in instructions if name == "ARG")
    assert f"Python :: {arguments['PYTHON']}\n" in setup["metadata"]["classifiers"]
    assert arguments["EXTRAS"] == '""'
    named = re.findall(r"EXTRAS(?:=| may name several extras of setup.cfg, such as )(\w[\w,]*)", dockerfile())
    assert named == ["gpu", "gpu,tune"]
    assert {extra for names in named for extra in names.split(",")} <= set(setup["options.extras_require"])


def test_the_user_is_that_of_the_workers(instructions):
    user = KubernetesOptions(image="digits:1").user_id
    assert ("USER", str(user)) in instructions
    assert f"--uid {user} " in dockerfile()


def test_the_guide_names_it():
    guide = (ROOT / "docs/guides/kubernetes.md").read_text(encoding="utf-8")
    assert "Dockerfile" in guide
    assert re.findall(r"docker build --tag digits:1 --build-arg EXTRAS=gpu \.", guide)


def dockerfile():
    return (ROOT / "Dockerfile").read_text(encoding="utf-8")
