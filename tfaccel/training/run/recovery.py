"""Trains a run to its end: again with smaller batches if memory is short, again without batches that spoil it.

A `TrainSession` is one attempt, from building the model to saving it. `train_until_done` makes as many as it takes.

When memory is short on one of several replicas, TensorFlow may show only that the others were cancelled. Then the steps
since the newest checkpoint are repeated, at most twice in a row, to the same results or to the error itself.

Weights that have been updated with gradients that are NaN or infinite are lost. So the steps since the newest
checkpoint are repeated once, with steps that leave out such a batch (`tfaccel.training.steps.left_out`) and then end:
the weights are those from before the batch, and tell what it does to them. To go on ("rollback"), they are repeated
once more, without the batch.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras

from tfaccel.data.feeds import ResumedPlace
from tfaccel.errors import DataError, NonFiniteLossError, PlanError, RunDirError, RunStopped
from tfaccel.files import whole_file
from tfaccel.planning.option_checks import NOT_ON_TPUS, ROLLBACK, SKIP, STOP
from tfaccel.planning.plan import Plan, override_flag
from tfaccel.planning.workload import Workload
from tfaccel.processes.heartbeat import note_first_step
from tfaccel.training.epochs import Validation, run_epochs
from tfaccel.training.evaluate import make_callbacks
from tfaccel.training.run.augmentation_place import place_for_run
from tfaccel.training.run.changed_run import (
    HOW_AGAIN,
    built_settings,
    check_built,
    check_same_when_longer,
    extended_schedule,
    in_parts,
    parts_per_batch,
    positions,
    step_in_split_epoch,
)
from tfaccel.training.run.checkpoint import checkpoint_of_chief
from tfaccel.training.run.checkpoint_files import load_newest
from tfaccel.training.run.checkpoints import CheckpointOptions, Checkpoints, restore_model, warned_unsaved_state
from tfaccel.training.run.faulty_batch import causes_named, input_errors_named
from tfaccel.training.run.out_of_memory import (
    BatchTooLarge,
    StepCancelled,
    check_memory,
    smaller_batches_if_out_of_memory,
    within_memory,
)
from tfaccel.training.run.result import say
from tfaccel.training.run.run_dir import EXTENDED, NO_METRICS, RunDir
from tfaccel.training.run.run_options import Run
from tfaccel.training.run.session import (
    Session,
    callbacks_of_workload,
    compiled_model,
    engine_options,
    refuse_restoring,
)
from tfaccel.training.run.stopping import StopWhenAsked
from tfaccel.training.run.time_limit import FITTED, TRIAL_EPOCHS, UNDECIDED, TrialEnded
from tfaccel.training.run.train_callbacks import (
    MetricLines,
    ProfileSteps,
    StepTimes,
    TensorBoardScalars,
    TrainingProgress,
)
from tfaccel.training.run.utilization import Utilization
from tfaccel.training.run.validation_beside import EpochRepeated, HeldCallbacks, ValidationBeside, device_here
from tfaccel.training.runtime import Runtime
from tfaccel.training.schedules import LaterRates, ScaledRates, workload_schedule
from tfaccel.training.steps.engine import Engine, EngineOptions
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lost_worker import lost_workers_named, only_chief_writes

logger = logging.getLogger("tfaccel")

MAX_CANCELLED = 2
MAX_ROLLBACKS = 10
_GO_ON = (
    'Start all workers again with the same command and resume="auto" (--resume=auto): training continues from the '
    "newest checkpoint in {}."
)


class NotRepeated(Exception):
    """Signals that repeating the steps has not repeated the fault."""


class UntilFault(keras.callbacks.Callback):
    """Stops a session that searches for a fault at the step where it occurred."""

    tfaccel_windows = True

    def __init__(self, position: tuple[int, int]) -> None:
        super().__init__()
        self._position, self._epoch = position, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes note of the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends after the step."""
        if (self._epoch + 1, batch + 1) >= self._position:
            raise NotRepeated


