"""A search as one of Keras Tuner's guides does it, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import pytest

from tfaccel.errors import SearchError
from tfaccel.tuning.search import search

HERE = Path(__file__).parent
FLOAT32 = {"dtype_policy": "float32"}


@dataclass(frozen=True)
class Case:
    """A case of a guide: what is searched, and what must come out."""

    workload: Any
    space: Any
    options: dict[str, Any] = field(default_factory=dict)
    holds: Callable[[Any], bool] = lambda result: True
    names: str = ""  # hyperparameters of the first trial
    refused: str = ""
    trials_fail: bool = False


def trials(result):
    return [dict(row.hyperparameters) for row in result.rows]


def objective(name, direction):
    return keras_tuner.Objective(name, direction)


def search_as_guided(case, tmp_path):
    """Searches as a guide does, and checks what must come out."""
    options = {"plan_fields": FLOAT32, **case.options}
    if "optimizer" in options and callable(options["optimizer"]):
        options["optimizer"] = options["optimizer"]()  # made here, where TensorFlow has started
    space = case.space
    if options.get("callbacks") == "tensorboard":
        options["callbacks"] = [keras.callbacks.TensorBoard(str(tmp_path / "board"))]
    if type(space) is type(lambda: 0) and space.__name__ == "<lambda>":
        space = space(tmp_path)
    run_dir = tmp_path / "run"
    if case.refused:
        with pytest.raises(SearchError, match=case.refused):
            search(case.workload, space, run_dir=run_dir, **options)
        assert run_dir.exists() == case.trials_fail  # and else nothing was left
        return
    result = search(case.workload, space, run_dir=run_dir, **options)
    causes = [row.cause for row in result.rows if row.cause is not None]
    assert case.trials_fail or causes == []
    assert result.best is not None
    for name in case.names.split():
        assert name in result.rows[0].hyperparameters
    assert case.holds(result)
    assert not (HERE / "untitled_project").exists()
    if "callbacks" in options and (tmp_path / "board").exists():
        for row in result.rows:
            files = [path.name for path in (tmp_path / "board" / row.trial_id / "execution0").rglob("events*")]
            assert len(files) >= 2  # training, validation, and the hyperparameters
