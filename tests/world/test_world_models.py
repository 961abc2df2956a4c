"""Models of the kinds that Keras's examples have: with tfaccel, N replicas give what plain Keras gives on one device.

Without a strategy all of a training is equal to the last bit: history, weights, optimizers, evaluation, predictions.
With two replicas, in one process or in two, it is within 1e-5, or refused before the first step with the words that the
table (`world.MODELS`) has. A few models always run, without workers; with --all, all of them and under every placement.
"""

import ast
import json
from pathlib import Path

import pytest
from outcomes import PLACEMENTS, counts, run_models

HERE = Path(__file__).parent
FILES = sorted(path.stem for path in HERE.glob("models_*.py"))


def names_in(file, *, quick=False):
    """Names of the models of a file, read without importing TensorFlow; only the quick ones, on demand."""
    names = []
    for node in ast.parse((HERE / f"{file}.py").read_text()).body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and call.func.id == "world_model":
                is_quick = any(keyword.arg == "quick" for keyword in call.keywords)
                names += [node.name] if is_quick or not quick else []
    return names


QUICK = [name for file in FILES for name in names_in(file, quick=True)]


@pytest.fixture(scope="module")
def warning_options(pytestconfig):
    return [f"-W{warning}" for warning in pytestconfig.getini("filterwarnings")]


@pytest.fixture(scope="module")
def quick_outcomes(run_python, tmp_path_factory):
    code = "import sys; from comparison import main; main(sys.argv[1:])"
    child = run_python(code, str(tmp_path_factory.mktemp("references")), *QUICK, cwd=HERE)
    rows = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]
    return {(name, placement): (outcome, remark) for name, placement, outcome, remark, _ in rows}


@pytest.mark.parametrize("placement", PLACEMENTS[:2])
@pytest.mark.parametrize("name", QUICK)
def test_quick_model(name, placement, quick_outcomes):
    outcome, remark = quick_outcomes[name, placement]
    assert outcome != "wrong", remark


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file", FILES)
def test_every_model(file, warning_options):
    names = names_in(file)
    found = run_models(names, workers=True, interpreter_options=warning_options)
    print(counts(found))
    assert {key: remark for key, (outcome, remark) in found.items() if outcome == "wrong"} == {}
    assert found.keys() == {(name, placement) for name in names for placement in PLACEMENTS}


def test_the_table_is_large():
    assert len({name for file in FILES for name in names_in(file)}) >= 40
