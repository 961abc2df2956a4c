"""Runs one trial: builds its model inside the runtime, trains it, and returns its row; trains the best one again.

A fold of a trial that has finished is kept, and a trial that has lost begins no further one. Workers that have no trial
of their own train folds of the others.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np
import tensorflow as tf
from keras_tuner.engine.trial import Trial

from tfaccel.errors import SearchError, TfaccelError, in_one_line
from tfaccel.files import finite, write_json
from tfaccel.graph_function import graph_function
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.checkpoint import read_state, write_state
from tfaccel.training.run.run_dir import RunIdentity
from tfaccel.training.run.session import Session, building_for, callbacks_of_workload
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.train import train
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.optuna_oracle import epoch_pruner
from tfaccel.tuning.own_training import OwnArguments, fatal_unless_metrics, make_tuner, reported_metrics
from tfaccel.tuning.search_result import MODEL_FILE, OUTCOME_FILE, TrialRow, best_row, fold_file, trial_folder
from tfaccel.tuning.trial_callbacks import Pruner, TrialReport, beside_others, tensorboard_beside
from tfaccel.tuning.trial_maker import TrialMaker

OUT_OF_MEMORY = "Out of memory"
_BEST = "best"  # the folder of the best trial's model, and in place of the trial's id
_STATE_FILE = "state.npz"
_OF_TRIAL = "trial"  # the key of the name of the trial that saved a state
_WARM_UPS, _CALLS = 3, 30
_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class TrialRunner:
    """Runs trials sequentially in this process.

    Args:
        maker: creates the workload, plan and model of a trial.
        objective, identity: of the search.
        builds_models: whether the space builds models itself.
        sign: heartbeat, called about once per second while a trial runs.
        claim: whether to train a fold here, by the trial's id and the fold's number; another process may have it.
        save_to: a file for the trained model, which is then trained once and never pruned; None for a trial.
    """

    maker: TrialMaker
    objective: Objective
    builds_models: bool
    identity: RunIdentity
    sign: Callable[[], None] = lambda: None
    claim: Callable[[str, int], bool] = lambda trial_id, fold: True
    save_to: Path | None = None

    def run(self, trial_id: str, hp: Any) -> TrialRow:
        """Runs a trial and returns its row; any exception but `FatalError` becomes the cause of its failure."""
        started = time.perf_counter()
        row: dict[str, Any] = {"trial_id": trial_id, "status": "failed", "score": None}
        try:
            row |= self._trained(trial_id, hp) if self.maker.tuner is None else self._tuned(trial_id, hp)
        except keras_tuner.errors.FatalError:
            raise
        except Exception as error:
            row["cause"] = get_cause(error)
        seconds = round(time.perf_counter() - started, 3)
        return TrialRow(**row, hyperparameters=dict(hp.values), seconds=seconds)

    def _trained(self, trial_id: str, hp: Any) -> dict[str, Any]:
        """The fields of a trial's row, after all its executions."""
        options = self.maker.options
        if options.folds is not None and self.save_to is None:
            return mean_outcome(self._of_folds(trial_id, hp, options.folds))
        outcomes: list[dict[str, Any]] = []
        for execution in range(1 if self.save_to is not None else options.executions_per_trial):
            outcomes.append(self._execution(trial_id, hp, execution))
            if outcomes[-1]["status"] == "pruned":
                break
        return mean_outcome(outcomes)

    def train_fold(self, trial_id: str, hp: Any, fold: int) -> None:
        """Trains a trial without one fold of the data, and keeps the outcome beside those of its other folds."""
        write_json(fold_file(self.run_dir, trial_id, fold), self._execution(trial_id, hp, 0, fold=fold))

    def _of_folds(self, trial_id: str, hp: Any, num_folds: int) -> list[dict[str, Any]]:
        """The outcomes of a trial's folds, in order, until it has lost."""

        def outcome_of(fold: int) -> dict[str, Any]:
            file = fold_file(self.run_dir, trial_id, fold)
            while not file.exists():  # else this trial, before a kill, or another worker has trained it
                missing = (n for n in range(fold, num_folds) if not fold_file(self.run_dir, trial_id, n).exists())
                free = next((number for number in missing if self.claim(trial_id, number)), None)
                if free is not None:
                    self.train_fold(trial_id, hp, free)
                else:
                    self.sign()
                    time.sleep(_POLL_SECONDS)
            return dict(json.loads(file.read_text(encoding="utf-8")))

        others = trial_folder(self.run_dir, trial_id).parent
        return train_folds(outcome_of, num_folds, others=others, objective=self.objective)

    def _execution(self, trial_id: str, hp: Any, execution: int, *, fold: int | None = None) -> dict[str, Any]:
        """Builds and trains the model of a trial once; without a fold of the data if one is given."""
        space = self.maker.space
        if space is None:
            raise SearchError("There is no space to build a model from.")
        made = None if self.builds_models else space(hp)
        workload = self.maker.without_fold(self.maker.workload(made), fold)
        plan = self.maker.plan(workload)
        # Frees the previous trial. This also resets the dtype policy; the runtime sets the plan's.
        keras.backend.clear_session()
        seed = self.maker.options.seed + execution

        def make_model(workload: Workload, plan: Plan, *, num_steps: int | None) -> keras.Model:
            with building_for(plan):
                of_trial = space(hp) if self.builds_models else made
            return self.maker.model(of_trial, workload, plan, num_steps=num_steps)

        with Runtime(plan, seed=seed) as runtime:
            session = Session(
                workload,
                plan,
                runtime.strategy,
                seed=seed,
                epochs=hp.values.get("tuner/epochs", self.maker.epochs),  # Hyperband sets them
                planned_epochs=self.maker.epochs,
                start_epoch=hp.values.get("tuner/initial_epoch", 0),
                make_model=make_model,
            )
            with contextlib.closing(session):
                return _Trial(self, trial_id, hp, execution, session).train()

    def _tuned(self, trial_id: str, hp: Any) -> dict[str, Any]:
        """The fields of a trial's row, after the `run_trial` of a custom Tuner."""
        maker, options = self.maker, self.maker.options
        workload = maker.workload()
        plan = maker.plan(workload)
        report = TrialReport(
            self.objective, {}, pruner=self.pruner(trial_id), sign=self.sign, patience=options.early_stopping
        )
        keras.backend.clear_session()
        with Runtime(plan, seed=options.seed) as runtime, runtime.strategy.scope():
            tuner = make_tuner(maker.tuner, maker.space, maker.own_fit, self.objective, self.run_dir)
            tuner.executions_per_trial = options.executions_per_trial
            trial = Trial(hyperparameters=hp, trial_id=trial_id, status="RUNNING")
            tuner.oracle.trials[trial_id] = trial
            position, names = OwnArguments(tuner.run_trial, given=1).of(
                None if maker.source.workload.kind == "none" else workload,
                batch_size=plan.global_batch_size,
                seed=options.seed,
                epochs=maker.epochs,
                callbacks=[*maker.callbacks(), report],
            )
            result = tuner.run_trial(trial, *position, **names)
        metrics = reported_metrics(tuner, trial) or fatal_unless_metrics(result, self.objective, {})
        return report.outcome(metrics) | {"epochs": 0, "train_seconds": None}  # only the tuner knows its epochs

    @property
    def run_dir(self) -> Path:
        """The run directory of the search."""
        return self.identity.path

    def pruner(self, trial_id: str) -> Pruner | None:
        """The pruner, asked after each epoch whether to stop the trial; None without pruning."""
        options = self.maker.options
        if options.pruning == "none":
            return None
        if not options.by_optuna:
            folder = trial_folder(self.run_dir, trial_id)
            return partial(beside_others, folder=folder, rule=options.pruning, objective=self.objective)
        return epoch_pruner(self.run_dir, options, self.objective, epochs=self.maker.epochs, trial_id=trial_id)


