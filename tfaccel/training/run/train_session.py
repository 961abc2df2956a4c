"""One call to `train`, from building the model to saving it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.iterator_feed import ResumedPlace
from tfaccel.files import whole_file
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.non_finite_policy import STOP
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.processes.heartbeat import note_first_step
from tfaccel.training.accumulation import workload_schedule
from tfaccel.training.epochs import make_callbacks
from tfaccel.training.run.built_run import built_settings, check_built
from tfaccel.training.run.changed_accumulation import in_parts, parts_per_batch, state_in_parts, step_in_split_epoch
from tfaccel.training.run.checkpoint import checkpoint_of_chief, write_state
from tfaccel.training.run.checkpoint_files import load_newest
from tfaccel.training.run.checkpoints import NOT_OF_MODEL, CheckpointOptions, Checkpoints
from tfaccel.training.run.compiled_model import compiled_model
from tfaccel.training.run.faulty_batch import causes_named
from tfaccel.training.run.longer_run import check_same_when_longer
from tfaccel.training.run.memory_check import check_memory, within_memory
from tfaccel.training.run.non_finite import UntilFault, positions
from tfaccel.training.run.out_of_memory import smaller_batches_if_out_of_memory
from tfaccel.training.run.performance import Performance
from tfaccel.training.run.profile_steps import ProfileSteps
from tfaccel.training.run.run_dir import LEFT_OUT, NO_METRICS, RunDir
from tfaccel.training.run.run_options import RunOptions
from tfaccel.training.run.scaled_rates import ScaledRates
from tfaccel.training.run.session import Session
from tfaccel.training.run.shown_run import say
from tfaccel.training.run.stop_signals import StopSignals
from tfaccel.training.run.stopping import StopWhenAsked
from tfaccel.training.run.stragglers import WorkerTimes
from tfaccel.training.run.tensorboard_scalars import TensorBoardScalars
from tfaccel.training.run.train_callbacks import MetricLines, StepTimes
from tfaccel.training.run.training_progress import TrainingProgress
from tfaccel.training.run.unsaved_state import warned_unsaved_state
from tfaccel.training.run.utilization import Utilization
from tfaccel.training.run.workload_fit import callbacks_of_workload, refuse_restoring
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.validation import Validation
from tfaccel.training.workers.chief import only_chief_writes

logger = logging.getLogger("tfaccel")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a session."""

    history: dict[str, list[float | None]]
    final: dict[str, float]
    times: StepTimes
    performance: Performance | None
    workers: tuple[WorkerTimes, ...] = ()
    learning_rate_scaling: dict[str, Any] | None = None
    proof: dict[str, Any] | None = None


