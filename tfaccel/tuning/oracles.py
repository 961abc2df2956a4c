"""Keras Tuner's oracles, or Optuna's, with crash-safe state and `trials.jsonl`.

Keras Tuner overwrites its files in place, loses the position of a grid search on reload, and loses trials if it is
killed between two writes.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner import oracles
from threadpoolctl import threadpool_limits

from tfaccel.files import whole_file
from tfaccel.training.run.run_dir import RunIdentity
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.optuna_oracle import OptunaOracle
from tfaccel.tuning.private_keras_tuner import OpenHyperband, OpenOracle, find_place
from tfaccel.tuning.search_result import OUTCOME_FILE, OnRow, TrialRows, read_outcome, trial_folder

FOR_GOOD = "FailedTrialError"  # a trial with this cause is not retried: it would fail again


class KeptOracle(OpenOracle):
    """Mixin for all oracles here; see `make_oracle`."""

    run_dir: Path
    identity: RunIdentity | None = None  # of the search; checked before anything is written
    rows: TrialRows
    on_row: OnRow
    on_end: Callable[[str], None]
    most_failed_in_a_row: int | None
    max_trials: int | None

    def save(self) -> None:
        """Writes the state atomically."""
        self._check_held()
        with whole_file(self.state_file) as temporary:
            temporary.write_text(json.dumps(self.get_state()))

    def save_trial(self, trial: Any) -> None:
        """Writes a trial's file atomically."""
        self._check_held()
        folder = trial_folder(self.run_dir, trial.trial_id)
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / "trial.json") as temporary:
            temporary.write_text(json.dumps(trial.get_state()))

    def _check_held(self) -> None:
        if self.identity is not None:
            self.identity.check()

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of the next trial, computed on one thread to leave the cores to trials."""
        if not self.hyperparameters.space and self.ongoing_trials:
            return {"status": "IDLE"}  # the first trial discovers the space
        with threadpool_limits(limits=1, user_api="blas"):
            found: dict[str, Any] = super().populate_space(trial_id)
        return found

    def record_values(self, trial: Any) -> None:
        """Keeps the values of names defined under several conditions, which Keras Tuner would drop."""
        hyperparameters = trial.hyperparameters
        before = dict(hyperparameters.values)
        super().record_values(trial)
        for entry in hyperparameters.space:
            if hyperparameters.is_active(entry) and entry.name in before:
                hyperparameters.values[entry.name] = before[entry.name]

    @keras_tuner.synchronized
    def end_trial(self, trial: Any) -> None:
        """Adds the trial's line to `trials.jsonl`, unless it will be retried, then ends it as Keras Tuner does."""
        self._check_held()
        row = read_outcome(self.run_dir, trial.trial_id)
        if trial.status == "INVALID" and self.num_runs(trial.trial_id) < self.max_retries_per_trial:
            (trial_folder(self.run_dir, trial.trial_id) / OUTCOME_FILE).unlink(missing_ok=True)
        elif row is not None:
            if isinstance(self, OptunaOracle):
                self.told(row)
            if self.rows.add(row):
                self.on_row(row)
        super().end_trial(trial)
        self._count_failures()

    def _count_failures(self) -> None:
        """Stops the search after too many consecutive failed trials."""
        most = self.most_failed_in_a_row
        last = [self.trials[trial_id] for trial_id in self.end_order[-(most or 0) :]]
        if most is not None and len(last) == most and all(trial.status == "FAILED" for trial in last):
            row = read_outcome(self.run_dir, last[-1].trial_id)
            self.stop()
            self.on_end(
                f"{most} trials in a row have failed (max_consecutive_failed_trials), the last one with: "
                f"{row.cause if row is not None else 'no cause'}"
            )

    @keras_tuner.synchronized
    def finish(self, trial_id: str, hyperparameters: dict[str, Any] | None = None) -> None:
        """Ends a trial according to its outcome, with the config of its hyperparameters, of which it may add some."""
        row = read_outcome(self.run_dir, trial_id)
        if row is None or trial_id in self.end_order or trial_id not in self.trials:
            return
        trial = self.trials[trial_id]
        if hyperparameters is not None:
            trial.hyperparameters = keras_tuner.HyperParameters.from_config(hyperparameters)
        failed = "FAILED" if (row.cause or "").startswith(FOR_GOOD) else "INVALID"
        trial.status, trial.message = ("COMPLETED", None) if row.has_score else (failed, row.cause)
        if row.has_score and not trial.metrics.exists(self.objective.name):
            self.update_trial(trial_id, {**row.finite_metrics, self.objective.name: row.score})
        self.end_trial(trial)

    @keras_tuner.synchronized
    def stop(self) -> None:
        """Prevents further trials from starting."""
        self.set_waiting([])
        self.max_trials = -1

    def go_on(self) -> None:
        """Restores the state from disk: keeps finished trials and restarts interrupted ones."""
        if not self.state_file.exists():
            return
        max_trials = self.max_trials
        self.reload()
        self.max_trials = max_trials
        for trial_id in sorted(set(self.trials) - set(self.start_order)):  # no worker has heard of it
            del self.trials[trial_id]
            shutil.rmtree(trial_folder(self.run_dir, trial_id))
        if isinstance(self, OptunaOracle):
            self.forget_others()
        waiting = [trial_id for trial_id in self.start_order if trial_id not in self.end_order]
        self.set_waiting([])
        if isinstance(self, oracles.GridSearchOracle):
            find_place(self)
        for trial_id in waiting:
            self.finish(trial_id)
        self.set_waiting([trial_id for trial_id in reversed(waiting) if trial_id not in self.end_order])
        for trial_id in self.end_order:
            row = read_outcome(self.run_dir, trial_id)
            if row is not None:
                self.rows.add(row)


