"""Runs Keras's own tests with `tfaccel.fit`, `evaluate` and `predict` in place of the methods of its models.

A test that fails is run once more with Keras as it is: what fails then as well says nothing about tfaccel (a package
may be missing, or the test may be for another backend).
"""

import functools
import importlib.util
import json
import os
import sys
import types
import warnings
from collections import Counter
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import tfaccel

KERAS = Path(keras.__file__).parent
CALLS: Counter[str] = Counter()


class Outcomes:
    """A plugin of pytest: how each test ended, and why."""

    def __init__(self) -> None:
        self.of_test: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report, "failed" if report.failed else None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report, report.outcome if report.when == "call" or report.outcome != "passed" else None)

    def _note(self, report: pytest.CollectReport | pytest.TestReport, outcome: str | None) -> None:
        if outcome is not None:
            self.of_test[report.nodeid] = outcome
            self.reasons[report.nodeid] = str(report.longrepr)[-1500:]


def run(tests: list[str], expression: str = "") -> Outcomes:
    """Runs tests by pytest, in this process and without any configuration; they are named by their place in Keras."""
    outcomes = Outcomes()
    options = f"-q --rootdir={KERAS.parent} -c {os.devnull} -p no:cacheprovider -p no:warnings --assert=plain "
    options += "--continue-on-collection-errors"
    pytest.main(
        [*options.split(), "--tb=short", "-k", expression, *(str(KERAS.parent / test) for test in tests)],
        plugins=[outcomes],
    )
    return outcomes


def put_tfaccel_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every Keras model train, evaluate and predict by tfaccel."""
    trainer = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
    for name in ("fit", "evaluate", "predict"):

        @functools.wraps(getattr(trainer, name))
        def method(model, *args, name=name, **kwargs):
            CALLS[name] += 1
            return getattr(tfaccel, name)(model, *args, **kwargs)

        monkeypatch.setattr(trainer, name, method)


def main(tests: str) -> None:
    """Writes one JSON line: outcomes with tfaccel, and with Keras alone where it failed; reasons; calls of tfaccel.

    Args:
        tests: JSON, from files (as of `keras/src`) to expressions for pytest's -k.
    """
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("jax") is None:  # Keras's tests import it at the top, for another backend's sake
        sys.modules["jax"] = types.ModuleType("jax")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # which takes longer than the steps
    received: dict[str, str] = {}
    reasons: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        put_tfaccel_in_place(monkeypatch)
        for file, expression in json.loads(tests).items():
            found = run([f"keras/src/{file}"], expression)
            received |= found.of_test
            reasons |= found.reasons
    failed = [name for name, outcome in received.items() if outcome == "failed"]
    alone = run(failed).of_test if failed else {}
    print(json.dumps([received, alone, reasons, CALLS]))


if __name__ == "__main__":
    main(sys.argv[1])
