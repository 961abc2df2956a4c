"""`SearchResult`: the result of a search, as written to `search.json`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.local_path import local_path
from tfaccel.records import Record
from tfaccel.short_repr import short_repr
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.trial_row import (
    MODEL_FILE,
    TrialRow,
    best_row,
    pareto_front,
    read_hyperparameters,
    trial_folder,
)


@short_repr
@dataclass(frozen=True, kw_only=True)
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
    def of(
        cls,
        run_dir: str | os.PathLike[str],
        options: SearchOptions,
        objective: Objective,
        rows: Sequence[TrialRow],
        *,
        wall_seconds: float,
    ) -> Self:
        """The result of these trials."""
        return cls(
            run_dir=str(local_path(run_dir, SearchError)),
            algorithm=options.algorithm,
            objective=objective,
            rows=tuple(rows),
            best=best_row(rows, objective),
            pareto=tuple(pareto_front(rows, objective)),
            wall_seconds=round(wall_seconds, 3),
        )

    def with_best_model(self, run_dir: str, final: Mapping[str, float], wall_seconds: float) -> Self:
        """Returns a copy that includes the retrained best model."""
        return replace(self, best_run_dir=run_dir, best_final=dict(final), wall_seconds=round(wall_seconds, 3))

    @property
    def best_hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters of the best trial; empty if there is none."""
        return {} if self.best is None else dict(self.best.hyperparameters)

    def ranked(self) -> list[TrialRow]:
        """The trials that have a score, best first."""
        sign = -1.0 if self.objective.direction == "max" else 1.0
        return sorted((row for row in self.rows if row.has_score), key=lambda row: sign * (row.score or 0.0))

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
            lines.append(f"Trial {row.trial_id}: score {row.score:.6g}; {values}")
        return "\n".join(lines)
