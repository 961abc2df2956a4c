"""The folds of a trial, one after another: a finished one is kept, and a trial that has lost begins no further one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.files import write_json
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.search_result import OUTCOME_FILE, TrialRow, best_row, trial_folder


@dataclass(frozen=True)
class FoldRuns:
    """Trains the folds of a trial.

    Args:
        run_dir, objective: of the search.
        trial_id: of the trial.
        num_folds: how many folds there are.
    """

    run_dir: Path
    trial_id: str
    objective: Objective
    num_folds: int

    def run(self, train: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """The outcomes of the folds, `train(fold)` or, if it had finished before the search was killed, what it wrote.

        The last outcome also has the scores of all, and the cause if the trial has lost.
        """
        outcomes: list[dict[str, Any]] = []
        for fold in range(self.num_folds):
            file = trial_folder(self.run_dir, self.trial_id) / f"fold_{fold}.json"
            if not file.exists():
                write_json(file, train(fold))
            outcomes.append(json.loads(file.read_text(encoding="utf-8")))
            scores = [outcome["score"] for outcome in outcomes]
            cause = None
            if fold + 1 < self.num_folds and (best := best_row(self._finished(), self.objective)):
                cause = lost_cause(scores, best, self.objective)
            if cause is not None:
                outcomes[-1] |= {"status": "pruned", "cause": cause}
                break
        outcomes[-1]["fold_scores"] = tuple(scores)
        return outcomes

    def _finished(self) -> list[TrialRow]:
        """The trials all of whose folds have been trained."""
        files = sorted(trial_folder(self.run_dir, self.trial_id).parent.glob(f"trial_*/{OUTCOME_FILE}"))
        rows = [TrialRow.from_json(json.loads(file.read_text(encoding="utf-8"))) for file in files]
        return [row for row in rows if len(row.fold_scores) == self.num_folds]


def lost_cause(scores: Sequence[float], best: TrialRow, objective: Objective) -> str | None:
    """Why a trial has lost after some of its folds; None if it goes on.

    It has lost when its mean is worse than that of the best trial by more than the standard deviation of the best
    trial's folds, both over the same folds and over all folds. So a trial that stopped is never the best one.

    Args:
        scores: of its first folds.
        best: the best trial of which all folds are trained.
        objective: of the search.

    Example:
        >>> best = TrialRow(trial_id="0", hyperparameters={}, status="completed", score=2.0, seconds=1.0,
        ...                 fold_scores=(1.0, 2.0, 3.0))
        >>> loss = Objective((("val_loss", "min"),))
        >>> lost_cause([3.5], best, loss)
        'After 1 of 3 folds its mean was 3.5, worse than that of trial 0 by more than the spread 1 of its folds.'
        >>> lost_cause([2.9], best, loss) is None
        True
    """
    spread, mean = statistics.stdev(best.fold_scores), statistics.fmean(scores)
    margin = -spread if objective.direction == "max" else spread
    bars = [statistics.fmean(best.fold_scores[: len(scores)]), statistics.fmean(best.fold_scores)]
    if not all(objective.better(bar + margin, mean) for bar in bars):
        return None
    return (
        f"After {len(scores)} of {len(best.fold_scores)} folds its mean was {mean:.6g}, worse than that of trial "
        f"{best.trial_id} by more than the spread {spread:.3g} of its folds."
    )
