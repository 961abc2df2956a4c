"""The Python of README and docs runs: each page's blocks in order, in a process of its own."""

import json
import re
from pathlib import Path

import pytest
from pages import blocks, pages

PROGRAM = Path(__file__).parent / "python_program.py"


# These start processes of their own for each trial, method or file.
TAKES_LONG = re.compile(r"tfaccel\.(search|compress|export)\(")


def run_pages(run_python, folder, *, long):
    """Runs the Python of the pages that take long, or of the others; returns the folder with what they said."""
    found = {page: [block for block in blocks(page, "python") if block.runs] for page in pages()}
    rows = {
        page: [[one.line, one.file, one.is_in_new_process, one.code] for one in of_page]
        for page, of_page in found.items()
        if of_page
    }
    rows = {page: of_page for page, of_page in rows.items() if bool(TAKES_LONG.search(str(of_page))) == long}
    assert len(rows) >= (3 if long else 9)
    (folder / "blocks.json").write_text(json.dumps({**rows, "made_up.md": [[1, None, False, "assert 1 == 2"]]}))
    (folder / "pages").mkdir()
    child = run_python(PROGRAM.read_text(), folder / "blocks.json", folder / "pages", timeout_seconds=1500)
    outcomes = json.loads(child.stdout.splitlines()[-1])
    assert "AssertionError" in outcomes.pop("made_up.md")
    assert {page: text for page, text in outcomes.items() if text} == {}
    return folder / "pages"


@pytest.mark.slow
def test_python_on_the_pages_runs(run_python, tmp_path):
    folder = run_pages(run_python, tmp_path, long=False)
    said = (folder / "docs_guides_your_model.md.txt").read_text()
    assert "The fit is worse than a baseline: accuracy 81.0 % vs. 86.0 % (gradient boosting)." in said
    assert (folder / "docs_guides_your_model.md" / "runs" / "mine" / "result.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_python_that_takes_long_runs(run_python, tmp_path):
    run_pages(run_python, tmp_path, long=True)


@pytest.mark.parametrize("page", pages())
def test_python_that_needs_something_compiles(page):
    for block in blocks(page, "python"):
        compile("\n" * (block.line - 1) + block.code, page, "exec")
