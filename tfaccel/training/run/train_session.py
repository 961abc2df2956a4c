"""One call to `train`, from building the model to saving it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import RunDirError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.training.accumulation import workload_schedule
from tfaccel.training.fit import callbacks_of, run_epochs
from tfaccel.training.run.changed_accumulation import in_parts, parts_per_batch, state_in_parts
from tfaccel.training.run.checkpoint import from_bytes, load_newest, to_bytes, write_state
from tfaccel.training.run.compiled_model import compiled_model, engine_options
from tfaccel.training.run.files import whole_file
from tfaccel.training.run.memory_check import check_memory, within_memory
from tfaccel.training.run.out_of_memory import BatchTooLarge, retry_text, smaller_batches_if_out_of_memory
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.tensorboard_scalars import TensorBoardScalars
from tfaccel.training.run.train_callbacks import Checkpoints, MetricLines, StepTimes, TrainingProgress
from tfaccel.training.run.workload_fit import build_for, callbacks_of_workload, check_batches
from tfaccel.training.run.workload_source import WorkloadSource
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.engine import Engine, engine_of
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.validation import Validation, validation_of
from tfaccel.training.workers.chief import only_chief_writes

logger = logging.getLogger("tfaccel")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a session."""

    history: dict[str, list[float | None]]
    final: dict[str, float]
    times: StepTimes


