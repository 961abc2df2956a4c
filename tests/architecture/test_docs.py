"""The pages under docs/: their Python runs, their commands and flags exist, and what they link to is there."""

import re

import pytest
from absl import flags
from source_tree import ROOT

from tfaccel.scripts.command import own_flags
from tfaccel.scripts.main import COMMANDS

PAGES = sorted((ROOT / "docs").glob("*.md"))
NAMES = [page.name for page in PAGES]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_pages_are_there():
    assert {"coming_from.md", "faq.md", "gpu.md", "several_machines.md"} <= set(NAMES)


def test_python_on_the_pages_runs(run_python, tmp_path, monkeypatch):
    """All blocks in one process, each with names of its own; the strategy of several workers must come first."""
    found = [(page.name, block) for page in PAGES for block in blocks(page, "python")]
    assert len(found) >= 4
    found.sort(key=lambda pair: "MultiWorkerMirroredStrategy" not in pair[1])
    code = "import os, sys\nos.chdir(sys.argv[1])\n"
    code += "\n".join(
        f"exec(compile({block!r}, {name!r}, 'exec'), {{'__name__': '__main__'}})" for name, block in found
    )
    child = run_python(code, tmp_path)
    assert "The fit is worse than a baseline: accuracy 81.0 % beside 86.0 % (gradient boosting)." in child.stdout
    assert (tmp_path / "runs" / "mine" / "result.json").exists()


def commands(page):
    """The calls of tfaccel on a page, each as a list of words."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [re.findall(r"[^\s&]+", call) for call in re.findall(r"\btfaccel ([a-z-]+[^\n#]*)", text)]


def test_commands_on_the_pages_are_there():
    from importlib import import_module

    calls = [call for page in PAGES for call in commands(page)]
    assert len(calls) > 10
    for command, *arguments in calls:
        assert command in COMMANDS
        import_module(f"tfaccel.scripts.{command.replace('-', '_')}")
        if command in ("train", "plan"):
            known = {flag.name for flag in own_flags()} | {"help"}
            assert {argument.lstrip("-").partition("=")[0] for argument in arguments} <= known
    assert flags.FLAGS is not None


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
    assert all(len(line) <= 130 for line in page.read_text().splitlines() if not line.startswith(("|", "srun")))
