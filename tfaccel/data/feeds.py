"""The protocols of feeds and of the batches in them, as graph calls use them."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf


class GraphBatches(Protocol):
    """Global batches inside a graph; see `tfaccel.data.graph_batches`. A batch is what `fetch` returns."""

    def start(self, arguments: Any) -> Any:
        """The loop state before the first step."""

    def has_next(self, state: Any) -> tf.Tensor:
        """Whether there is another batch."""

    def fetch(self, arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]:
        """The global batch of one step, and the next loop state."""

    def num_rows(self, batch: Any) -> int | tf.Tensor:
        """Rows of the global batch: an int where it is known while tracing."""

    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any:
        """Rows `start` to `stop` of the global batch; all rows by default."""

    def with_checked_rows(self, batch: Any, num_replicas: int) -> Any:
        """The batch, after checking that its components have equally many rows."""


class CallFeed(Protocol):
    """What one graph call needs of a feed."""

    @property
    def batches(self) -> GraphBatches:
        """How batches are fetched and split."""

    @property
    def spec(self) -> Any:
        """The specs of any of its batches."""

    def signature(self, *, any_rows: bool = False) -> Any:
        """Specs of the arguments, for batches of any size with `any_rows`; None if an iterator's type is enough."""

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the next graph call, and the maximum number of its steps."""

    def finished(self, num_steps: int, state: Any) -> None:
        """Takes note of the steps that a graph call ran, and of the loop state that it ended with."""


class Feed(CallFeed, Protocol):
    """The batches of one epoch."""

    @property
    def exhausted(self) -> bool:
        """Whether every batch has been used."""

    def drop(self) -> None:
        """Passes over the next batch."""

    def peek(self) -> Any:
        """The next batch, as a nest of tensors, without using it."""

    def fingerprint(self) -> int | None:
        """A checksum of the first batch, once, if workers could read different data; else None."""
