"""`fit`, `evaluate` and `predict` behave as plain Keras on one device; all cases run in one child.

Each case runs with the most replicas that it has; with --all, with fewer and without a strategy as well, and so do the
cases of more modules.
"""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
QUICK_MODULES = ("callback_cases", "model_cases")
MODULES = (*QUICK_MODULES, "epoch_cases", "input_cases", "keras_callback_cases", "trace_cases")


def cases_of(module: str) -> list[str]:
    """Names of the functions decorated with `same_as_keras`, read without importing TensorFlow."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]


@pytest.fixture(scope="module")
def differences(run_python, pytestconfig):
    """(module, case) -> placement -> what differs."""
    more = pytestconfig.getoption("--all")
    code = f"import sys; from keras_comparison import main; main(sys.argv[1:], all_placements={more})"
    modules = MODULES if more else QUICK_MODULES
    lines = run_python(code, *modules, cwd=HERE, timeout_seconds=550).stdout.splitlines()
    found: dict[tuple[str, str], dict[str, str | None]] = {}
    for module, name, placement, difference in [json.loads(line) for line in lines if line.startswith('["')]:
        found.setdefault((module, name), {})[placement] = difference
    return found


def parameters(module: str) -> list[Any]:
    marks = () if module in QUICK_MODULES else pytest.mark.slow
    return [pytest.param(module, case, marks=marks) for case in cases_of(module)]


@pytest.mark.parametrize(("module", "case"), [one for module in MODULES for one in parameters(module)])
def test_same_as_keras(module, case, differences):
    row = differences[module, case]
    assert row
    assert {placement: difference for placement, difference in row.items() if difference} == {}