class TrainSession:
    """Builds the model of a workload under the current runtime, and trains it.

    Args:
        workload, plan, run_dir, options: what to train, how, and where to.
    """

    def __init__(self, workload: Workload, plan: Plan, run_dir: RunDir, options: RunOptions) -> None:
        self._workload, self.plan, self._run_dir = workload, plan, run_dir
        self._options, self._epochs, self._seed = options, options.epochs, options.seed
        self._scaling, self._profile, self._until = options.scaling, options.profile, options.until
        self.dropped: frozenset[tuple[int, int]] = frozenset()  # positions of batches that are left out
        interval, self._keep = options.checkpoint_interval, options.keep_checkpoints
        self._interval = None if interval is None else interval * plan.accumulation_steps
        self._rates: ScaledRates | None = None
        self._begin_from(load_newest(run_dir.checkpoints, run_dir.identity) if run_dir.resumes else None)

    def _begin_from(self, restored: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
        self._stored, self._parts = restored, 1
        if restored is not None:
            self._parts = parts_per_batch(restored[1], self.plan.accumulation_steps)
            restored = restored[0], in_parts(restored[1], self._parts)
        self._restored = restored
        position = restored[1] if restored else {"epoch": 0, "step_in_epoch": 0}
        self._first_epoch: int = self._epochs if position.get("stopped") else position["epoch"]
        self._first_step: int = position["step_in_epoch"]
        self._num_steps: int | None = position.get("num_steps")  # of the original run, even if `epochs` has changed

    def _begin_with_chief(self, replicas: Replicas) -> None:
        """Broadcasts the checkpoint that the chief has read, so that workers need no shared disk."""
        self._begin_from(checkpoint_of_chief(self._stored, replicas))
        left_out = json.loads(replicas.bytes_of_chief(json.dumps(self._run_dir.left_out()).encode()))
        self.dropped = positions(left_out, self.plan.accumulation_steps)
        self._is_longer = bool(json.loads(replicas.bytes_of_chief(json.dumps(self._run_dir.is_longer).encode())))
        self._run_dir.take_rows(replicas.bytes_of_chief(self._run_dir.rows_before(self._first_epoch)))

    @property
    def place(self) -> str:
        """Where the session continues, in words."""
        if self._restored is None:
            return "from its start"
        return f"from the newest checkpoint (epoch {self._first_epoch + 1}, step {self._first_step + 1})"

    def _continue_within_epoch(self) -> None:
        """Corrects the position if batches are split from now on."""
        if self._restored is not None and self._parts > 1 and self._first_step:
            step = step_in_split_epoch(
                self._workload, self.plan, self._parts, seed=self._seed, epoch=self._first_epoch, step=self._first_step
            )
            self._restored[1]["step"] -= self._first_step - step
            self._restored[1]["step_in_epoch"] = self._first_step = step

    def run(
        self,
        strategy: tf.distribute.Strategy,
        callbacks: Sequence[keras.callbacks.Callback],
        *,
        signals: StopSignals,
        hardware: Hardware,
        verbose: int | str,
    ) -> Outcome:
        """Trains with the workload's and additional callbacks, until a signal asks to stop; evaluates and saves."""
        replicas = Replicas(strategy)
        self._begin_with_chief(replicas)
        self._continue_within_epoch()
        session = Session(
            self._workload,
            self.plan,
            strategy,
            seed=self._seed,
            epochs=self._epochs,
            planned_epochs=self._epochs,
            start_epoch=self._first_epoch,
            start=ResumedPlace.of(self._restored),
            options=self._options.engine_options(self.plan),
            make_model=partial(self._compiled_model, hardware=hardware),
        )
        with contextlib.closing(session):
            self._source = session.source
            self._source.leave_out(self.dropped)
            check_memory(session.model, self._workload.name, self.plan, hardware)
            return self._trained(session, callbacks, signals=signals, hardware=hardware, verbose=verbose)

    def _trained(
        self,
        session: Session,
        callbacks: Sequence[keras.callbacks.Callback],
        *,
        signals: StopSignals,
        hardware: Hardware,
        verbose: int | str,
    ) -> Outcome:
        """Trains on the source's batches, then evaluates and saves."""
        model, engine, validation = session.model, session.engine, session.validation
        engine.on_unsaved_state = warned_unsaved_state()
        note_first_step(0 if self._restored is None else self._restored[1]["step"])
        asked_for = callbacks_of_workload(self._workload)
        refuse_restoring([*asked_for, *callbacks])
        self._announce_rates([*asked_for, *callbacks])
        self._run_dir.writes = engine.replicas.is_chief and self._until is None
        source = self._source
        check_built(self._run_dir, built_settings(model, num_batches=source.num_batches, batch_size=source.batch_size))
        self._restore(model, engine)
        if self._run_dir.resumes and self._run_dir.writes and verbose:
            say(f"The run in {self._run_dir.path} continues {self.place}.")
        self._run_dir.start(self.plan.to_json())
        times = StepTimes()
        batches = {"batch_spec": source.batch_spec, "examples_per_batch": source.batch_size}
        utilization = Utilization(engine, self.plan, hardware, **batches)
        every = self._callbacks([*asked_for, *callbacks], engine, times, utilization, signals=signals, verbose=verbose)
        container = make_callbacks(every, engine, self._source, verbose=0, epochs=self._epochs)
        try:
            with (
                smaller_batches_if_out_of_memory(model, self._workload, self.plan, engine.replicas),
                only_chief_writes(model, container.callbacks, engine.replicas),
                causes_named(engine, self._workload, self.plan, seed=self._seed, finds=self._until is not None),
                self._source.failures_named(),
            ):
                session.train(container)
                final = self._final_metrics(engine, validation, every[-1])
        finally:
            for callback in container.callbacks:
                if isinstance(callback, TrainingProgress | ProfileSteps | Checkpoints | TensorBoardScalars):
                    callback.close()
        if engine.replicas.is_chief:
            self._run_dir.check_held()
            with workload_schedule(model.optimizer), whole_file(self._run_dir.model_file) as temporary:
                model.save(temporary)
        workers = utilization.workers_of_run()
        engine.replicas.wait_for_all_workers()
        scaled = None if self._rates is None else self._rates.to_json()
        proof = engine.checks.to_json()
        return Outcome(self._run_dir.history(), final, times, utilization.of_run(), workers, scaled, proof)

    def _know_steps(self, num_steps: int | None) -> None:
        """Takes the number of optimizer steps; a resumed run has that of the original, unless it becomes longer."""
        if self._num_steps is not None and not self._is_longer:
            return
        before, self._num_steps = self._num_steps, num_steps
        if self._is_longer and self._restored is not None:
            check_same_when_longer(self._workload, self._scaling, num_steps=before, more_steps=self._num_steps)

    def _restore(self, model: keras.Model, engine: Engine) -> None:
        if self._restored is not None:
            own = {name: array for name, array in self._restored[0].items() if not name.startswith(NOT_OF_MODEL)}
            own = state_in_parts(own, model, self._parts, num_replicas=engine.replicas.num_replicas)
            write_state(model, engine.replicas, own)
            engine.left_out.begin_epoch(self._restored[1].get(LEFT_OUT, 0))

    def _announce_rates(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        if self._rates is not None:
            self._rates.check_callbacks(callbacks)
            self._rates.log()

    def _compiled_model(
        self, workload: Workload, plan: Plan, *, num_steps: int | None, hardware: Hardware
    ) -> keras.Model:
        self._know_steps(num_steps)
        if self._profile is not None:
            self._profile.check_length(self._num_steps)
        self._rates = None if self._scaling is None else ScaledRates(self._scaling, self._num_steps)
        with within_memory(workload.name, plan, hardware):
            return compiled_model(workload, plan, num_steps=self._num_steps, rates=self._rates)

    def _callbacks(
        self,
        callbacks: list[keras.callbacks.Callback],
        engine: Engine,
        times: StepTimes,
        utilization: Utilization,
        *,
        signals: StopSignals,
        verbose: int | str,
    ) -> list[keras.callbacks.Callback]:
        """All callbacks, in order; the last one stops the run."""
        steps = self._source.num_batches
        counts = self._options.on_nonfinite != STOP or self.dropped
        lines = MetricLines(self._run_dir, steps, utilization, engine.left_out if counts else None)
        every: list[keras.callbacks.Callback] = [*callbacks, times, utilization, lines]
        if self._until is not None:
            every.append(UntilFault(self._until))
        elif engine.replicas.is_chief:
            every.append(TensorBoardScalars(self._run_dir.tensorboard, utilization))
            if self._profile is not None:
                every.append(
                    ProfileSteps(
                        self._profile,
                        self._run_dir.tensorboard,
                        batches_per_step=self.plan.accumulation_steps,
                        batches_before=self._restored[1]["step"] if self._restored else 0,
                        batches_in_epoch=self._first_step,
                    )
                )
            if verbose:
                every.append(
                    TrainingProgress(
                        epochs=self._epochs,
                        first_epoch=self._first_epoch,
                        steps_of_epoch=steps,
                        examples_per_step=self._source.batch_size,
                    )
                )
        checkpoints = Checkpoints(
            self._run_dir,
            engine,
            callbacks,
            CheckpointOptions(
                interval=self._interval,
                keep=self._keep,
                num_steps=self._num_steps,
                accumulation_steps=self.plan.accumulation_steps,
                batch_spec=self._source.batch_spec,
                restore=partial(self._restore, engine.model, engine),
                place_of_data=self._source.place_of_data,
            ),
            restored=self._restored,
        )
        return [*every, checkpoints, StopWhenAsked(signals, checkpoints, self._run_dir, engine.replicas)]

    def _final_metrics(
        self, engine: Engine, validation: Validation | None, stops: keras.callbacks.Callback
    ) -> dict[str, float]:
        if validation is None:
            rows = self._run_dir.rows[-1] if self._run_dir.rows else {}
            return {k: v for k, v in rows.items() if k not in NO_METRICS}
        quiet = keras.callbacks.CallbackList([stops], model=engine.model)
        try:
            return validation.evaluate(engine, quiet)
        finally:
            validation.close()
