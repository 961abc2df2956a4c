"""Batches of encoded texts as `tf.data`: rows of fixed-width arrays, in an order determined by seed and epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.epoch_positions import Shard, epoch_positions
from tfaccel.data.ordered_map import untuned
from tfaccel.data.pipeline import array_batches, joined
from tfaccel.errors import DataError

RandomChange = Callable[[Any, np.random.Generator], Any]


class TextBatches:
    """Batches of in-memory arrays.

    Args:
        train: the training examples: a nest of arrays (tuples and dictionaries) with one row per example.
        test: the test examples, likewise.
        change: `change(train, generator)` returns the randomly augmented training arrays of an epoch; None for no
            augmentation.

    Example:
        >>> batches = TextBatches(train=(np.zeros((8, 5)), np.arange(8)), test=(np.zeros((3, 5)), np.arange(3)))
        >>> tokens, labels = next(iter(batches.train(4, seed=0, epoch=0)))
        >>> tokens.shape, labels.shape
        (TensorShape([4, 5]), TensorShape([4]))
    """

    def __init__(self, train: Any, test: Any, *, change: RandomChange | None = None) -> None:
        self._train, self._test, self._change = train, test, change

    def train(
        self,
        global_batch_size: int,
        *,
        seed: int,
        epoch: int,
        start_step: int = 0,
        shard: Shard | None = None,
        num_epochs: int = 1,
    ) -> tf.data.Dataset:
        """Full batches of an epoch; each epoch drops different leftover examples.

        Takes the arguments and raises the errors of `tfaccel.data.pipeline.Pipeline.train`.
        """
        num_rows = num_examples(self._train)
        num_used = num_rows // global_batch_size * global_batch_size
        positions = epoch_positions(
            num_used or num_rows, global_batch_size, start_step=start_step, shard=shard, num_epochs=num_epochs
        )
        epochs = [self._epoch(seed, epoch + i, num_used) for i in range(num_epochs)]
        return array_batches(joined(epochs), positions)

    def _epoch(self, seed: int, epoch: int, num_used: int) -> Any:
        """The training arrays of an epoch, shuffled and augmented."""
        generator = np.random.default_rng([seed, epoch])
        rows = generator.permutation(num_examples(self._train))[:num_used]
        data = tf.nest.map_structure(lambda array: array[rows], self._train)
        return data if self._change is None else self._change(data, generator)

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test examples in order; the last batch may be smaller."""
        return _in_order(self._test, global_batch_size)


def num_examples(arrays: Any) -> int:
    """The number of rows of a nest of arrays."""
    return len(tf.nest.flatten(arrays)[0])


def _in_order(arrays: Any, global_batch_size: int) -> tf.data.Dataset:
    """Batches of arrays in order; the last one may be smaller."""
    with tf.device("/CPU:0"):
        return untuned(tf.data.Dataset.from_tensor_slices(arrays).batch(global_batch_size))


class TextPieces:
    """Batches of sequences from a long text: token ids, and for each the id of the next token.

    Args:
        train: the token ids of the training text, int32.
        test: the token ids of the test text.
        length: tokens in a sequence.
        stride: tokens from the start of one training sequence to the next; below `length` they overlap. Test
            sequences do not overlap.

    Raises:
        DataError: if a text is not longer than one sequence.

    Example:
        >>> pieces = TextPieces(np.arange(100, dtype="int32"), np.arange(20, dtype="int32"), length=8, stride=4)
        >>> tokens, following = next(iter(pieces.test(2)))
        >>> tokens[1].numpy().tolist(), following[1, -1].numpy()
        ([8, 9, 10, 11, 12, 13, 14, 15], np.int32(16))
    """

    def __init__(self, train: np.ndarray, test: np.ndarray, *, length: int, stride: int) -> None:
        for tokens in (train, test):
            if len(tokens) <= length:
                raise DataError(f"A text must have more than {length} tokens. Received: {len(tokens)}.")
        self._train, self._test, self._length, self._stride = train, test, length, stride

    def train(
        self, global_batch_size: int, *, seed: int, epoch: int, start_step: int = 0, shard: Shard | None = None
    ) -> tf.data.Dataset:
        """One epoch of full batches; each epoch starts at a random offset below `stride`.

        Takes the arguments and raises the errors of `tfaccel.data.pipeline.Pipeline.train`.
        """
        generator = np.random.default_rng([seed, epoch])
        num_pieces = (len(self._train) - self._length - 1) // self._stride
        positions = epoch_positions(num_pieces, global_batch_size, start_step=start_step, shard=shard, noun="pieces")
        starts = generator.integers(self._stride) + self._stride * generator.permutation(num_pieces)
        with tf.device("/CPU:0"):
            return untuned(tf.data.Dataset.from_tensor_slices(self._pieces(self._train, starts[positions])))

    def test(self, global_batch_size: int) -> tf.data.Dataset:
        """The test text, sequence by sequence; the remainder is dropped."""
        starts = np.arange(0, len(self._test) - self._length, self._length)
        return _in_order(self._pieces(self._test, starts), global_batch_size)

    def _pieces(self, tokens: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = starts[..., np.newaxis] + np.arange(self._length)
        return tokens[places], tokens[places + 1]