class _Trial:
    """The training of one model, inside the runtime."""

    def __init__(self, runner: TrialRunner, trial_id: str, hp: Any, execution: int, session: Session) -> None:
        self._runner, self._session = runner, session
        self._trial_id, self._hp, self._execution = trial_id, hp, execution
        self._replicas = Replicas(session.strategy)
        self._folder = trial_folder(runner.run_dir, trial_id)
        self._before: str | None = hp.values.get("tuner/trial_id")  # Hyperband sets the trial to continue from
        self._state_file = _STATE_FILE if execution == 0 else f"{execution}_{_STATE_FILE}"

    def train(self) -> dict[str, Any]:
        """Trains the model; returns the fields of its row."""
        runner, maker, session = self._runner, self._runner.maker, self._session
        options, save_to = maker.options, runner.save_to
        model = session.unbuilt_model
        if maker.own_fit is None or (self._before is not None and not model.built):
            model = session.model
        extras = self._extras(model) if model.built else {}
        if self._before is not None:
            self._load_state(model)
        keeps = options.keep_models and save_to is None and self._execution == 0
        report = TrialReport(
            runner.objective,
            extras,
            patience=options.early_stopping,
            sign=runner.sign,
            pruner=None if save_to is not None or self._execution else runner.pruner(self._trial_id),
            judge=None if runner.builds_models else session.workload.judge,
            save_to=self._folder / MODEL_FILE if keeps else None,
        )
        callbacks = [*tensorboard_beside(maker.callbacks(), self._trial_id, self._execution, self._hp), report]
        found = None
        if maker.own_fit is None:
            session.train([*callbacks_of_workload(session.workload), *callbacks])
        else:
            found = self._fit(maker.own_fit, model, callbacks, report)
        runner.identity.check()
        if "tuner/epochs" in self._hp.values:  # Hyperband may continue it
            state: dict[str, Any] = dict(read_state(model, self._replicas))
            state[_OF_TRIAL] = np.array(self._get_name(self._trial_id))
            np.savez(self._folder / self._state_file, **state)
        if save_to is not None or (keeps and not report.has_saved):
            model.save(save_to or self._folder / MODEL_FILE)
        return report.outcome(found)

    def _extras(self, model: keras.Model) -> dict[str, float]:
        """The model's size, checked against the limit, and its latency if the objective needs it."""
        most = self._runner.maker.options.max_parameters
        num_parameters = model.count_params()
        if most is not None and num_parameters > most:
            raise keras_tuner.errors.FailedTrialError(
                f"The model has {num_parameters:,} parameters; the limit (max_parameters) is {most:,}."
            )
        num_bytes = sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in model.weights)
        extras = {"model_bytes": float(num_bytes)}
        if "latency_seconds" in self._runner.objective.names:
            extras["latency_seconds"] = latency_seconds(model, self._session.source.batch_spec)
        return extras

    def _fit(
        self, fit: Callable[..., Any], model: keras.Model, callbacks: list[Any], report: TrialReport
    ) -> dict[str, float] | None:
        """Runs a custom `fit` on the workload's data; None if the callback has recorded the objective."""
        options, session = self._runner.maker.options, self._session
        if options.max_parameters is not None and not model.built:
            raise SearchError("max_parameters needs a built model, to count its parameters: add a keras.Input to it.")
        position, names = OwnArguments(fit, given=2).of(
            session.workload,
            batch_size=session.source.batch_size,
            seed=session.seed,
            epochs=session.epochs,
            initial_epoch=session.start_epoch,
            callbacks=callbacks,
        )
        result = fit(self._hp, model, *position, **names)
        if isinstance(result, keras.callbacks.History) and report.values:
            return None
        objective = self._runner.objective
        measured = report.extras or (self._extras(model) if model.built else {})
        needed = {name: value for name, value in measured.items() if name in objective.names}
        return fatal_unless_metrics(result, objective, needed)

    def _load_state(self, model: keras.Model) -> None:
        """Loads the final state of the trial that this one continues."""
        file = self._folder.parent / f"trial_{self._before}" / self._state_file
        with np.load(file) as arrays:
            state = dict(arrays)
        wanted = self._get_name(self._before or "")
        if str(state.pop(_OF_TRIAL, wanted)) != wanted:
            raise SearchError(f"{file} is the state of another trial, or of another search, and cannot be continued.")
        write_state(model, self._replicas, state)

    def _get_name(self, trial_id: str) -> str:
        """The name of a trial that no trial of another search has."""
        return f"{self._runner.identity.run_id or ''}/{trial_id}"