class TrainSession:
    """Builds the model of a run under its runtime, and trains it.

    Args:
        until: only repeat the steps up to this position (epoch and step, from 1) to find out why they failed.

    If the length of the run is not decided yet, the session is a trial: it measures, writes nothing, calls no callbacks
    but its own, and ends with `TrialEnded`.
    """

    def __init__(self, run: Run, plan: Plan, until: tuple[int, int] | None = None) -> None:
        self._is_trial = run.epochs == UNDECIDED
        if self._is_trial:
            run = replace(run, epochs=TRIAL_EPOCHS, profile=None)
        self._run, self.plan, self._until, self._run_dir = run, plan, until, run.directory
        self.dropped: frozenset[tuple[int, int]] = frozenset()  # positions of batches that are left out
        self._rates: ScaledRates | None = None
        newest = load_newest(self._run_dir.checkpoints, self._run_dir.identity) if self._run_dir.resumes else None
        self._begin_from(newest)

    def _begin_from(self, restored: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
        self._stored, self._parts = restored, 1
        if restored is not None:
            self._parts = parts_per_batch(restored[1], self.plan.accumulation_steps)
            restored = restored[0], in_parts(restored[1], self._parts)
        self._restored = restored
        position = restored[1] if restored else {"epoch": 0, "step_in_epoch": 0}
        self._first_epoch: int = self._run.epochs if position.get("stopped") else position["epoch"]
        self._first_step: int = position["step_in_epoch"]
        self._num_steps: int | None = position.get("num_steps")  # of the original run, even if `epochs` has changed

    @property
    def place(self) -> str:
        """Where the session continues, in words."""
        if self._restored is None:
            return "from its start"
        return f"from the newest checkpoint (epoch {self._first_epoch + 1}, step {self._first_step + 1})"

    def run(self) -> dict[str, Any]:
        """Trains with the workload's and additional callbacks, until a signal asks to stop; evaluates and saves.

        Returns:
            What a `TrainResult` says of the training itself, by its attributes.
        """
        times, limit = StepTimes(), self._run.limit
        if limit is not None:
            limit.begin_session(times=times if self._is_trial else None)
        with contextlib.closing(self._open()) as session:
            session.source.leave_out(self.dropped)
            check_memory(session.model, self._run.workload.name, self.plan, self._run.hardware)
            engine, source = session.engine, session.source
            utilization, container = self._begin(session, times)
            validation, calls = self._validation(session, container)
            with (
                smaller_batches_if_out_of_memory(session.model, self._run.workload, self.plan, engine.replicas),
                causes_named(engine, self._run.workload, self.plan, seed=self._run.seed, finds=self._until is not None),
                source.failures_named(),
                _closed(container.callbacks),
                contextlib.nullcontext() if validation is None else contextlib.closing(validation),
                only_chief_writes(session.model, container.callbacks, engine.replicas),
            ):
                try:
                    run_epochs(engine, source, calls, validation, session.span)
                except TrialEnded as ended:
                    ended.limit.decide(session, self._run)
                    raise
                final = self._final_metrics(engine, validation, container.callbacks)
            if engine.replicas.is_chief:
                self._run_dir.check_held()
                with workload_schedule(session.model.optimizer), whole_file(self._run_dir.model_file) as temporary:
                    session.model.save(temporary)
            workers = utilization.workers_of_run()
            engine.replicas.wait_for_all_workers()
            return {
                "history": self._run_dir.history(),
                "final": final,
                "examples_per_second": times.steps_per_second() * source.batch_size,
                "step_seconds": {k: v * self.plan.accumulation_steps for k, v in times.step_seconds().items()},
                "first_step_seconds": times.first_seconds,
                "performance": utilization.of_run(),
                "workers": workers,
                "learning_rate_scaling": None if self._rates is None else self._rates.to_json(),
                "proof": engine.checks.to_json(),
                "time_limit": None if limit is None else limit.to_json(session, self._run_dir.config),
            }

    def _validation(self, session: Session, container: keras.callbacks.CallbackList) -> tuple[Validation | None, Any]:
        """Validation after or beside the epochs, and the callbacks, which may wait for it."""
        run = self._run
        if run.validate_on is None or session.validation is None or self._is_trial or self._until is not None:
            return session.validation, container
        save = next(one.save_now for one in container.callbacks if isinstance(one, Checkpoints))
        held = HeldCallbacks(container, session, is_asked_to_stop=lambda: run.signals.asked is not None, save=save)
        return ValidationBeside(session, session.validation.source, device_here(run.validate_on, self.plan)), held

    def _open(self) -> Session:
        """The workload's model and data, at the checkpoint that the chief has read: workers need no shared disk."""
        replicas = Replicas(self._run.runtime.strategy)
        self._begin_from(checkpoint_of_chief(self._stored, replicas))
        left_out = json.loads(replicas.bytes_of_chief(json.dumps(self._run_dir.left_out()).encode()))
        self.dropped = positions(left_out, self.plan.accumulation_steps)
        longer = [self._run_dir.is_longer, self._run_dir.config.get(EXTENDED) or {}]
        self._is_longer, self._extended = json.loads(replicas.bytes_of_chief(json.dumps(longer).encode()))
        lines = replicas.bytes_of_chief(self._run_dir.rows_before(self._first_epoch))
        self._run_dir.take_rows(lines, num_epochs=self._restored[1]["epoch"] if self._restored else 0)
        if self._restored is not None and self._parts > 1 and self._first_step:  # batches are split from now on
            where = {"seed": self._run.seed, "epoch": self._first_epoch, "step": self._first_step}
            step = step_in_split_epoch(self._run.workload, self.plan, self._parts, **where)
            self._restored[1]["step"] -= self._first_step - step
            self._restored[1]["step_in_epoch"] = self._first_step = step
        return Session(
            self._run.workload,
            self.plan,
            self._run.runtime.strategy,
            seed=self._run.seed,
            epochs=self._run.epochs,
            planned_epochs=self._run.epochs,
            last_steps=self._run.last_steps,
            start_epoch=self._first_epoch,
            start=ResumedPlace.of(self._restored),
            options=self._engine_options(),
            make_model=self._compiled_model,
        )

    def _engine_options(self) -> EngineOptions:
        skips, finds = self._run.on_nonfinite == SKIP, self._until is not None
        if self.plan.strategy == "tpu" and self._run.on_nonfinite != STOP:
            raise PlanError(NOT_ON_TPUS)
        stops = not self._is_trial and (finds or not skips)  # a trial may diverge: its learning rate does not fall
        return replace(engine_options(self.plan), stop_at_non_finite_loss=stops, leaves_out=finds or skips)

    def _begin(self, session: Session, times: StepTimes) -> tuple[Utilization, keras.callbacks.CallbackList]:
        """Restores the model, starts the run directory, and makes the callbacks."""
        model, engine, source = session.model, session.engine, session.source
        engine.on_unsaved_state = warned_unsaved_state()
        note_first_step(0 if self._restored is None else self._restored[1]["step"])
        asked_for = [] if self._is_trial else [*callbacks_of_workload(self._run.workload), *self._run.callbacks]
        refuse_restoring(asked_for)
        if self._rates is not None:
            self._rates.check_callbacks(asked_for)
            self._rates.log()
        self._run_dir.writes = engine.replicas.is_chief and self._until is None and not self._is_trial
        check_built(self._run_dir, built_settings(model, num_batches=source.num_batches, batch_size=source.batch_size))
        restore_model(engine, self._restored, parts=self._parts)
        if self._run_dir.resumes and self._run_dir.writes and self._run.verbose:
            say(f"The run in {self._run_dir.shown} continues {self.place}.")
        self._run_dir.start(self.plan.to_json())
        batches = {"batch_spec": source.batch_spec, "examples_per_batch": source.batch_size}
        utilization = Utilization(engine, self.plan, self._run.hardware, **batches)
        every = [*asked_for, times, utilization, *self._callbacks_that_show(session, utilization)]
        every += self._callbacks_that_save(session, asked_for)
        return utilization, make_callbacks(every, engine, source, verbose=0, epochs=self._run.epochs)

    def _know_steps(self, num_steps: int | None) -> None:
        """Takes the number of optimizer steps; a resumed run has that of the original, unless it becomes longer."""
        run, extended = self._run, self._extended
        before = extended.get("steps", self._num_steps)
        if before is not None and (not self._is_longer or extended.get("epochs") == run.epochs):
            self._num_steps = before
        elif not self._is_longer or self._restored is None:
            self._num_steps = num_steps
        elif run.extend_schedule is not None:
            extended = extended_schedule(run.extend_schedule, before, num_steps, extended=extended, epochs=run.epochs)
            self._extended, self._num_steps = extended, extended["steps"]
            self._run_dir.config[EXTENDED], self._run_dir.built = extended, None
        elif extended:
            raise RunDirError(HOW_AGAIN.format(extended["how"]))
        else:
            check_same_when_longer(run.workload, run.scaling, num_steps=before, more_steps=num_steps)
            self._num_steps = num_steps

    def _compiled_model(self, workload: Workload, plan: Plan, *, num_steps: int | None) -> keras.Model:
        scaling, profile = self._run.scaling, self._run.profile
        self._know_steps(num_steps)
        if profile is not None:
            profile.check_length(self._num_steps)
        self._rates = None if scaling is None else ScaledRates(scaling, self._num_steps)
        with within_memory(workload.name, plan, self._run.hardware):
            offset = self._extended.get("offset")
            rates = LaterRates(offset, self._rates) if offset else self._rates
            return compiled_model(workload, plan, num_steps=self._num_steps, rates=rates)

    def _callbacks_that_show(self, session: Session, utilization: Utilization) -> list[keras.callbacks.Callback]:
        """Callbacks that write metrics; or the one that ends a search for a fault."""
        run, engine, steps = self._run, session.engine, session.source.num_batches
        left_out = engine.left_out if run.on_nonfinite != STOP or self.dropped else None
        every: list[keras.callbacks.Callback] = [MetricLines(self._run_dir, steps, utilization, left_out)]
        if self._until is not None:
            return [*every, UntilFault(self._until)]
        if self._is_trial or not engine.replicas.is_chief:
            return every
        every.append(TensorBoardScalars(self._run_dir.tensorboard, utilization))
        if run.profile is not None:
            profile = ProfileSteps(
                run.profile,
                self._run_dir.tensorboard,
                batches_per_step=self.plan.accumulation_steps,
                batches_before=self._restored[1]["step"] if self._restored else 0,
                batches_in_epoch=self._first_step,
            )
            every.append(profile)
        if run.verbose:
            length = {"epochs": run.epochs, "first_epoch": self._first_epoch, "steps_of_epoch": steps}
            every.append(TrainingProgress(**length, examples_per_step=session.source.batch_size))  # type: ignore[arg-type]
        return every

    def _callbacks_that_save(
        self, session: Session, others: list[keras.callbacks.Callback]
    ) -> list[keras.callbacks.Callback]:
        """The callback that saves checkpoints, and the last one, which stops the run."""
        interval, batches_per_step = self._run.checkpoint_interval, self.plan.accumulation_steps
        options = CheckpointOptions(
            interval=None if interval is None else interval * batches_per_step,
            keep=self._run.keep_checkpoints,
            num_steps=self._num_steps,
            accumulation_steps=batches_per_step,
            batch_spec=session.source.batch_spec,
            parts=self._parts,
            place_of_data=session.source.place_of_data,
        )
        checkpoints = Checkpoints(self._run_dir, session.engine, others, options, restored=self._restored)
        stops = StopWhenAsked(self._run.signals, checkpoints, self._run_dir, session.engine.replicas, self._run.limit)
        return [stops] if self._is_trial else [checkpoints, stops]

    def _final_metrics(
        self, engine: Engine, validation: Validation | None, callbacks: Sequence[keras.callbacks.Callback]
    ) -> dict[str, float]:
        if validation is None:
            rows = self._run_dir.rows[-1] if self._run_dir.rows else {}
            return {k: v for k, v in rows.items() if k not in NO_METRICS}
        stops = [one for one in callbacks if isinstance(one, StopWhenAsked)]
        return validation.evaluate(engine, keras.callbacks.CallbackList(stops, model=engine.model))


@contextlib.contextmanager
def _closed(callbacks: Sequence[keras.callbacks.Callback]) -> Iterator[None]:
    """Closes the callbacks that hold something open, also after an error."""
    try:
        yield
    finally:
        for callback in callbacks:
            if isinstance(callback, TrainingProgress | ProfileSteps | Checkpoints | TensorBoardScalars):
                callback.close()


@contextlib.contextmanager
def errors_of_run_named(workload: Workload, run_dir: RunDir, runtime: Runtime) -> Iterator[None]:
    """Within the block, TensorFlow's errors about damaged input or lost workers become errors that name them."""
    with input_errors_named(workload), lost_workers_named(runtime.strategy, _GO_ON.format(run_dir.shown)):
        yield


def train_until_done(run: Run, plan: Plan) -> tuple[Plan, dict[str, Any]]:
    """Trains a run in one session, or in several that continue one another.

    A failed session's model and data are released, regardless of what its last step changed. The next one starts from
    the newest checkpoint of the run, or over, with the same random generators: no example is lost or trained twice.

    Returns:
        The plan that the run ended with, and what `TrainSession.run` returned.

    Raises:
        OutOfMemoryError: if the batch may not be split further.
        NonFiniteLossError: if the run stops; the message names the cause, if it was found.
    """
    shortage: tuple[Plan, str] | None = None
    num_cancelled = 0
    if run.limit is not None:
        run = _with_length(run, of_chief=True)
    while True:
        fault: NonFiniteLossError | None = None
        plan = place_for_run(run.workload, plan, run.directory, run.runtime, epochs=max(1, run.epochs))
        session = TrainSession(run, plan)
        if shortage is not None:
            logger.warning(retry_text(*shortage, session.place, plan))
        shortage = None
        try:
            return plan, session.run()
        except TrialEnded:
            del session
            run = _with_length(run)
            _start_again(run, resumes=run.directory.resumes)
            continue
        except EpochRepeated:
            logger.info("A callback has changed what the next epoch depends on, whose first steps are repeated.")
        except BatchTooLarge as error:
            shortage, plan, num_cancelled = (plan, error.detail), error.plan, 0
        except StepCancelled as error:
            num_cancelled += 1
            if num_cancelled > MAX_CANCELLED:
                raise error.__cause__ or error from None
            logger.warning(
                "A replica was cancelled, because another one had failed; TensorFlow does not say how (often: out "
                "of memory). The steps since the newest checkpoint are repeated."
            )
        except NonFiniteLossError as error:
            fault, num_cancelled = error.with_traceback(None), 0
        dropped = session.dropped
        del session
        if fault is not None:
            if run.on_nonfinite == SKIP or fault.step is None:
                raise fault
            if not (fault.is_explained or plan.strategy == "tpu"):  # no step of a TPU can leave out its batch
                fault = _with_cause(fault, run, plan)
            if run.on_nonfinite != ROLLBACK:
                raise fault
            _leave_out(fault, dropped, run.directory, plan)
        _start_again(run)


def _start_again(run: Run, *, resumes: bool = True) -> None:
    gc.collect()  # models and their graphs refer to each other
    run.directory.start_again(resumes=resumes)
    run.runtime.seed_generators()


def _with_length(run: Run, *, of_chief: bool = False) -> Run:
    """The run with the length that was decided for its time, if it was; `of_chief`, for all workers as on the chief."""
    length: dict[str, Any] = {name: run.directory.config.get(name) for name in FITTED}
    if of_chief:
        length = json.loads(Replicas(run.runtime.strategy).bytes_of_chief(json.dumps(length).encode()))
        run.directory.config |= length
    return replace(run, **length)


def _with_cause(failed: NonFiniteLossError, run: Run, plan: Plan) -> NonFiniteLossError:
    """The error with its cause, after repeating the steps since the newest checkpoint; unchanged if it is not found."""
    logger.warning(
        f"Something became NaN or infinite by step {failed.step} of epoch {failed.epoch}. The steps since the newest "
        "checkpoint are repeated to find the cause; Ctrl-C ends this."
    )
    _start_again(run)
    writes = run.directory.writes
    try:
        TrainSession(run, plan, until=(failed.epoch or 1, failed.step or 1)).run()
    except NonFiniteLossError as found:
        return found.with_traceback(None) if found.step is not None else failed
    except (NotRepeated, BatchTooLarge, StepCancelled, DataError):  # DataError: a dataset that can be read once only
        pass
    except (KeyboardInterrupt, RunStopped):
        raise failed from None
    finally:
        run.directory.writes = writes
    return failed


def _leave_out(failed: NonFiniteLossError, dropped: frozenset[tuple[int, int]], run_dir: RunDir, plan: Plan) -> None:
    """Notes in the run directory that the batch is left out from now on."""
    position = (failed.epoch or 1) - 1, (failed.step or 1) - 1
    if len(dropped) >= MAX_ROLLBACKS or position in dropped:
        raise NonFiniteLossError(
            f"{failed} {len(dropped)} batches have already been left out of this run, so training stops; earlier "
            "checkpoints are left as they are."
        )
    run_dir.leave_out(*position, plan.accumulation_steps)
    logger.warning(f"{failed} Training goes back to the newest checkpoint, and goes on without that batch.")


def retry_text(before: Plan, detail: str, place: str, after: Plan) -> str:
    """The line that is logged when a run continues with smaller batches."""
    steps = after.accumulation_steps
    return (
        f"Out of memory with batches of {before.micro_batch_size} rows per replica ({detail}): training continues "
        f"{place} with {after.micro_batch_size} rows and accumulation_steps={steps}, so that the global batch stays "
        f"{after.global_batch_size}. To start with it: {override_flag('accumulation_steps')}={steps}"
    )
