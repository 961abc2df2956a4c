"""Keras Tuner's oracles, whose state survives a kill at any moment, and which keep `trials.jsonl`.

Made for Keras Tuner 1.4.8, whose own files are written in place, whose grid search forgets where it was, and
whose trials are lost if it ends between two writes. `_save_trial`, `_get_oracle_fname`, `_retry_queue`, `_ordered_ids`,
`_populate_next` and `_compare` are its private parts used here.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner import oracles

from tfaccel.training.files import whole_file
from tfaccel.tuning.hyperband import HyperbandOracle
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.trial_row import TrialRow, TrialRows, read_outcome, trial_folder

OnRow = Callable[[TrialRow], None]


class KeptOracle(keras_tuner.Oracle):
    """What all oracles here have in addition; see `make_oracle`."""

    run_dir: Path
    rows: TrialRows
    on_row: OnRow
    max_trials: int | None
    _retry_queue: list[str]

    def save(self) -> None:
        """Writes the state, whole or not at all."""
        with whole_file(Path(self._get_oracle_fname())) as temporary:
            temporary.write_text(json.dumps(self.get_state()))

    def _save_trial(self, trial: Any) -> None:
        folder = trial_folder(self.run_dir, trial.trial_id)
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / "trial.json") as temporary:
            temporary.write_text(json.dumps(trial.get_state()))

    @keras_tuner.synchronized
    def end_trial(self, trial: Any) -> None:
        """Adds the trial's line to `trials.jsonl`, then does what Keras Tuner does."""
        row = read_outcome(self.run_dir, trial.trial_id)
        if row is not None and self.rows.add(row):
            self.on_row(row)
        super().end_trial(trial)

    @keras_tuner.synchronized
    def finish(self, trial_id: str) -> None:
        """Ends a trial as its outcome says, where its worker cannot do so any more."""
        row = read_outcome(self.run_dir, trial_id)
        if row is None or trial_id in self.end_order or trial_id not in self.trials:
            return
        trial = self.trials[trial_id]
        trial.status, trial.message = ("COMPLETED", None) if row.has_score else ("FAILED", row.cause)
        if row.has_score and not trial.metrics.exists(self.objective.name):
            self.update_trial(trial_id, {**row.finite_metrics, self.objective.name: row.score})
        self.end_trial(trial)

    @keras_tuner.synchronized
    def stop(self) -> None:
        """Lets no further trial begin."""
        self._retry_queue.clear()
        self.max_trials = -1

    def go_on(self) -> None:
        """Takes up the state that is on disk: finished trials stay so, those that were interrupted begin anew."""
        if not Path(self._get_oracle_fname()).exists():
            return
        max_trials = self.max_trials
        self.reload()
        self.max_trials = max_trials
        for trial_id in sorted(set(self.trials) - set(self.start_order)):  # no worker has heard of it
            del self.trials[trial_id]
            shutil.rmtree(trial_folder(self.run_dir, trial_id))
        waiting = [trial_id for trial_id in self.start_order if trial_id not in self.end_order]
        self._retry_queue = []
        if isinstance(self, oracles.GridSearchOracle):
            self._find_place(self)
        for trial_id in waiting:
            self.finish(trial_id)
        self._retry_queue = [trial_id for trial_id in reversed(waiting) if trial_id not in self.end_order]
        for trial_id in self.end_order:
            row = read_outcome(self.run_dir, trial_id)
            if row is not None:
                self.rows.add(row)

    @staticmethod
    def _find_place(grid: Any) -> None:
        """Tells a grid search which combinations there are already, in their order, and to look beside each."""

        def compare(one: str, other: str) -> int:
            values = [grid.trials[name].hyperparameters.values for name in (one, other)]
            return int(grid._compare(*values))

        for trial_id in sorted(grid.trials, key=functools.cmp_to_key(compare)):
            grid._ordered_ids.insert(trial_id)
        grid._populate_next = list(grid.start_order)


_KINDS: dict[str, type[keras_tuner.Oracle]] = {
    "random": oracles.RandomSearchOracle,
    "grid": oracles.GridSearchOracle,
    "bayesian": oracles.BayesianOptimizationOracle,
    "hyperband": HyperbandOracle,
}


def make_oracle(
    space: dict[str, Any], options: SearchOptions, objective: Objective, *, run_dir: Path, epochs: int, on_row: OnRow
) -> KeptOracle:
    """The oracle of a search, with the state that its run directory holds.

    Args:
        space: Keras Tuner's config of all hyperparameters.
        options, objective: of the search.
        run_dir: its run directory.
        epochs: of Hyperband's longest trials.
        on_row: called with each trial that has finished.
    """
    kind = _KINDS[options.algorithm]
    kept: Any = type(f"Kept{kind.__name__}", (KeptOracle, kind), {})
    own = {"max_epochs": epochs} if options.algorithm == "hyperband" else {"max_trials": options.trial_limit}
    oracle: KeptOracle = kept(
        objective=keras_tuner.Objective(objective.name, objective.direction), seed=options.seed,
        hyperparameters=keras_tuner.HyperParameters.from_config(space),
        max_consecutive_failed_trials=sys.maxsize, **own,
    )  # fmt: skip
    oracle.max_trials = options.trial_limit
    oracle.verbose = 0
    oracle.run_dir, oracle.rows, oracle.on_row = run_dir, TrialRows(run_dir / "trials.jsonl"), on_row
    return oracle
