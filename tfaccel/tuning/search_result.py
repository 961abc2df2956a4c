"""`SearchResult` and `TrialRow`: a search and its finished trials, and the files that hold them."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.files import write_json, write_json_lines
from tfaccel.local_path import local_path
from tfaccel.records import Record
from tfaccel.short_repr import noun
from tfaccel.tuning.objective import Objective

MODEL_FILE = "model.keras"
OUTCOME_FILE = "outcome.json"
STATUSES = ("completed", "pruned", "failed")


@noun
class TrialRow(Record):
    """A finished trial.

    Attributes:
        trial_id: Keras Tuner's id, the zero-padded number of the trial.
        hyperparameters: name -> value.
        status: "completed", "pruned" (stopped early because other trials were better) or "failed".
        score: the objective's best value over the epochs; None for a failed trial.
        seconds: total duration.
        cause: why it failed or was pruned; None for a completed trial.
        metrics: all metrics of the best epoch.
        epochs: number of trained epochs.
        train_seconds: time of its epochs without tracing: their number times the mean of all but the first; None for
            fewer than three epochs.
        fold_scores: the score of each fold that was trained; empty without folds.
    """

    _ignores_others = True

    trial_id: str
    hyperparameters: Mapping[str, Any]
    status: str
    score: float | None
    seconds: float
    cause: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    train_seconds: float | None = None
    fold_scores: tuple[float, ...] = ()

    @property
    def has_score(self) -> bool:
        """Whether it can be compared with others."""
        return self.status != "failed" and self.score is not None

    @property
    def spread(self) -> float | None:
        """The standard deviation of the scores of its folds; None for fewer than two."""
        return statistics.stdev(self.fold_scores) if len(self.fold_scores) > 1 else None

    @property
    def finite_metrics(self) -> dict[str, float]:
        """The metrics except NaN and infinite ones, which are None in files."""
        return {name: float(v) for name, v in self.metrics.items() if v is not None and math.isfinite(v)}


OnRow = Callable[[TrialRow], None]


class TrialRows:
    """The file `trials.jsonl`: one line per finished trial; each change rewrites it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[TrialRow] = read_rows(path)

    def add(self, row: TrialRow) -> bool:
        """Adds a trial; returns False if it is already in the file."""
        if any(row.trial_id == other.trial_id for other in self.rows):
            return False
        self.rows.append(row)
        write_json_lines(self._path, [other.to_json() for other in self.rows])
        return True


def read_rows(path: Path) -> list[TrialRow]:
    """The trials in a file; an empty list if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [TrialRow.from_json(json.loads(line)) for line in lines]


def trial_folder(run_dir: Path, trial_id: str) -> Path:
    """The folder of a trial, shared with Keras Tuner."""
    return run_dir / "tuner" / f"trial_{trial_id}"


def fold_file(run_dir: Path, trial_id: str, fold: int) -> Path:
    """The file with the outcome of one of a trial's folds."""
    return trial_folder(run_dir, trial_id) / f"fold_{fold}.json"


def write_outcome(run_dir: Path, row: TrialRow) -> None:
    """Records that a trial is finished, before reporting it, so that it is never run again."""
    write_json(trial_folder(run_dir, row.trial_id) / OUTCOME_FILE, row.to_json())


def read_outcome(run_dir: Path, trial_id: str) -> TrialRow | None:
    """The outcome of a trial; None until it has finished."""
    path = trial_folder(run_dir, trial_id) / OUTCOME_FILE
    return TrialRow.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def read_hyperparameters(run_dir: Path, trial_id: str) -> dict[str, Any]:
    """Keras Tuner's config of a trial's hyperparameters: their space and values."""
    state = json.loads((trial_folder(run_dir, trial_id) / "trial.json").read_text(encoding="utf-8"))
    return dict(state["hyperparameters"])


def ranked(rows: Iterable[TrialRow], objective: Objective) -> list[TrialRow]:
    """The trials that have a score, best first, and the earliest first of equals."""
    sign = -1.0 if objective.direction == "max" else 1.0
    return sorted((row for row in rows if row.has_score), key=lambda row: (sign * (row.score or 0.0), row.trial_id))


def best_row(rows: Iterable[TrialRow], objective: Objective) -> TrialRow | None:
    """The trial with the best score (the earliest if tied); None if no trial has a score."""
    return next(iter(ranked(rows, objective)), None)


