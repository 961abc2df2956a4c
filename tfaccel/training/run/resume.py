"""`Resume`: the callback with which `tfaccel.fit` continues after any interruption; and what `fit` does with it.

`FitData` is the place of `fit` in its data: what a checkpoint says of it, and how to return there.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.argument_types import checks_types
from tfaccel.data.feeds import (
    IteratorFeed,
    ResumedPlace,
    changed_data,
    may_save_state,
)
from tfaccel.data.given_batches import DATASET
from tfaccel.data.given_data import checksum_of_rows
from tfaccel.data.grain_batches import is_grain, saved_state
from tfaccel.data.private_pipelines import get_batch_size, known_to_vary, pipeline_classes, runs_python
from tfaccel.data.sources import ArraySource, DatasetSource
from tfaccel.errors import ClusterError, DataError, RunDirError, RunStopped, WorkloadError
from tfaccel.known_names import did_you_mean, suggests_names
from tfaccel.local_path import local_path
from tfaccel.planning.option_checks import check_counts
from tfaccel.processes.heartbeat import note_first_step
from tfaccel.processes.launched import end_uncaught_with_status
from tfaccel.remote import is_remote
from tfaccel.training.epochs import Span, Validation, run_epochs
from tfaccel.training.evaluate import make_callbacks
from tfaccel.training.front import Source, new_order_seed
from tfaccel.training.private import private_tensorflow
from tfaccel.training.run.changed_run import built_settings, check_built
from tfaccel.training.run.checkpoint import Arrays, checkpoint_of_chief
from tfaccel.training.run.checkpoint_files import load_newest
from tfaccel.training.run.checkpoints import (
    RANDOM,
    STATE_MODES,
    CheckpointOptions,
    Checkpoints,
    refused_unsaved_state,
    restore_model,
)
from tfaccel.training.run.python_state import random_states, set_random_states, with_prefix, without_prefix
from tfaccel.training.run.result import say
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.stop_signals import StopSignals, grace_seconds
from tfaccel.training.run.stopping import StopWhenAsked
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.lost_worker import lost_workers_named, only_chief_writes

EXACT, REPLAY, RESTART = DATA_MODES = ("exact", "replay", "restart")

_CHOICE = (
    "The data cannot be resumed exactly. {}. Or choose: tfaccel.Resume(..., data='replay') if you know that they yield "
    "the same batches each time that the script is started; data='restart' to begin the data anew in the rest of an "
    "interrupted epoch."
)
_NO_STATE = (
    "The iterator of x ({}) has no state that can be saved: let its `get_state` return what JSON can hold, for "
    "`set_state`"
)
_PYTHON = "The dataset runs Python code (a generator, `numpy_function` or `py_function`), which may do something else"

logger = logging.getLogger("tfaccel")

# The directories that models and `Resume`s have trained to the end with, in this process.
_ended: weakref.WeakKeyDictionary[Any, set[Path]] = weakref.WeakKeyDictionary()
_ended_here: set[Path] = set()
_AGAIN = "start the same script again"
_CONTINUES = "The same script, started again, continues from the newest checkpoint."
_WORKERS_AGAIN = "Start all workers again with the same script: training continues from the newest checkpoint in {}."
_ELSEWHERE = (
    "tfaccel.Resume works with tfaccel.fit(model, ..., callbacks=[...]), which knows what Model.fit hides: where it "
    "is in the data. Call tfaccel.fit; tfaccel.train needs no such callback, since it saves checkpoints in "
    "its run_dir."
)


class FitData:
    """The data of one call of `fit`.

    Args:
        x: the first argument for data of `fit`.
        order_seed: of the order of arrays, if no global seed is set.
    """

    def __init__(self, x: Any, source: Source, *, mode: str, order_seed: int) -> None:
        self.source = source
        self._x, self._mode, self._order_seed = x, mode, order_seed
        self._is_dataset = isinstance(x, tf.data.Dataset)
        is_read_here = is_grain(x) and isinstance(source, DatasetSource)
        self._pipeline = x if self._is_dataset else getattr(source, "dataset", None) if is_read_here else None
        self._saves_state = self._pipeline is not None and may_save_state(self._pipeline)
        self._begin: Arrays | None = None  # random states before the current iterator was made
        self._first: int | None = None  # checksum of the first batch of the run
        self._resumed: tuple[dict[str, Any], Arrays] | None = None
        if mode == EXACT and not isinstance(source, ArraySource):
            reason = self._doubt()
            if reason:
                raise DataError(_CHOICE.format(reason))
        source.around_feed = self._around_feed

    def _doubt(self) -> str:
        """Why the data may not be the same when they are read again; "" if there is no reason."""
        if self._is_dataset:
            return known_to_vary(self._x) or (_PYTHON if runs_python(self._x) else "")
        if isinstance(self._x, keras.utils.PyDataset):
            return _doubt_of_py_dataset(self._x)
        if self._pipeline is not None:
            return "" if saved_state(iter(self._x)) else _NO_STATE.format(type(self._x).__name__)
        if inspect.isgenerator(self._x) or hasattr(self._x, "__next__"):
            return f"x is a generator or an iterator ({type(self._x).__name__}): pass a PyDataset or arrays"
        if isinstance(self.source, DatasetSource) and known_to_vary(self.source.dataset):
            return f"x is shuffled in a way that cannot be repeated ({type(self._x).__name__}): pass `shuffle=False`"
        return (
            "" if _are_arrays(self._x) else f"x is a {type(self._x).__name__}, which is Python code: pass a PyDataset"
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when training is resumed, as far as it is known without reading the data."""
        if isinstance(self.source, ArraySource):
            named = enumerate(leaf for leaf in keras.tree.flatten(self.source.arrays) if leaf is not None)
            checksum = checksum_of_rows((str(number), np.asarray(leaf)) for number, leaf in named)
            return {"kind": "arrays", "global_batch_size": self.source.global_batch_size, "checksum": checksum}
        elements = {"elements": str(self.source.batch_spec)}
        if self._is_dataset:
            return {"kind": DATASET, "global_batch_size": get_batch_size(self._x), **elements}
        return {"kind": type(self._x).__name__, **elements}

    @property
    def _classes(self) -> str:
        return "" if self._pipeline is None else pipeline_classes(self._pipeline)

    def place(self, step: int) -> tuple[dict[str, Any], Arrays]:
        """Where the next batch is, after `step` steps of the epoch: JSON values, and arrays."""
        place: dict[str, Any] = {"at": self.source.place(step), "step": step, "order_seed": self._order_seed}
        arrays: Arrays = {}
        if isinstance(self.source, ArraySource):
            return place, arrays
        place |= {"first": self._first, "classes": self._classes}
        feed = self.source.open_feed
        if feed is not None and place["at"]["batches"]:
            place["next"] = feed.checksum_of_next()
            arrays |= with_prefix("begin", self._begin or {})
            state = feed.state() if self._saves_state else None
            self._saves_state = state is not None
            arrays |= with_prefix("state", state or {})
        return place, arrays

    def go_to(self, place: dict[str, Any], arrays: Arrays, *, epoch: int) -> None:
        """Makes the next epoch continue at a place."""
        self._resumed = place, arrays
        if isinstance(self.source, ArraySource):
            self.source.go_to(place["at"])
            return
        self._first = place["first"]
        if self._mode == RESTART:
            if place["step"]:
                logger.info("The rest of epoch %d begins anew with the data, after %d steps.", epoch + 1, place["step"])
            self.source.go_to({**place["at"], "iterators": 0}, ResumedPlace(step=place["step"], batches=0))
            return
        if isinstance(self._x, keras.utils.PyDataset):
            for _ in range(epoch):
                self._x.on_epoch_begin()
                self._x.on_epoch_end()
        fits = self._pipeline is not None and place["classes"] == self._classes
        state = without_prefix("state", arrays) if fits else {}
        resumed = ResumedPlace(
            step=place["step"], batches=place["at"]["batches"], state=state or None, next_checksum=place.get("next")
        )
        self.source.go_to(place["at"], resumed)
        first = getattr(self.source, "first_iterator", None)
        if self._pipeline is not None and first is not None:
            self._check_first(IteratorFeed(first).checksum_of_next())

    @contextlib.contextmanager
    def _around_feed(self) -> Iterator[None]:
        """While an epoch is opened: random states as they were then, where it is resumed; and checks of the data."""
        resumed, self._resumed = self._resumed, None
        place, arrays = resumed or ({}, {})
        began, stopped = without_prefix("begin", arrays), without_prefix(RANDOM, arrays)
        # The run that was stopped had opened its iterator before, or was about to: opening may draw random numbers.
        had_opened = bool(began or place.get("step")) and self._mode != RESTART
        if resumed is not None and (began or not had_opened):
            set_random_states(began if had_opened else stopped)
        before, open_before = random_states(), getattr(self.source, "open_feed", None)
        yield
        feed = getattr(self.source, "open_feed", None)
        if feed is not None and feed is not open_before:
            self._begin = before
            self._check_opened(feed, place)
        if had_opened:
            set_random_states(stopped)

    def _check_opened(self, feed: IteratorFeed, place: dict[str, Any]) -> None:
        if self._first is None:  # the run begins, or continues from where it began
            self._first = feed.checksum_of_next()
        elif place and not feed.num_used and not isinstance(self.source, DatasetSource) and self._mode != RESTART:
            self._check_first(feed.checksum_of_next())  # all passes are alike

    def _check_first(self, checksum: int | None) -> None:
        if self._first is not None and checksum != self._first:
            raise changed_data("their first batch differs")


