"""The place of `fit` in its data: what a checkpoint says of it, and how to return there."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import (
    MAX_STATE_BYTES,
    IteratorFeed,
    ResumedPlace,
    changed_data,
    random_states,
    set_random_states,
)
from tfaccel.data.given_data import DATASET, checksum_of_rows
from tfaccel.data.private_pipelines import buffered_bytes, get_batch_size, known_to_vary, pipeline_classes, runs_python
from tfaccel.data.sources import ArraySource, DatasetSource
from tfaccel.errors import DataError
from tfaccel.training.front import Source
from tfaccel.training.run.checkpoint import Arrays

logger = logging.getLogger("tfaccel")

EXACT, REPLAY, RESTART = DATA_MODES = ("exact", "replay", "restart")

_CHOICE = (
    "The data cannot be resumed exactly. {}. Or choose: tfaccel.Resume(..., data='replay') if you know that they yield "
    "the same batches each time that the script is started; data='restart' to begin the data anew in the rest of an "
    "interrupted epoch."
)
_PYTHON = "The dataset runs Python code (a generator, `numpy_function` or `py_function`), which may do something else"


class FitData:
    """The data of one call of `fit`.

    Args:
        x: the first argument for data of `fit`.
        source: the source made of the data.
        mode: "exact", "replay" or "restart", see `Resume`.
        order_seed: of the order of arrays, if no global seed is set.

    Raises:
        DataError: with "exact", if the data cannot be resumed exactly.
    """

    def __init__(self, x: Any, source: Source, *, mode: str, order_seed: int) -> None:
        self.source = source
        self._x, self._mode, self._order_seed = x, mode, order_seed
        self._is_dataset = isinstance(x, tf.data.Dataset)
        self._saves_state = self._is_dataset and buffered_bytes(x) <= MAX_STATE_BYTES
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

    def place(self, step: int) -> tuple[dict[str, Any], Arrays]:
        """Where the next batch is, after `step` steps of the epoch: JSON values, and arrays."""
        place: dict[str, Any] = {"at": self.source.place(step), "step": step, "order_seed": self._order_seed}
        arrays = _prefixed("random", random_states())
        if isinstance(self.source, ArraySource):
            return place, arrays
        place |= {"first": self._first, "classes": pipeline_classes(self._x) if self._is_dataset else ""}
        feed = self.source.open_feed
        if feed is not None and place["at"]["batches"]:
            place["next"] = feed.checksum_of_next()
            arrays |= _prefixed("begin", self._begin or {})
            state = feed.state() if self._saves_state else None
            self._saves_state = state is not None
            arrays |= _prefixed("state", state or {})
        return place, arrays

    def go_to(self, place: dict[str, Any], arrays: Arrays, *, epoch: int) -> None:
        """Makes the next epoch continue at a place.

        Args:
            place, arrays: what `place` returned.
            epoch: epochs that are complete.

        Raises:
            DataError: if the data are not those of the stopped run.
        """
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
        fits = self._is_dataset and place["classes"] == pipeline_classes(self._x)
        state = _without_prefix("state", arrays) if fits else {}
        resumed = ResumedPlace(
            step=place["step"],
            batches=place["at"]["batches"],
            state=state or None,
            next_checksum=place.get("next"),
        )
        self.source.go_to(place["at"], resumed)
        first = getattr(self.source, "first_iterator", None)
        if self._is_dataset and first is not None:
            self._check_first(IteratorFeed(first).checksum_of_next())

    @contextlib.contextmanager
    def _around_feed(self) -> Iterator[None]:
        """While an epoch is opened: random states as they were then, where it is resumed; and checks of the data."""
        resumed, self._resumed = self._resumed, None
        place, arrays = resumed or ({}, {})
        began, stopped = _without_prefix("begin", arrays), _without_prefix("random", arrays)
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


def _prefixed(prefix: str, arrays: Arrays) -> Arrays:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def _without_prefix(prefix: str, arrays: Arrays) -> Arrays:
    return {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
