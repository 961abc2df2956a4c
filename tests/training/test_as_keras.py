"""`fit`, `evaluate` and `predict` behave like plain Keras on one device; all cases run in one child process.

By default only a few cases run, each with its largest number of replicas; with --all, all cases run, also with fewer
replicas and without a strategy.
"""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MODULES = ("callback_cases", "model_cases", "epoch_cases", "input_cases", "keras_callback_cases", "trace_cases")
# Module -> cases that run without --all: hooks, early stopping and what callbacks ask of the model.
QUICK = {
    "callback_cases": ("batch_hooks", "stop_in_batch_hook", "questions_of_callbacks"),
}
pytestmark = pytest.mark.timeout(3600)  # the fixture runs all cases


def cases_of(module: str) -> list[str]:
    """Names of the functions decorated with `same_as_keras`, found without importing TensorFlow."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]


@pytest.fixture(scope="module")
def differences(run_python, pytestconfig):
    """(module, case) -> placement -> difference, or None."""
    more = pytestconfig.getoption("--all")
    modules, names = (MODULES, ()) if more else (tuple(QUICK), sum(QUICK.values(), ()))
    code = f"from keras_comparison import main; main({modules}, {names}, all_placements={more})"
    lines = run_python(code, cwd=HERE, timeout_seconds=3500).stdout.splitlines()
    found: dict[tuple[str, str], dict[str, str | None]] = {}
    for module, name, placement, difference in [json.loads(line) for line in lines if line.startswith('["')]:
        found.setdefault((module, name), {})[placement] = difference
    return found


def parameters(module: str) -> list[Any]:
    quick = QUICK.get(module, ())
    return [pytest.param(module, case, marks=() if case in quick else pytest.mark.slow) for case in cases_of(module)]


@pytest.mark.parametrize(("module", "case"), [one for module in MODULES for one in parameters(module)])
def test_same_as_keras(module, case, differences):
    row = differences[module, case]
    assert row
    assert {placement: difference for placement, difference in row.items() if difference} == {}
