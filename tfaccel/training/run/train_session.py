"""One attempt to train the run of a directory, from building the model to saving it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from tfaccel.data.iterator_feed import ResumedPlace
from tfaccel.errors import PlanError
from tfaccel.files import whole_file
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.option_checks import NOT_ON_TPUS, SKIP, STOP
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.processes.heartbeat import note_first_step
from tfaccel.training.accumulation import workload_schedule
from tfaccel.training.epochs import make_callbacks, run_epochs
from tfaccel.training.run.changed_run import (
    built_settings,
    check_built,
    check_same_when_longer,
    in_parts,
    parts_per_batch,
    positions,
    step_in_split_epoch,
)
from tfaccel.training.run.checkpoint import checkpoint_of_chief
from tfaccel.training.run.checkpoint_files import load_newest
from tfaccel.training.run.checkpoints import CheckpointOptions, Checkpoints, restore_model, warned_unsaved_state
from tfaccel.training.run.compiled_model import ScaledRates, compiled_model, engine_options
from tfaccel.training.run.faulty_batch import causes_named
from tfaccel.training.run.out_of_memory import check_memory, smaller_batches_if_out_of_memory, within_memory
from tfaccel.training.run.performance import Performance, WorkerTimes
from tfaccel.training.run.result import say
from tfaccel.training.run.run_dir import NO_METRICS, RunDir
from tfaccel.training.run.run_options import RunOptions
from tfaccel.training.run.session import Session, callbacks_of_workload, refuse_restoring
from tfaccel.training.run.stop_signals import StopSignals
from tfaccel.training.run.stopping import StopWhenAsked
from tfaccel.training.run.train_callbacks import (
    MetricLines,
    ProfileSteps,
    StepTimes,
    TensorBoardScalars,
    TrainingProgress,
)
from tfaccel.training.run.utilization import Utilization
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.engine import EngineOptions
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lost_worker import only_chief_writes

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


class NotRepeated(Exception):
    """Signals that repeating the steps has not repeated the fault."""


class UntilFault(keras.callbacks.Callback):
    """Stops a session that searches for a fault at the step where it occurred.

    Args:
        position: the epoch and the step by which it has occurred, from 1.
    """

    tfaccel_windows = True

    def __init__(self, position: tuple[int, int]) -> None:
        super().__init__()
        self._position = position
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes note of the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends after the step."""
        if (self._epoch + 1, batch + 1) >= self._position:
            raise NotRepeated


