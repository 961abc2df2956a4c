"""The examples in the docstrings of every module run, and give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tfaccel", "recipes", "scripts", "benchmarks", "parity")

# A program that is copied beside LiteRT files, and one that forks a process without TensorFlow: their own tests run
# the examples.
ELSEWHERE = ("tfaccel.exporting.litert_program", "tfaccel.launching.notebook_launch")
SLOW = tuple(
    f"tfaccel.{name}"
    for name in (
        *("exporting.", "compressing.tfmot.methods", "compressing.compress", "tuning.search", "training.check"),
        *("measuring.find_fastest", "measuring.find_batch_size", "measuring.estimate_memory", "measuring.roofline"),
        *("extras.estimates.estimate_scaling",),
    )
)


def modules():
    """The modules with examples; those that train or convert for long are marked slow."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "tfaccel" else ("tfaccel", *parts)).removesuffix(".__init__")
        if ">>> " in path.read_text(encoding="utf-8") and name not in ELSEWHERE:
            yield pytest.param(name, marks=pytest.mark.slow if name.startswith(SLOW[:1]) or name in SLOW else ())


@pytest.mark.parametrize("name", list(modules()))
def test_examples(name, logical_devices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
    assert found.attempted > 0
