"""Recipes that are killed and resumed end as whole runs, to the last bit."""

import json

import pytest
from own_data import CASES, PROGRAM, write_own_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resumed")
    write_own_data(folder)
    return folder


@pytest.fixture
def run(run_python, folder):
    """A function that runs cases, each of a kind, in one child process: its status, and what the cases gave."""

    def run(*cases):
        child = run_python(PROGRAM, folder, json.dumps(cases), check=False, timeout_seconds=500)
        return child.returncode, json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else child.stderr

    return run


@pytest.mark.slow
@pytest.mark.parametrize("part", [slice(3), slice(3, 9), slice(9, None)])
def test_resumed_run_equals_whole_run(run, folder, part):
    cases = CASES[part]
    for case in cases:
        assert run({**case, "kind": "killed"})[0] == 7
        assert list((folder / f"{case['name']}-stopped" / "checkpoints").iterdir())
        assert not (folder / f"{case['name']}-stopped" / "model.keras").exists()
    status, ended = run(*[{**case, "kind": kind} for case in cases for kind in ("whole", "resumed")])
    assert status == 0, ended
    for case, whole, resumed in zip(cases, ended[::2], ended[1::2], strict=True):
        assert resumed == whole, case["name"]