def _doubt_of_py_dataset(dataset: keras.utils.PyDataset) -> str:
    own, plain = type(dataset), keras.utils.PyDataset
    hooks = [name for name in ("on_epoch_begin", "on_epoch_end") if getattr(own, name) is not getattr(plain, name)]
    if hooks:
        return f"{own.__name__} defines {hooks[0]}, which may change its batches: let them depend on the index alone"
    try:
        first, second = (keras.tree.flatten(dataset[0]) for _ in range(2))
        alike = all(_same(*pair) for pair in zip(first, second, strict=True))
    except ValueError:
        alike = False
    return "" if alike else f"{own.__name__}[0] differs when it is read twice: let batches depend on the index alone"


def _same(some: Any, others: Any) -> bool:
    left, right = np.asarray(some), np.asarray(others)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def _are_arrays(x: Any) -> bool:
    return all(hasattr(leaf, "shape") for leaf in keras.tree.flatten(x))


@suggests_names
@checks_types(WorkloadError)
class Resume(keras.callbacks.Callback):
    """Saves the training state of `tfaccel.fit`, and continues from it when the script is started again.

    After a crash, SIGKILL or a power failure, in the middle of an epoch too, the same script ends with the same
    weights, to the last bit, and the same history as without the interruption. Saved are weights, optimizer, seeds,
    metrics, history, what the other callbacks remember (best value, patience) and the position in the data. When
    training is complete, `fit` restores its result and returns at once, so that the script can be repeated as a whole.

    SIGTERM and Ctrl-C stop training after the steps in progress, with a checkpoint; a script that does not catch
    `RunStopped` ends with status 138. Checkpoints are written in a thread. With several workers, the chief writes.

    Use a directory of its own for each call of `fit`, as for the two phases of fine-tuning. Build the model and the
    data alike in each start; a directory with the state of another model, batch size or data is refused, with what
    differs.

    Args:
        directory: for the checkpoints; created if it does not exist. It may be an address such as s3://bucket/run.
        save_freq: "epoch" for a checkpoint after each epoch (or after several if epochs are so short that saving would
            take more than 2 % of the time), or a number of batches between checkpoints.
        keep: number of the newest checkpoints to keep.
        data: how the data continue. "exact": the same batches as without an interruption, or an error before training
            if that is not certain. "replay": you know that the data yield the same batches in each start, for example
            a generator with a seed of its own: batches before the position are read again. "restart": the rest of an
            interrupted epoch begins anew with the data, so some examples are repeated or left out.
        state: what the training step keeps that no checkpoint holds: that of `tf.random.normal` and the like (the state
            of `keras.random` is saved), variables that the model does not track, Python code. "exact": an error before
            the first step. "restart": it begins anew, so results differ from those without an interruption.

    Raises:
        RunDirError: by `fit`, if the directory holds something else, is in use by another process, or cannot be
            written.
        DataError: by `fit`, before training, if the data cannot be resumed exactly; the message offers the choice.
        WorkloadError: by `fit`, before the first step, if the step cannot be resumed exactly, or if the model or this
            object has already been through a call of `fit` with the directory.
        RunStopped: by `fit`, after SIGTERM.
        WorkloadError: for invalid arguments.

    Example:

    >>> import tempfile, keras, numpy as np, tfaccel
    >>> x = np.ones((64, 4))
    >>> def script(folder):
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     resume = tfaccel.Resume(folder, save_freq=1)
    ...     return tfaccel.fit(model, x, x[:, :1], epochs=3, callbacks=[resume], verbose=0).history
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     history = script(folder)
    ...     again = script(folder)  # nothing left to do
    >>> again == history
    True
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        *,
        keep: int = 2,
        data: str = EXACT,
        state: str = EXACT,
    ) -> None:
        super().__init__()
        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
            raise WorkloadError(f"`directory` must be the path of a directory. Received: directory={directory!r}.")
        if save_freq != "epoch":
            if isinstance(save_freq, str):
                raise WorkloadError(
                    f'`save_freq` must be "epoch" or a number of batches. Received: save_freq={save_freq!r}.'
                    f"{did_you_mean(save_freq, ('epoch',))}"
                )
            check_counts(save_freq=save_freq)
        check_counts(keep=keep)
        if data not in DATA_MODES:
            hint = did_you_mean(data, DATA_MODES) if isinstance(data, str) else ""
            raise WorkloadError(f'`data` must be "exact", "replay" or "restart". Received: data={data!r}.{hint}')
        if state not in STATE_MODES:
            hint = did_you_mean(state, STATE_MODES) if isinstance(state, str) else ""
            raise WorkloadError(f'`state` must be "exact" or "restart". Received: state={state!r}.{hint}')
        self.directory = directory if is_remote(directory) else local_path(directory, RunDirError)
        self.save_freq, self.keep, self.data, self.state = save_freq, keep, data, state

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses to run within another training loop than `tfaccel.fit`, which does not call it."""
        raise WorkloadError(_ELSEWHERE)


class ResumedFit:
    """What `fit` does with a `Resume`: finds the newest checkpoint, and trains from there."""

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
            stack.enter_context(lost_workers_named(engine.replicas.strategy, _WORKERS_AGAIN.format(directory.shown)))
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
                history = run_epochs(engine, data.source, container, validation, Span(epochs, first_epoch, first_step))
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
                self._directory.send()
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
            self._where = f"The training in {self._directory.shown} is complete after epoch {epoch}."
            if self._directory.path.resolve() in _ended_here:
                logger.warning(self._where)
            return epochs, 0
        place = with_prefix(RANDOM, without_prefix(RANDOM, arrays)) | without_prefix("data", arrays)
        data.go_to(position["data"], place, epoch=epoch - initial_epoch)
        self._where = f"Training continues in epoch {epoch + 1} after step {step}: {self._directory.shown}."
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
