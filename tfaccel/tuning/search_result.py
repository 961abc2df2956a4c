"""The noun `SearchResult`: what a search found, as it stands in `search.json`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.trial_row import TrialRow, best_row, pareto_front


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        run_dir: where everything stands.
        algorithm: by which the trials were chosen.
        objective: what was bettered.
        rows: all finished trials, by their ids.
        best: the trial with the best score; None where none has one.
        pareto: the trials that no other one beats in all metrics of the objective.
        wall_seconds: the whole call of `search`.
        best_run_dir: where the best model stands that was trained again; None where it was not asked for.
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
    def of(cls, run_dir: str | os.PathLike[str], options: SearchOptions, objective: Objective,
           rows: Sequence[TrialRow], *, wall_seconds: float) -> Self:  # fmt: skip
        """The result of these trials."""
        return cls(
            run_dir=str(Path(run_dir)), algorithm=options.algorithm, objective=objective, rows=tuple(rows),
            best=best_row(rows, objective), pareto=tuple(pareto_front(rows, objective)),
            wall_seconds=round(wall_seconds, 3),
        )  # fmt: skip

    def with_best_model(self, run_dir: str, final: Mapping[str, float], wall_seconds: float) -> Self:
        """The same, with the best model trained again."""
        return replace(self, best_run_dir=run_dir, best_final=dict(final), wall_seconds=round(wall_seconds, 3))

    @property
    def best_hyperparameters(self) -> dict[str, Any]:
        """Those of the best trial; empty where there is none."""
        return {} if self.best is None else dict(self.best.hyperparameters)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**asdict(self), "objective": self.objective.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result that `to_json` gave."""
        best = None if data["best"] is None else TrialRow.from_json(data["best"])
        rows = {name: tuple(map(TrialRow.from_json, data[name])) for name in ("rows", "pareto")}
        return cls(**{**data, **rows, "best": best, "objective": Objective.from_json(data["objective"])})