class TrainSession:
    """Builds the model of a workload under the current runtime, and trains it.

    Args:
        workload, plan, run_dir, options: what to train, how, and where to.
        runtime, hardware: the plan's runtime, entered, and the machine.
        signals: what asks to stop.
    """

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        run_dir: RunDir,
        options: RunOptions,
        *,
        runtime: Runtime,
        hardware: Hardware,
        signals: StopSignals,
    ) -> None:
        self._workload, self.plan, self._run_dir, self._options = workload, plan, run_dir, options
        self._strategy, self._hardware, self._signals = runtime.strategy, hardware, signals
        self.dropped: frozenset[tuple[int, int]] = frozenset()  # positions of batches that are left out
        self._rates: ScaledRates | None = None
        self._begin_from(load_newest(run_dir.checkpoints, run_dir.identity) if run_dir.resumes else None)

    def _begin_from(self, restored: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
        self._stored, self._parts = restored, 1
        if restored is not None:
            self._parts = parts_per_batch(restored[1], self.plan.accumulation_steps)
            restored = restored[0], in_parts(restored[1], self._parts)
        self._restored = restored
        position = restored[1] if restored else {"epoch": 0, "step_in_epoch": 0}
        self._first_epoch: int = self._options.epochs if position.get("stopped") else position["epoch"]
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
            where = {"seed": self._options.seed, "epoch": self._first_epoch, "step": self._first_step}
            step = step_in_split_epoch(self._workload, self.plan, self._parts, **where)
            self._restored[1]["step"] -= self._first_step - step
            self._restored[1]["step_in_epoch"] = self._first_step = step

    def run(self) -> Outcome:
        """Trains with the workload's and additional callbacks, until a signal asks to stop; evaluates and saves."""
        times = StepTimes()
        with contextlib.closing(self._open()) as session:
            session.source.leave_out(self.dropped)
            check_memory(session.model, self._workload.name, self.plan, self._hardware)
            engine, source, validation = session.engine, session.source, session.validation
            utilization, container = self._begin(session, times)
            with (
                self._errors_named(session),
                _closed(container.callbacks),
                only_chief_writes(session.model, container.callbacks, engine.replicas),
            ):
                run_epochs(engine, source, container, validation, **session.length)
                final = self._final_metrics(session, container.callbacks)
            if engine.replicas.is_chief:
                self._run_dir.check_held()
                with (
                    workload_schedule(session.model.optimizer),
                    whole_file(self._run_dir.model_file) as temporary,
                ):
                    session.model.save(temporary)
            workers = utilization.workers_of_run()
            engine.replicas.wait_for_all_workers()
            scaled = None if self._rates is None else self._rates.to_json()
            proof = engine.checks.to_json()
            return Outcome(self._run_dir.history(), final, times, utilization.of_run(), workers, scaled, proof)

    def _open(self) -> Session:
        """The workload's model and data, where the newest checkpoint was."""
        self._begin_with_chief(Replicas(self._strategy))
        self._continue_within_epoch()
        return Session(
            self._workload,
            self.plan,
            self._strategy,
            seed=self._options.seed,
            epochs=self._options.epochs,
            planned_epochs=self._options.epochs,
            start_epoch=self._first_epoch,
            start=ResumedPlace.of(self._restored),
            options=self.engine_options(),
            make_model=self._compiled_model,
        )

    def engine_options(self) -> EngineOptions:
        """The engine's options for the plan.

        Raises:
            PlanError: if batches are to be left out on a TPU.
        """
        on_nonfinite, finds = self._options.on_nonfinite, self._options.until is not None
        if self.plan.strategy == "tpu" and on_nonfinite != STOP:
            raise PlanError(NOT_ON_TPUS)
        skips, own = on_nonfinite == SKIP, engine_options(self.plan)
        return replace(own, stop_at_non_finite_loss=finds or not skips, leaves_out=finds or skips)

    def _begin(self, session: Session, times: StepTimes) -> tuple[Utilization, keras.callbacks.CallbackList]:
        """Restores the model, starts the run directory, and makes the callbacks."""
        model, engine, source = session.model, session.engine, session.source
        engine.on_unsaved_state = warned_unsaved_state()
        note_first_step(0 if self._restored is None else self._restored[1]["step"])
        asked_for = [*callbacks_of_workload(self._workload), *self._options.callbacks]
        refuse_restoring(asked_for)
        if self._rates is not None:
            self._rates.check_callbacks(asked_for)
            self._rates.log()
        self._run_dir.writes = engine.replicas.is_chief and self._options.until is None
        check_built(self._run_dir, built_settings(model, num_batches=source.num_batches, batch_size=source.batch_size))
        restore_model(engine, self._restored, parts=self._parts)
        if self._run_dir.resumes and self._run_dir.writes and self._options.verbose:
            say(f"The run in {self._run_dir.path} continues {self.place}.")
        self._run_dir.start(self.plan.to_json())
        batches = {"batch_spec": source.batch_spec, "examples_per_batch": source.batch_size}
        utilization = Utilization(engine, self.plan, self._hardware, **batches)
        every = [*asked_for, times, utilization, *self._callbacks_that_show(session, utilization)]
        every += self._callbacks_that_save(session, asked_for)
        return utilization, make_callbacks(every, engine, source, verbose=0, epochs=self._options.epochs)

    @contextlib.contextmanager
    def _errors_named(self, session: Session) -> Iterator[None]:
        """Within the block, errors of a step say what to do about them, or that smaller batches may be tried."""
        model, replicas, finds = session.model, session.engine.replicas, self._options.until is not None
        with (
            smaller_batches_if_out_of_memory(model, self._workload, self.plan, replicas),
            causes_named(session.engine, self._workload, self.plan, seed=self._options.seed, finds=finds),
            session.source.failures_named(),
        ):
            yield

    def _know_steps(self, num_steps: int | None) -> None:
        """Takes the number of optimizer steps; a resumed run has that of the original, unless it becomes longer."""
        if self._num_steps is not None and not self._is_longer:
            return
        before, self._num_steps = self._num_steps, num_steps
        if self._is_longer and self._restored is not None:
            steps = {"num_steps": before, "more_steps": self._num_steps}
            check_same_when_longer(self._workload, self._options.scaling, **steps)

    def _compiled_model(self, workload: Workload, plan: Plan, *, num_steps: int | None) -> keras.Model:
        scaling, profile = self._options.scaling, self._options.profile
        self._know_steps(num_steps)
        if profile is not None:
            profile.check_length(self._num_steps)
        self._rates = None if scaling is None else ScaledRates(scaling, self._num_steps)
        with within_memory(workload.name, plan, self._hardware):
            return compiled_model(workload, plan, num_steps=self._num_steps, rates=self._rates)

    def _callbacks_that_show(self, session: Session, utilization: Utilization) -> list[keras.callbacks.Callback]:
        """Callbacks that write metrics; or the one that ends a search for a fault."""
        options, engine, steps = self._options, session.engine, session.source.num_batches
        counts = options.on_nonfinite != STOP or self.dropped
        every: list[keras.callbacks.Callback] = [
            MetricLines(self._run_dir, steps, utilization, engine.left_out if counts else None)
        ]
        if options.until is not None:
            return [*every, UntilFault(options.until)]
        if not engine.replicas.is_chief:
            return every
        every.append(TensorBoardScalars(self._run_dir.tensorboard, utilization))
        if options.profile is not None:
            profile = ProfileSteps(
                options.profile,
                self._run_dir.tensorboard,
                batches_per_step=self.plan.accumulation_steps,
                batches_before=self._restored[1]["step"] if self._restored else 0,
                batches_in_epoch=self._first_step,
            )
            every.append(profile)
        if options.verbose:
            length = {"epochs": options.epochs, "first_epoch": self._first_epoch, "steps_of_epoch": steps}
            every.append(TrainingProgress(**length, examples_per_step=session.source.batch_size))  # type: ignore[arg-type]
        return every

    def _callbacks_that_save(
        self, session: Session, others: list[keras.callbacks.Callback]
    ) -> list[keras.callbacks.Callback]:
        """The callback that saves checkpoints, and the last one, which stops the run."""
        interval, batches_per_step = self._options.checkpoint_interval, self.plan.accumulation_steps
        options = CheckpointOptions(
            interval=None if interval is None else interval * batches_per_step,
            keep=self._options.keep_checkpoints,
            num_steps=self._num_steps,
            accumulation_steps=batches_per_step,
            batch_spec=session.source.batch_spec,
            parts=self._parts,
            place_of_data=session.source.place_of_data,
        )
        checkpoints = Checkpoints(self._run_dir, session.engine, others, options, restored=self._restored)
        return [checkpoints, StopWhenAsked(self._signals, checkpoints, self._run_dir, session.engine.replicas)]

    def _final_metrics(self, session: Session, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        if session.validation is None:
            rows = self._run_dir.rows[-1] if self._run_dir.rows else {}
            return {k: v for k, v in rows.items() if k not in NO_METRICS}
        stops = [one for one in callbacks if isinstance(one, StopWhenAsked)]
        quiet = keras.callbacks.CallbackList(stops, model=session.model)
        try:
            return session.validation.evaluate(session.engine, quiet)
        finally:
            session.validation.close()


@contextlib.contextmanager
def _closed(callbacks: Sequence[keras.callbacks.Callback]) -> Iterator[None]:
    """Closes the callbacks that hold something open, also after an error."""
    try:
        yield
    finally:
        for callback in callbacks:
            if isinstance(callback, TrainingProgress | ProfileSteps | Checkpoints | TensorBoardScalars):
                callback.close()
