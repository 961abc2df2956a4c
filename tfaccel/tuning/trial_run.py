"""One trial, from hyperparameters to a row: built inside the runtime, trained by the engine."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import SearchError, TfaccelError
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training import private_models
from tfaccel.training.checkpoint import read_state, write_state
from tfaccel.training.compiled_model import engine_options
from tfaccel.training.engine import engine_of
from tfaccel.training.fit import callbacks_of, run_epochs
from tfaccel.training.replicas import Replicas
from tfaccel.training.runtime import Runtime
from tfaccel.training.validation import validation_of
from tfaccel.training.workload_source import WorkloadSource
from tfaccel.tuning.latency import latency_seconds
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.own_fit import own_fit_metrics
from tfaccel.tuning.trial_callbacks import TrialReport, max_or_min
from tfaccel.tuning.trial_maker import TrialMaker, takes
from tfaccel.tuning.trial_row import TrialRow, trial_folder

OUT_OF_MEMORY = "Out of memory"
_STATE_FILE = "state.npz"


@dataclass(frozen=True, kw_only=True)
class TrialRunner:
    """Runs trials, one after the other, in this process.

    Arguments:
        maker: makes what a trial trains.
        objective: what the search betters.
        builds_models: whether the space builds models itself.
        run_dir: of the search.
        sign: called every second or so while a trial is alive.
    """

    maker: TrialMaker
    objective: Objective
    builds_models: bool
    run_dir: Path
    sign: Callable[[], None] = lambda: None

    def run(self, trial_id: str, hp: Any, *, save_to: Path | None = None) -> TrialRow:
        """The row of a trial; whatever goes wrong in it is the cause of its failure.

        Args:
            trial_id: Keras Tuner's.
            hp: its hyperparameters.
            save_to: a file for the trained model; None to let it go.
        """
        started = time.perf_counter()
        row: dict[str, Any] = {"trial_id": trial_id, "status": "failed", "score": None}
        try:
            row |= self._outcome(trial_id, hp, save_to)
        except Exception as error:
            row["cause"] = cause_of(error)
        seconds = round(time.perf_counter() - started, 3)
        return TrialRow(**row, hyperparameters=dict(hp.values), seconds=seconds)

    def _outcome(self, trial_id: str, hp: Any, save_to: Path | None) -> dict[str, Any]:
        made = None if self.builds_models else self.maker.space(hp)
        workload = self.maker.workload(made)
        plan = self.maker.plan(workload)
        # Lets go of the trial before. It forgets the dtype policy as well, and the runtime sets the plan's.
        keras.backend.clear_session()
        with Runtime(plan, seed=self.maker.options.seed) as runtime:
            with runtime.strategy.scope():
                made = self.maker.space(hp) if self.builds_models else made
                model = self.maker.model(made, workload, plan)
            trial = _Trial(self, trial_id, hp, workload, plan, Replicas(runtime.strategy))
            return trial.train(model, save_to)


class _Trial:
    """One model and its training; lives inside the runtime."""

    def __init__(self, runner: TrialRunner, trial_id: str, hp: Any, workload: Workload, plan: Plan,
                 replicas: Replicas) -> None:  # fmt: skip
        self._runner = runner
        self._hp = hp
        self._workload = workload
        self._plan = plan
        self._replicas = replicas
        self._folder = trial_folder(runner.run_dir, trial_id)
        values = hp.values  # Hyperband says how far, and which trial to go on with
        self._first_epoch: int = values.get("tuner/initial_epoch", 0)
        self._epochs: int = values.get("tuner/epochs", runner.maker.epochs)
        self._before: str | None = values.get("tuner/trial_id")
        self._keeps_state = "tuner/epochs" in values

    def train(self, model: keras.Model, save_to: Path | None) -> dict[str, Any]:
        """Trains; returns what the row says of it."""
        options = self._runner.maker.options
        source = WorkloadSource(self._workload, self._plan, self._replicas, seed=options.seed, epochs=self._epochs,
                                start_epoch=self._first_epoch)  # fmt: skip
        try:
            private_models.build_model(model, source.batch_spec)
            extras = self._extras(model, source.batch_spec)
            if self._before is not None:
                self._load_state(model)
            pruning = options.pruning if save_to is None else "none"
            report = TrialReport(self._folder, self._runner.objective, extras, pruning=pruning,
                                 patience=options.early_stopping, sign=self._runner.sign,
                                 judge=None if self._runner.builds_models else self._workload.judge)  # fmt: skip
            found = None
            if self._runner.maker.own_fit is None:
                self._run_epochs(model, source, report)
            else:
                found = self._fit(self._runner.maker.own_fit, model, source, report)
        finally:
            source.close()
        if self._keeps_state:
            state: dict[str, Any] = dict(read_state(model, self._replicas))
            np.savez(self._folder / _STATE_FILE, **state)
        if save_to is not None:
            model.save(save_to)
        return self._row(report, found)

    def _row(self, report: TrialReport, found: dict[str, float] | None) -> dict[str, Any]:
        objective = self._runner.objective
        if found is None and not report.values:
            raise SearchError(f"No epoch ended with the objective {objective.name!r}.")
        metrics = report.best_metrics if found is None else found
        score = max_or_min(report.values, objective) if found is None else objective.value(found)
        if not math.isfinite(score):
            raise SearchError(f"The objective {objective.name!r} became {score}.")
        return {
            "status": "completed" if report.prune_cause is None else "pruned", "cause": report.prune_cause,
            "score": score, "metrics": metrics, "epochs": len(report.values),
            "train_seconds": report.train_seconds,
        }  # fmt: skip

    def _extras(self, model: keras.Model, batch_spec: Any) -> dict[str, float]:
        """The model's size, checked against the limit, and its latency where it is asked for."""
        most = self._runner.maker.options.max_parameters
        num_parameters = model.count_params()
        if most is not None and num_parameters > most:
            raise SearchError(f"The model has {num_parameters:,} parameters; the limit (max_parameters) is {most:,}.")
        num_bytes = sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in model.weights)
        extras = {"model_bytes": float(num_bytes)}
        if "latency_seconds" in self._runner.objective.names:
            extras["latency_seconds"] = latency_seconds(model, batch_spec)
        return extras

    def _run_epochs(self, model: keras.Model, source: WorkloadSource, report: TrialReport) -> None:
        engine = engine_of(model, engine_options(self._plan))
        validation = validation_of(self._workload, self._plan, num_passes=self._epochs - self._first_epoch)
        own = list(self._workload.callbacks()) if self._workload.callbacks else []
        container = callbacks_of([*own, report], engine, source, verbose=0, epochs=self._epochs)
        with ExitStack() as stack:
            if validation is not None:
                stack.callback(validation.close)
            run_epochs(engine, source, container, validation, epochs=self._epochs, initial_epoch=self._first_epoch)

    def _fit(self, fit: Callable[..., Any], model: keras.Model, source: WorkloadSource,
             report: TrialReport) -> dict[str, float] | None:  # fmt: skip
        """A HyperModel's own fit, on batches of the workload; None where its callback has seen the objective."""
        seed, size = self._runner.maker.options.seed, source.batch_size
        passes = [self._workload.train_data(size, seed=seed, epoch=e) for e in range(self._first_epoch, self._epochs)]
        batches = functools.reduce(lambda before, one: before.concatenate(one), passes)
        held_out = None if self._workload.validation_data is None else self._workload.validation_data(size)
        arguments = {"x": batches.prefetch(tf.data.AUTOTUNE), "validation_data": held_out, "callbacks": [report],
                     "epochs": self._epochs, "initial_epoch": self._first_epoch, "verbose": 0,
                     "steps_per_epoch": source.num_batches}  # fmt: skip
        result = fit(self._hp, model, **{name: value for name, value in arguments.items() if takes(fit, name)})
        if isinstance(result, keras.callbacks.History) and report.values:
            return None
        objective = self._runner.objective
        measured = {name: value for name, value in report.extras.items() if name in objective.names}
        return own_fit_metrics(result, objective, measured)

    def _load_state(self, model: keras.Model) -> None:
        """The state in which the trial that this one goes on with had ended."""
        with np.load(self._folder.parent / f"trial_{self._before}" / _STATE_FILE) as arrays:
            write_state(model, self._replicas, dict(arrays))


def cause_of(error: BaseException) -> str:
    """Why a trial failed, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, TfaccelError):
        return text
    is_memory = isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)
    kind = OUT_OF_MEMORY if is_memory else type(error).__name__
    return f"{kind}: {text:.500}" if text else kind