class HyperbandOracle(OpenHyperband):
    """Hyperband in which a failed trial counts as eliminated."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of the next trial, and whether there is one."""
        for bracket in self.open_brackets():
            if len(bracket["rounds"][0]) < self.round_size(bracket["bracket_num"], 0):
                break
            values = self._promoted(bracket, trial_id)
            if values is not None:
                return {"status": "RUNNING", "values": values}
        found: dict[str, Any] = super().populate_space(trial_id)
        return found

    def _promoted(self, bracket: dict[str, Any], trial_id: str) -> dict[str, Any] | None:
        """The next trial to promote to the following round; None while that is undecided."""
        number, rounds = bracket["bracket_num"], bracket["rounds"]
        for place in range(1, len(rounds)):
            going_on = {info["past_id"] for info in rounds[place]}
            before = [self.trials[info["id"]] for info in rounds[place - 1]]
            ready = [trial for trial in before if trial.status == "COMPLETED" and trial.trial_id not in going_on]
            num_failed = sum(trial.status in ("FAILED", "INVALID") for trial in before)
            thrown_out = self.round_size(number, place - 1) - self.round_size(number, place) - num_failed
            if len(ready) > max(0, thrown_out):
                best = sorted(ready, key=lambda trial: trial.score, reverse=self.objective.direction == "max")[0]
                rounds[place].append({"past_id": best.trial_id, "id": trial_id})
                return {
                    **best.hyperparameters.values,
                    "tuner/trial_id": best.trial_id,
                    "tuner/epochs": self.round_epochs(number, place),
                    "tuner/initial_epoch": self.round_epochs(number, place - 1),
                    "tuner/bracket": number,
                    "tuner/round": place,
                }
        return None


_KINDS: dict[str, type[keras_tuner.Oracle]] = {
    "random": oracles.RandomSearchOracle,
    "grid": oracles.GridSearchOracle,
    "bayesian": oracles.BayesianOptimizationOracle,
    "hyperband": HyperbandOracle,
}


def make_oracle(
    space: dict[str, Any],
    options: SearchOptions,
    objective: Objective,
    *,
    run_dir: Path,
    epochs: int,
    on_row: OnRow,
    on_end: Callable[[str], None] = lambda message: None,
) -> KeptOracle:
    """Creates the oracle of a search, from Keras Tuner's config of all hyperparameters.

    `on_row` is called with each finished trial; `on_end` with the reason, if the search must stop.
    """
    kind = _KINDS.get(options.algorithm, OptunaOracle)
    kept: Any = type(f"Kept{kind.__name__}", (KeptOracle, kind), {})
    own: dict[str, Any] = {"max_trials": options.trial_limit}
    if options.algorithm == "hyperband":
        own = {"max_epochs": epochs}
    elif options.algorithm == "bayesian":
        own["num_initial_points"] = options.num_initial_points
    if not options.by_optuna:
        own |= options.algorithm_options
    oracle: KeptOracle = kept(
        objective=keras_tuner.Objective(objective.name, objective.direction),
        seed=options.seed,
        hyperparameters=keras_tuner.HyperParameters.from_config(space),
        tune_new_entries=options.tune_new_entries,
        allow_new_entries=options.allow_new_entries,
        max_retries_per_trial=options.max_retries_per_trial,
        max_consecutive_failed_trials=sys.maxsize,
        **own,
    )
    oracle.max_trials = options.trial_limit
    oracle.most_failed_in_a_row = options.max_consecutive_failed_trials
    oracle.verbose = 0
    oracle.run_dir, oracle.rows = run_dir, TrialRows(run_dir / "trials.jsonl")
    oracle.on_row, oracle.on_end = on_row, on_end
    if isinstance(oracle, OptunaOracle):
        oracle.open_study(run_dir, options, objective, epochs=epochs)
    return oracle
