"""How many steps one graph call runs: as many as last about half a second, one where a callback must see each batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import keras

from tfaccel.data.feeds import Feed
from tfaccel.training.private.private_api import traces_batches
from tfaccel.training.steps.engine import Engine, WindowResult

WINDOW_SECONDS = 0.4
MAX_GROWTH = 16

_BATCH_HOOKS = {
    "train": ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}


def needs_each_batch(callback: keras.callbacks.Callback, kind: str) -> bool:
    """Whether a callback acts on single batches, so that no window may be longer than one execution.

    Keras's own callbacks that have batch hooks, but do nothing in them as they are set, do not count. A callback of the
    user's can say `tfaccel_windows = True`: its batch hooks are then called once a window.
    """
    if getattr(callback, "tfaccel_windows", False):
        return False
    idle = _idle_class(callback, kind)
    return any(
        name in vars(callback) or getattr(type(callback), name) is not getattr(idle, name)
        for name in _BATCH_HOOKS[kind]
    )


def _idle_class(callback: keras.callbacks.Callback, kind: str) -> type[keras.callbacks.Callback]:
    """The class of Keras's whose batch hooks do nothing as the callback is set."""
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return keras.callbacks.ProgbarLogger
    for saver in (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore):
        if isinstance(callback, saver) and callback.save_freq == "epoch":
            return saver
    if isinstance(callback, keras.callbacks.TensorBoard) and callback.update_freq == "epoch":
        traces = kind == "train" and traces_batches(callback)
        return keras.callbacks.Callback if traces else keras.callbacks.TensorBoard
    return keras.callbacks.Callback


class WindowLength:
    """Chooses the number of steps of the next graph call of one engine.

    A callback with a method `steps_to_boundary(done)` gets a window that ends where it wants one to end.

    Args:
        engine: remembers the step time from call to call.
        kind: "train" or "test".
        callbacks: the callbacks that listen.
    """

    def __init__(self, engine: Engine, kind: str, callbacks: list[keras.callbacks.Callback]) -> None:
        self._engine = engine
        self.watched = any(needs_each_batch(callback, kind) for callback in callbacks)
        per_execution = int(engine.model.steps_per_execution)
        self._fixed = per_execution if per_execution > 1 else None
        if self._fixed is None and (self.watched or engine.options.single_steps):
            self._fixed = engine.options.batches_per_step if kind == "train" else 1
        self._bounds = [c.steps_to_boundary for c in callbacks if hasattr(c, "steps_to_boundary")]
        self._kind = kind
        self._last = 0

    @property
    def loops(self) -> bool:
        """Whether steps run in a loop in the graph.

        TensorFlow optimizes a graph with a loop and one without differently, so that their results differ in the last
        bits. Times therefore never decide this, only how many steps go into a call.
        """
        return self._fixed is None or self._fixed > 1

    @property
    def is_fixed(self) -> bool:
        """Whether each window is one execution, of a length that is asked for."""
        return self._fixed is not None

    def next(self, done: int, limit: int | None) -> int:
        """Steps of the next call, after `done` steps of an epoch of at most `limit`."""
        length = self._fixed
        if length is None:
            known = self._engine.step_seconds.get(self._kind)
            wanted = 1 if known is None else max(1, round(WINDOW_SECONDS / known))
            length = min(wanted, self._last * MAX_GROWTH) if self._last else wanted
        ends = [bound(done) for bound in self._bounds]
        ends += [] if limit is None else [limit - done]
        return min([length, *(end for end in ends if end)])

    def ran(self, num_steps: int, seconds: float, *, traced: bool) -> None:
        """Learns from a call: what it ran, how long that took; a call that traced its graph first does not count."""
        self._last = num_steps
        if traced or num_steps == 0:
            return
        step_seconds = seconds / num_steps
        times = self._engine.step_seconds
        if self._engine.replicas.num_workers > 1:  # all workers must choose alike
            if self._kind not in times:
                micros = self._engine.replicas.same_on_all_workers(lambda: max(1, int(step_seconds * 1e6)))
                times[self._kind] = micros * 1e-6
        else:
            # A call may have compiled for a new shape: one slow call must not change the length of windows much.
            times[self._kind] = max(min(step_seconds, 1.5 * times.get(self._kind, step_seconds)), 1e-6)


def epoch_windows(
    engine: Engine, kind: str, feed: Feed, *, length: WindowLength, limit: int | None, begin: Any
) -> Iterator[tuple[int, WindowResult]]:
    """Runs one epoch window by window; yields the number of steps run so far and the window's result.

    Args:
        engine, kind: what to run.
        feed: the batches of the epoch.
        length: decides how long windows are.
        limit: steps of the epoch, None for all batches of the feed.
        begin: called with the first step of each window before it runs.
    """
    done = 0
    engine.check_rows(kind, feed)
    while (limit is None or done < limit) and not feed.exhausted:
        begin(done)
        end = done + length.next(done, limit)
        whole = False
        while not whole:
            started = time.perf_counter()
            num_steps = min(end - done, engine.longest_window(kind, feed) or sys.maxsize)
            result = engine.run(kind, feed, num_steps, loop=length.loops)
            length.ran(result.num_steps, time.perf_counter() - started, traced=result.traced)
            done += result.num_steps
            # An execution that was asked for may take several graph calls: a smaller last batch has a graph of its own.
            whole = not length.is_fixed or done >= end or feed.exhausted or not result.loss_is_finite
        yield done, result
