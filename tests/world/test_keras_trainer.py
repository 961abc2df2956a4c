"""Keras's own tests pass with `tfaccel.fit`, `evaluate` and `predict` in place of the methods of its models.

The tests are those of Keras's wheel. What fails with Keras as it is too, in this environment, does not count; that is
measured each time.
"""

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERAS = Path(importlib.util.find_spec("keras").origin).parent
# Of the tests of the trainer, those about epochs, executions and callbacks in a graph without XLA; others with --all.
QUICK = {
    "trainers/trainer_test.py": "(per_execution_steps_per_epoch or stop or callback or validation or custom) and "
    "(not jit or non_jit) and not eager and not unrolled and not sparse and not unknown",
    "callbacks/early_stopping_test.py": "",
}
GROUPS = ("callbacks", "distillation", "layers", "models", "optimizers", "trainers", "wrappers")

# Tests of Keras that tfaccel fails on purpose, with the reason, which the docstring of `fit` gives too.
DISTRIBUTED = "test_distributed_datasets_from_function_model_integration"
DIFFERENCES = {
    f"keras/src/trainers/data_adapters/tf_dataset_adapter_test.py::TestTFDatasetAdapter::{DISTRIBUTED}": "A "
    "`tf.distribute.DistributedDataset` is refused: pass the `tf.data.Dataset` that it was made from.",
    "keras/src/trainers/trainer_test.py::TestTrainer::test_retracing": "A custom `train_step` is traced up to four "
    "times, twice as often as by Keras.",
}


def names_of(group: str) -> list[str]:
    """The files of a package of Keras with tests that train, evaluate or predict."""
    calls = (".fit(", ".evaluate(", ".predict(")
    files = sorted((KERAS / "src" / group).rglob("*_test.py"))
    return [str(file.relative_to(KERAS / "src")) for file in files if any(call in file.read_text() for call in calls)]


def outcomes(run_python, tests: dict[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str], Counter[str]]:
    """With tfaccel, and with Keras alone where it failed; reasons; how often tfaccel was called."""
    code = "import sys; from keras_adapter import main; main(*sys.argv[1:])"
    child = run_python(code, json.dumps(tests), cwd=HERE, timeout_seconds=580)
    received, alone, reasons, calls = json.loads(child.stdout.splitlines()[-1])
    return received, alone, reasons, Counter(calls)


def failed_with_tfaccel_alone(received: dict[str, str], alone: dict[str, str], reasons: dict[str, str]) -> dict:
    """The tests that fail and are not named above, with the reason."""
    failed = [test for test, outcome in received.items() if outcome == "failed" and alone.get(test) != "failed"]
    return {test: reasons[test] for test in failed if test not in DIFFERENCES}


def test_trainer_and_callbacks_of_keras(run_python):
    received, alone, reasons, calls = outcomes(run_python, QUICK)
    assert failed_with_tfaccel_alone(received, alone, reasons) == {}
    assert Counter(received.values())["passed"] >= 20
    assert calls["fit"] > 20
    assert min(calls["evaluate"], calls["predict"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_all_that_train(group, run_python):
    tests = names_of(group)
    received, alone, reasons, calls = outcomes(run_python, dict.fromkeys(tests, ""))
    assert failed_with_tfaccel_alone(received, alone, reasons) == {}
    assert "passed" in received.values()
    assert calls.total()


def test_differences_are_stated():
    import tfaccel

    said = " ".join((tfaccel.fit.__doc__ or "").split())
    assert all(reason in said for reason in DIFFERENCES.values())
