"""How many steps one graph call runs: about 0.4 seconds' worth, or one if a callback must see each batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import keras

from tfaccel.data.feeds import Feed
from tfaccel.training.private.private_api import traces_batches
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.overrides import replaces
from tfaccel.training.steps.step_graphs import WindowResult

WINDOW_SECONDS = 0.4
MAX_GROWTH = 16

_BATCH_HOOKS = {
    "train": ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
}


def needs_each_batch(callback: keras.callbacks.Callback, kind: str) -> bool:
    """Whether a callback acts on single batches, so that a window may not be longer than one execution.

    Keras callbacks whose batch hooks do nothing with their current settings do not count. A custom callback can set
    `tfaccel_windows = True` to have its batch hooks called once per window.
    """
    if getattr(callback, "tfaccel_windows", False):
        return False
    idle = _idle_class(callback, kind)
    return any(replaces(callback, idle, name) for name in _BATCH_HOOKS[kind])


def _idle_class(callback: keras.callbacks.Callback, kind: str) -> type[keras.callbacks.Callback]:
    """The Keras class whose batch hooks do nothing with the callback's settings."""
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
    """Chooses the number of steps for an engine's next graph call.

    A callback with a method `steps_to_boundary(done)` determines where a window must end.
    """

    def __init__(self, engine: Engine, kind: str, callbacks: list[keras.callbacks.Callback]) -> None:
        self.engine = engine
        self.watched = any(needs_each_batch(callback, kind) for callback in callbacks)
        per_execution = int(engine.model.steps_per_execution)
        self._fixed = per_execution if per_execution > 1 else None
        if self._fixed is None and (self.watched or engine.options.single_steps):
            self._fixed = engine.options.batches_per_step if kind == "train" else 1
        self._bounds = [c.steps_to_boundary for c in callbacks if hasattr(c, "steps_to_boundary")]
        self.kind = kind
        self._last = 0

    @property
    def loops(self) -> bool:
        """Whether steps run in a loop in the graph.

        TensorFlow optimizes graphs with and without a loop differently, so their results differ in the last bits. So
        measured times never affect this, only the number of steps per call.
        """
        return self._fixed is None or self._fixed > 1

    @property
    def is_fixed(self) -> bool:
        """Whether each window is one execution with a fixed number of steps."""
        return self._fixed is not None

    def next(self, done: int, limit: int | None) -> int:
        """Number of steps for the next call, after `done` steps of an epoch with at most `limit` steps."""
        length = self._fixed
        if length is None:
            known = self.engine.step_seconds.get(self.kind)
            wanted = 1 if known is None else max(1, round(WINDOW_SECONDS / known))
            length = min(wanted, self._last * MAX_GROWTH) if self._last else wanted
            # Up to the end of an optimizer step whose micro-batches run together: measured times never decide which do.
            number, left = self.engine.micro_batches() if self.kind == "train" else (1, 1)
            length = left + -(-max(0, length - left) // number) * number
        ends = [*(bound(done) for bound in self._bounds), None if limit is None else limit - done]
        return min([length, *filter(None, ends)])

    def ran(self, num_steps: int, seconds: float, *, traced: bool) -> None:
        """Updates the step time after a call; a call that also traced its graph does not count."""
        self._last = num_steps
        if traced or num_steps == 0:
            return
        step_seconds = seconds / num_steps
        times, replicas = self.engine.step_seconds, self.engine.replicas
        if replicas.num_workers > 1:  # all workers must choose the same length
            if self.kind not in times:
                times[self.kind] = 1e-6 * replicas.same_on_all_workers(lambda: max(1, int(step_seconds * 1e6)))
        else:
            # A call may have compiled for a new shape: one slow call must not shorten windows much.
            times[self.kind] = max(min(step_seconds, 1.5 * times.get(self.kind, step_seconds)), 1e-6)


def epoch_windows(
    length: WindowLength,
    feed: Feed,
    *,
    limit: int | None,
    expected: int | None,
    begin: Callable[[int], Any],
    done: int = 0,
    dropped: Collection[int] = (),
) -> Iterator[tuple[int, WindowResult]]:
    """Runs one epoch window by window; yields the number of its steps that are done, and the window's result.

    Args:
        limit: number of steps in the epoch; None for all batches of the feed.
        expected: how many steps that will be; None if it is not known.
        begin: called with the first step of each window before it runs.
        done: steps that were done before, if the epoch is resumed.
        dropped: steps whose batches are not used; each is a window of its own, without logs.
    """
    engine, kind = length.engine, length.kind
    due = () if feed.exhausted else engine.checks.due(kind, done, expected)
    while (limit is None or done < limit) and not feed.exhausted:
        begin(done)
        engine.prepare(kind, feed)
        if done in dropped:
            feed.drop()
            done += 1
            yield done, WindowResult(1, {}, left_out=(done - 1,))
            continue
        ends = [step for step in (limit, *dropped) if step is not None and step > done]
        end = done + length.next(done, min(ends, default=None))
        whole = False
        left_out: tuple[int, ...] = ()
        while not whole:
            started = time.perf_counter()
            stop = min([end, *(step for step in due if step > done)])
            num_steps = min(stop - done, engine.longest_window(kind, feed) or sys.maxsize)
            before = engine.checks.num_compared(kind)
            compared = engine.checks.compare(kind, feed, loop=length.loops, is_due=done in due)
            result = compared or engine.run(kind, feed, num_steps, loop=length.loops)
            is_compared = engine.checks.num_compared(kind) != before
            length.ran(result.num_steps, time.perf_counter() - started, traced=result.traced or is_compared)
            left_out += tuple(done + step for step in result.left_out)
            done += result.num_steps
            # A fixed-length execution may take several graph calls: a smaller last batch has a separate graph.
            whole = not length.is_fixed or done >= end or feed.exhausted or not result.loss_is_finite
        yield done, replace(result, left_out=left_out)
