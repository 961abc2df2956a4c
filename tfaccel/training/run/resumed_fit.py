"""A call of `fit` with a `Resume`: the same checkpoints, lock and signals as a run of `train`."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.sources import ArraySource
from tfaccel.errors import ClusterError, RunStopped, WorkloadError
from tfaccel.processes.heartbeat import note_first_step
from tfaccel.processes.launched import end_uncaught_with_status
from tfaccel.training.epochs import make_callbacks, run_epochs
from tfaccel.training.inputs import new_order_seed
from tfaccel.training.private import private_tensorflow
from tfaccel.training.run.built_run import built_settings, check_built
from tfaccel.training.run.checkpoint import checkpoint_of_chief
from tfaccel.training.run.checkpoint_files import load_newest
from tfaccel.training.run.checkpoints import CheckpointOptions, Checkpoints, restore_model
from tfaccel.training.run.fit_data import FitData
from tfaccel.training.run.resume import Resume
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.shown_run import say
from tfaccel.training.run.stop_signals import StopSignals, grace_seconds
from tfaccel.training.run.stopping import StopWhenAsked
from tfaccel.training.run.unsaved_state import refused_unsaved_state
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.validation import Validation
from tfaccel.training.workers.chief import only_chief_writes
from tfaccel.training.workers.lost_worker import lost_workers_named

logger = logging.getLogger("tfaccel")

# The directories that models and `Resume`s have trained to the end with, in this process.
_ended: weakref.WeakKeyDictionary[Any, set[Path]] = weakref.WeakKeyDictionary()
_ended_here: set[Path] = set()

_AGAIN = "start the same script again"
_CONTINUES = "The same script, started again, continues from the newest checkpoint."
_WORKERS_AGAIN = "Start all workers again with the same script: training continues from the newest checkpoint in {}."


class ResumedFit:
    """What `fit` does with a `Resume`: finds the newest checkpoint, and trains from there.

    Args:
        resume: the callback.
        replicas: of the model.

    Raises:
        RunDirError: if the directory holds anything else, or only broken checkpoints.
    """

    def __init__(self, resume: Resume, replicas: Replicas) -> None:
        self._resume = resume
        self._checkpoints: Checkpoints | None = None
        self._where = ""  # where training continues, in words
        self._directory = RunDir(resume.directory, {"training": "tfaccel.fit"}, resume="auto")
        self._directory.resume_by = self._directory.continue_by = _AGAIN
        directory = self._directory
        found = load_newest(directory.checkpoints, directory.identity) if directory.resumes else None
        self._restored = checkpoint_of_chief(found, replicas)
        self.order_seed: int = (
            new_order_seed(replicas) if self._restored is None else self._restored[1]["data"]["order_seed"]
        )

    def run(
        self,
        engine: Engine,
        data: FitData,
        callbacks: list[keras.callbacks.Callback],
        validation: Validation | None,
        *,
        verbose: int | str,
        epochs: int,
        initial_epoch: int,
    ) -> keras.callbacks.History:
        """Trains, from the newest checkpoint on if there is one.

        Raises:
            RunStopped, KeyboardInterrupt: if a signal asks for it; see `StopWhenAsked`.
            WorkloadError: if the model or the `Resume` has already trained to the end with this directory.
        """
        model, directory = engine.model, self._directory
        _refuse_second_call(model, directory.path)
        directory.writes = engine.replicas.is_chief
        check_built(directory, _built(model, data))
        with contextlib.ExitStack() as stack:
            stack.enter_context(directory.in_use())
            directory.start(None)
            stack.enter_context(self._nothing_kept_without_a_step())
            stack.enter_context(lost_workers_named(engine.replicas.strategy, _WORKERS_AGAIN.format(directory.path)))
            signals = stack.enter_context(StopSignals(grace_seconds(), _CONTINUES))
            first_epoch, first_step = self._restore(engine, data, epochs=epochs, initial_epoch=initial_epoch)
            if self._where and verbose and engine.replicas.is_chief:
                say(self._where)
            every = self._callbacks(engine, data, callbacks, signals, initial_epoch=initial_epoch)
            container = make_callbacks(every, engine, data.source, verbose=verbose, epochs=epochs)
            stack.callback(every[-2].close)
            look = refused_unsaved_state(model, self._resume.state)
            stack.enter_context(instance_attributes(engine, {"on_unsaved_state": look}))
            stack.enter_context(only_chief_writes(model, container.callbacks, engine.replicas))
            try:
                history = run_epochs(
                    engine,
                    data.source,
                    container,
                    validation,
                    epochs=epochs,
                    initial_epoch=first_epoch,
                    first_step=first_step,
                )
            except RunStopped:
                end_uncaught_with_status()
                raise
            engine.replicas.wait_for_all_workers()
            for one in (model, self._resume):
                _ended.setdefault(one, set()).add(directory.path.resolve())
            _ended_here.add(directory.path.resolve())
            return history

    @contextlib.contextmanager
    def _nothing_kept_without_a_step(self) -> Iterator[None]:
        """Empties a new directory if an error of the model or data ends training before its first step.

        The script may then be started again with another model.
        """
        try:
            yield
        except (RunStopped, ClusterError, OSError, tf.errors.OpError):
            raise
        except Exception:
            trained = self._restored is not None or (self._checkpoints is not None and self._checkpoints.step > 0)
            if self._directory.writes and not trained and self._directory.is_own():
                shutil.rmtree(self._directory.checkpoints, ignore_errors=True)
                (self._directory.path / "config.json").unlink(missing_ok=True)
            raise

    def _restore(self, engine: Engine, data: FitData, *, epochs: int, initial_epoch: int) -> tuple[int, int]:
        """Puts model and data where the newest checkpoint was; returns the epoch, and the steps of it that are done."""
        if self._restored is None:
            return initial_epoch, 0
        arrays, position = self._restored
        restore_model(engine, self._restored)
        note_first_step(position["step"])
        epoch, step = position["epoch"], position["step_in_epoch"]
        if position["stopped"] or epoch >= epochs:
            _refuse_second_call(self._resume, self._directory.path)
            self._where = f"The training in {self._directory.path} is complete after epoch {epoch}."
            if self._directory.path.resolve() in _ended_here:
                logger.warning(self._where)
            return epochs, 0
        place = {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith("data/")}
        data.go_to(position["data"], place, epoch=epoch - initial_epoch)
        self._where = f"Training continues in epoch {epoch + 1} after step {step}: {self._directory.path}."
        return epoch, step

    def _callbacks(
        self,
        engine: Engine,
        data: FitData,
        callbacks: list[keras.callbacks.Callback],
        signals: StopSignals,
        *,
        initial_epoch: int,
    ) -> list[keras.callbacks.Callback]:
        """All callbacks, in order: the last but one saves, and the last one stops training."""
        known = any(isinstance(one, keras.callbacks.History) for one in callbacks)
        others = callbacks if known else [*callbacks, keras.callbacks.History()]
        interval = None
        if isinstance(self._resume.save_freq, int):
            per_execution = int(engine.model.steps_per_execution)
            interval = math.ceil(self._resume.save_freq / per_execution) * per_execution
        options = CheckpointOptions(
            interval=interval,
            keep=self._resume.keep,
            first_epoch=initial_epoch,
            at_begin=True,
            batch_spec=data.source.batch_spec,
            place_of_data=data.place,
        )
        self._checkpoints = checkpoints = Checkpoints(self._directory, engine, others, options, restored=self._restored)
        return [*others, checkpoints, StopWhenAsked(signals, checkpoints, self._directory, engine.replicas)]


def _refuse_second_call(one: Any, directory: Path) -> None:
    """Raises WorkloadError if a model or a `Resume` has already trained to the end with a directory."""
    if directory.resolve() in _ended.get(one, ()):
        what = "tfaccel.Resume" if isinstance(one, Resume) else "model"
        raise WorkloadError(
            f"This {what} has been through a call of `fit` with the checkpoints in {directory}, which is complete: a "
            "second call would begin where the first one ended, and train less than asked, or nothing. Give each call "
            'of `fit` a directory of its own: Resume("…/phase_1"), Resume("…/phase_2").'
        )


def _built(model: keras.Model, data: FitData) -> dict[str, Any]:
    """What must be the same when training continues."""
    source = data.source
    size = source.global_batch_size if isinstance(source, ArraySource) else 0
    built = built_settings(model, num_batches=source.steps_per_epoch or source.num_batches, batch_size=size)
    return {**built, "the data": data.identity, "the global seed": private_tensorflow.global_seed()}
