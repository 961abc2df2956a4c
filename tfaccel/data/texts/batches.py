"""Batches of encoded texts as `tf.data`: rows of fixed-width arrays, in an order determined by seed and epoch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.epochs import InMemory, RandomChange
from tfaccel.errors import DataError


class TextBatches(InMemory):
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
        import tensorflow as tf

        def read(rows: np.ndarray) -> Any:
            return tf.nest.map_structure(lambda array: array[rows], train)

        super().__init__(read, num_examples=len(tf.nest.flatten(train)[0]), test=test, change=change)


class TextPieces(InMemory):
    """Batches of sequences from a long text: token ids, and for each the id of the next token.

    Each epoch starts at a random offset below `stride`. The end of the test text that fills no sequence is dropped.

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

        def pieces(tokens: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            places = starts[..., np.newaxis] + np.arange(length)
            return tokens[places], tokens[places + 1]

        num_pieces = (len(train) - length - 1) // stride
        super().__init__(
            lambda starts: pieces(train, starts),
            num_examples=num_pieces,
            test=pieces(test, np.arange(0, len(test) - length, length)),
            order=lambda generator: generator.integers(stride) + stride * generator.permutation(num_pieces),
            noun="pieces",
        )