class TrainSession:
    """Builds the model of a workload under the current runtime, and trains it.

    Args:
        workload, plan, run_dir, epochs, seed, checkpoint_interval: as in `train`.
    """

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        run_dir: RunDir,
        *,
        epochs: int,
        seed: int,
        checkpoint_interval: int | None,
    ) -> None:
        self._workload = workload
        self.plan = plan
        self._run_dir = run_dir
        self._epochs = epochs
        self._interval = None if checkpoint_interval is None else checkpoint_interval * plan.accumulation_steps
        self._seed = seed
        self._begin_from(load_newest(run_dir.checkpoints) if run_dir.resumes else None)

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
        found = b"" if self._stored is None else to_bytes(*self._stored)
        content = replicas.bytes_of_chief(found)
        self._begin_from(from_bytes(content) if content else None)
        self._run_dir.take_rows(replicas.bytes_of_chief(self._run_dir.rows_before(self._first_epoch)))

    @property
    def place(self) -> str:
        """Where the session continues, in words."""
        if self._restored is None:
            return "from its start"
        return f"from the newest checkpoint (epoch {self._first_epoch + 1}, step {self._first_step + 1})"

    def _continue_within_epoch(self) -> None:
        """Checks the next rows if their batches are split from now on, and corrects a position behind the epoch's end.

        Raises:
            RunDirError: if smaller batches have the rows in another order.
        """
        if self._restored is None or self._parts == 1 or not self._first_step:
            return
        size = self.plan.global_batch_size // self.plan.accumulation_steps
        options = {"seed": self._seed, "epoch": self._first_epoch}
        parts = self._workload.train_data(size, **options)
        whole = self._workload.train_data(size * self._parts, **options)
        if not _have_equal_rows(
            whole.skip(self._first_step // self._parts).take(1), parts.skip(self._first_step).take(self._parts)
        ):
            raise RunDirError(
                f"The rows of workload {self._workload.name!r} come in another order, or are augmented differently, in "
                f"batches of {size}, so that an epoch cannot be continued with accumulation_steps="
                f"{self.plan.accumulation_steps}. Start over with it in a new run directory."
            )
        length = int(parts.cardinality())
        if 0 < length < self._first_step:
            self._restored[1]["step"] -= self._first_step - length
            self._restored[1]["step_in_epoch"] = self._first_step = length

    def run(
        self,
        strategy: tf.distribute.Strategy,
        callbacks: Sequence[keras.callbacks.Callback],
        *,
        hardware: Hardware,
        verbose: int,
    ) -> Outcome:
        """Trains under a strategy with the workload's and additional callbacks, then evaluates and saves."""
        replicas = Replicas(strategy)
        self._begin_with_chief(replicas)
        self._continue_within_epoch()
        self._source = WorkloadSource(
            self._workload,
            self.plan,
            replicas,
            seed=self._seed,
            epochs=self._epochs,
            start_epoch=self._first_epoch,
            start_step=self._first_step,
        )
        num_batches = self._source.num_batches
        if self._num_steps is None:
            self._num_steps = num_optimizer_steps(
                self._workload, self.plan, epochs=self._epochs, num_batches=num_batches
            )
        model = self._built_model(strategy, hardware)
        engine = engine_of(model, engine_options(self.plan))
        num_passes = self._epochs - self._first_epoch + 1  # one for the final metrics
        validation = validation_of(self._workload, self.plan, num_passes=num_passes)
        if validation is not None and not callable(validation.source):
            check_batches(model, validation.source.batch_spec, f"validation_data of workload {self._workload.name!r}")
        asked_for = callbacks_of_workload(self._workload)
        self._run_dir.writes = engine.replicas.is_chief
        if self._restored is not None:
            own = {name: array for name, array in self._restored[0].items() if not name.startswith("callback/")}
            own = state_in_parts(own, model, self._parts, num_replicas=engine.replicas.num_replicas)
            write_state(model, engine.replicas, own)
        self._run_dir.start(self.plan.to_json())
        times = StepTimes()
        container = self._callbacks([*asked_for, *callbacks], engine, times, verbose)
        try:
            with (
                smaller_batches_if_out_of_memory(model, self._workload, self.plan, engine.replicas),
                only_chief_writes(model, container.callbacks, engine.replicas),
            ):
                run_epochs(
                    engine,
                    self._source,
                    container,
                    validation,
                    epochs=self._epochs,
                    initial_epoch=self._first_epoch,
                    first_step=self._first_step,
                )
                final = self._final_metrics(engine, validation)
        finally:
            for callback in container.callbacks:
                if isinstance(callback, TrainingProgress):
                    callback.close()
            self._source.close()
        if engine.replicas.is_chief:
            with workload_schedule(model.optimizer), whole_file(self._run_dir.model_file) as temporary:
                model.save(temporary)
        engine.replicas.wait_for_all_workers()
        return Outcome(self._run_dir.history(), final, times)

    def _built_model(self, strategy: tf.distribute.Strategy, hardware: Hardware) -> keras.Model:
        name = self._workload.name
        with strategy.scope(), within_memory(name, self.plan, hardware):
            model = compiled_model(self._workload, self.plan, num_steps=self._num_steps)
        build_for(model, self._source.batch_spec, self._workload)
        check_memory(model, name, self.plan, hardware)
        return model

    def _callbacks(
        self, callbacks: list[keras.callbacks.Callback], engine: Engine, times: StepTimes, verbose: int
    ) -> keras.callbacks.CallbackList:
        steps = self._source.num_batches
        every: list[keras.callbacks.Callback] = [*callbacks, times, MetricLines(self._run_dir, steps)]
        if engine.replicas.is_chief:
            every.append(TensorBoardScalars(self._run_dir.tensorboard))
            if verbose:
                every.append(
                    TrainingProgress(
                        epochs=self._epochs,
                        first_epoch=self._first_epoch,
                        steps_of_epoch=steps,
                        examples_per_step=self._source.batch_size,
                    )
                )
        every.append(
            Checkpoints(
                self._run_dir,
                engine,
                callbacks,
                interval=self._interval,
                restored=self._restored,
                num_steps=self._num_steps,
                accumulation_steps=self.plan.accumulation_steps,
            )
        )
        return callbacks_of(every, engine, self._source, verbose=0, epochs=self._epochs)

    def _final_metrics(self, engine: Engine, validation: Validation | None) -> dict[str, float]:
        if validation is None:
            rows = self._run_dir.rows[-1] if self._run_dir.rows else {}
            return {k: v for k, v in rows.items() if k not in ("epoch", "step", "seconds")}
        quiet = keras.callbacks.CallbackList([], model=engine.model)
        try:
            return validation.evaluate(engine, quiet)
        finally:
            validation.close()


def _have_equal_rows(some: tf.data.Dataset, others: tf.data.Dataset) -> bool:
    """Whether the batches of two datasets have the same rows in the same order."""
    found = [[keras.tree.flatten(batch) for batch in dataset] for dataset in (some, others)]
    leaves = [[tf.concat(parts, axis=0) for parts in zip(*batches, strict=True)] for batches in found]
    return len(leaves[0]) == len(leaves[1]) and all(
        one.shape == other.shape and bool(tf.reduce_all(tf.equal(one, other)))
        for one, other in zip(*leaves, strict=True)
    )


def trained_within_memory(
    begin: Callable[[Plan], TrainSession],
    run: Callable[[TrainSession], Outcome],
    plan: Plan,
    run_dir: RunDir,
    runtime: Runtime,
) -> tuple[Plan, Outcome]:
    """Runs a session; if it runs out of memory, another one continues with smaller batches.

    The failed session's model and data are released, whatever its last step has changed. The new one starts from the
    newest checkpoint of the run, or over, with the same random generators: no example is lost or trained twice.

    Args:
        begin: makes the session of a plan.
        run: runs a session.
        plan: the plan to begin with.
        run_dir, runtime: the run's directory, and its runtime, entered.

    Returns:
        The plan that the run ended with, and its outcome.

    Raises:
        OutOfMemoryError: if the batch may not be split further.
    """
    failed: tuple[Plan, str] | None = None
    while True:
        session = begin(plan)
        plan = session.plan
        if failed is not None:
            logger.warning(retry_text(*failed, session.place, plan))
        try:
            return plan, run(session)
        except BatchTooLarge as error:
            failed, plan = (plan, error.detail), error.plan
        del session
        gc.collect()  # models and their graphs refer to each other
        run_dir.start_again()
        runtime.seed_generators()