def pareto_front(rows: Sequence[TrialRow], objective: Objective) -> list[TrialRow]:
    """The Pareto front: trials that no other trial matches in all objective metrics and beats in one.

    Example:
        >>> def row(name, **metrics):
        ...     return TrialRow(trial_id=name, hyperparameters={}, status="completed", score=0.0, seconds=1.0,
        ...                     metrics=metrics)
        >>> rows = [row("a", acc=0.9, size=2.0), row("b", acc=0.8, size=1.0), row("c", acc=0.8, size=2.0)]
        >>> [row.trial_id for row in pareto_front(rows, Objective((("acc", "max"), ("size", "min"))))]
        ['a', 'b']
    """

    def costs(row: TrialRow) -> list[float]:
        return [row.finite_metrics[name] * (1 if direction == "min" else -1) for name, direction in objective.parts]

    usable = [row for row in rows if row.has_score and all(name in row.finite_metrics for name in objective.names)]
    points = [(row, costs(row)) for row in usable]
    return [
        row
        for row, own in points
        if not any(other != own and all(o <= m for o, m in zip(other, own, strict=True)) for _, other in points)
    ]


@noun
class SearchResult(Record):
    """The result of a search.

    Attributes:
        run_dir: the directory of the search.
        algorithm: the search algorithm.
        objective: the objective that was optimized.
        rows: all finished trials, sorted by id.
        best: the trial with the best score; None if no trial has a score.
        pareto: the Pareto front over the metrics of the objective.
        wall_seconds: duration of the call to `search`.
        best_run_dir: directory of the retrained best model; None without `retrain`.
        best_final: its metrics.
    """

    run_dir: str
    algorithm: str
    objective: Objective
    rows: tuple[TrialRow, ...]
    best: TrialRow | None
    pareto: tuple[TrialRow, ...]
    wall_seconds: float
    best_run_dir: str | None = None
    best_final: Mapping[str, float] | None = None

    @classmethod
    def of(cls, run_dir: str | os.PathLike[str], rows: Sequence[TrialRow], objective: Objective, **known: Any) -> Self:
        """The result of these trials, with the other fields that are known."""
        pareto = tuple(pareto_front(rows, objective))
        folder = str(local_path(run_dir, SearchError))
        best = best_row(rows, objective)
        return cls(run_dir=folder, objective=objective, rows=tuple(rows), best=best, pareto=pareto, **known)

    @property
    def best_hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters of the best trial; empty if there is none."""
        return {} if self.best is None else dict(self.best.hyperparameters)

    def ranked(self) -> list[TrialRow]:
        """The trials that have a score, best first."""
        return ranked(self.rows, self.objective)

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[Any]:
        """The `keras_tuner.HyperParameters` of the best trials, best first, to build models with."""
        import keras_tuner

        configs = [read_hyperparameters(Path(self.run_dir), row.trial_id) for row in self.ranked()[:num_trials]]
        return [keras_tuner.HyperParameters.from_config(config) for config in configs]

    def get_best_models(self, num_models: int = 1, **options: Any) -> list[Any]:
        """The models of the best trials, best first, each with the weights of its best epoch.

        Args:
            num_models: number of models to return.
            **options: arguments of `keras.saving.load_model`, such as `custom_objects`.

        Raises:
            SearchError: if the search did not keep models.
        """
        import keras

        files = [trial_folder(Path(self.run_dir), row.trial_id) / MODEL_FILE for row in self.ranked()[:num_models]]
        missing = next((file for file in files if not file.exists()), None)
        if missing is not None:
            raise SearchError(f"There is no file {missing}: a search keeps models only with keep_models=True.")
        return [keras.saving.load_model(file, **options) for file in files]

    def results_summary(self, num_trials: int = 10) -> str:
        """The best trials with their hyperparameters and scores, as text to print."""
        lines = [f"Results in {self.run_dir}", f"Objective: {', '.join(map(':'.join, self.objective.parts))}"]
        for row in self.ranked()[:num_trials]:
            values = ", ".join(f"{name}={value}" for name, value in row.hyperparameters.items())
            spread = "" if row.spread is None else f" ± {row.spread:.2g}"
            lines.append(f"Trial {row.trial_id}: score {row.score:.6g}{spread}; {values}")
        return "\n".join(lines)