def train_folds(
    outcome_of: Callable[[int], dict[str, Any]], num_folds: int, *, others: Path, objective: Objective
) -> list[dict[str, Any]]:
    """The outcomes of a trial's folds, in order, until it has lost.

    The last outcome also has the scores of all, and the cause if the trial has lost.

    Args:
        outcome_of: trains without a fold of this number, or finds that done.
        num_folds: how many folds there are.
        others: the folder of all trials.
        objective: of the search.
    """
    outcomes: list[dict[str, Any]] = []
    for fold in range(num_folds):
        outcomes.append(outcome_of(fold))
        scores = [outcome["score"] for outcome in outcomes]
        rows = [json.loads(path.read_text("utf-8")) for path in sorted(others.glob(f"trial_*/{OUTCOME_FILE}"))]
        finished = [row for row in map(TrialRow.from_json, rows) if len(row.fold_scores) == num_folds]
        best = best_row(finished, objective)
        cause = lost_cause(scores, best, objective) if best is not None and fold + 1 < num_folds else None
        if cause is not None:
            outcomes[-1] |= {"status": "pruned", "cause": cause}
            break
    outcomes[-1]["fold_scores"] = tuple(scores)
    return outcomes


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


def mean_outcome(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combines the executions of a trial: the mean of scores and metrics.

    Example:
        >>> one = {"status": "completed", "cause": None, "epochs": 2, "train_seconds": 1.0}
        >>> mean_outcome([{**one, "score": 1.0, "metrics": {"a": 1.0}}, {**one, "score": 3.0, "metrics": {"a": 2.0}}])
        {'status': 'completed', 'cause': None, 'epochs': 2, 'train_seconds': 2.0, 'score': 2.0, 'metrics': {'a': 1.5}}
    """
    if len(outcomes) == 1:
        return outcomes[0]
    metrics = [outcome["metrics"] for outcome in outcomes]
    seconds = [outcome["train_seconds"] for outcome in outcomes]
    common = [name for name in metrics[0] if all(name in found for found in metrics)]
    return {
        **outcomes[-1],
        "train_seconds": None if None in seconds else sum(seconds),
        "score": statistics.fmean(outcome["score"] for outcome in outcomes),
        "metrics": {name: statistics.fmean(found[name] for found in metrics) for name in common},
    }


def get_cause(error: BaseException) -> str:
    """Why a trial failed, in one line."""
    text = in_one_line(error)
    if isinstance(error, TfaccelError):
        return text
    is_memory = isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)
    kind = OUT_OF_MEMORY if is_memory else type(error).__name__
    return f"{kind}: {text:.500}" if text else kind


def latency_seconds(model: keras.Model, batch_spec: Any) -> float:
    """The median time to call a built model on one all-zeros example, on the devices of this process."""
    inputs = keras.utils.unpack_x_y_sample_weight(batch_spec)[0]
    specs = tf.nest.map_structure(lambda spec: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype), inputs)
    example = tf.nest.map_structure(lambda s: tf.zeros([n or 1 for n in s.shape], s.dtype), specs)
    call = graph_function(lambda x: model(x, training=False), jit_compile=bool(model.jit_compile))
    times = []
    for _ in range(_WARM_UPS + _CALLS):
        started = time.perf_counter()
        tf.nest.map_structure(lambda tensor: tensor.numpy(), call(example))
        times.append(time.perf_counter() - started)
    return statistics.median(times[_WARM_UPS:])


def retrain(runner: TrialRunner, config: dict[str, Any]) -> dict[str, Any]:
    """Trains with the hyperparameters of a trial; writes `best/` in the search's run directory.

    If the space returns arguments of the workload's function, `best` is a run directory as written by `tfaccel.train`;
    if it builds models, `best` holds `model.keras` and `result.json`. Returns fields of the `SearchResult`.
    """
    folder, written = runner.run_dir / _BEST, runner.run_dir / f"{_BEST}.json"
    if not written.exists() or json.loads(written.read_text()) != config:  # another trial was the best before
        shutil.rmtree(folder, ignore_errors=True)
        write_json(written, config)
    hp = keras_tuner.HyperParameters.from_config(config)
    for name in [name for name in hp.values if name.startswith("tuner/")]:
        del hp.values[name]  # Hyperband's: now all epochs are trained, from the start
    space = runner.maker.space
    if not runner.builds_models and space is not None:
        maker, workload = runner.maker, runner.maker.workload(space(hp))
        how: dict[str, Any] = {"epochs": maker.epochs, "seed": maker.options.seed, "resume": "auto", "verbose": 0}
        result = train(workload, maker.plan(workload), run_dir=folder, **how)
        final = {name: value for name, value in finite(result.final).items() if value is not None}
        return {"best_run_dir": str(folder), "best_final": final}
    folder.mkdir(exist_ok=True)
    row = replace(runner, save_to=folder / MODEL_FILE).run(_BEST, hp)
    if not row.has_score:
        raise TfaccelError(f"The best trial could not be retrained: {row.cause}")
    write_json(folder / "result.json", row.to_json())
    return {"best_run_dir": str(folder), "best_final": row.finite_metrics}
