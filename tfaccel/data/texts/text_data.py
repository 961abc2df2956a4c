"""The data of a text classification workload, and batches of encoded texts and of pieces of a long text."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.class_labels import LabelledTexts
from tfaccel.data.epochs import Batches, InMemory, RandomChange
from tfaccel.data.raw_input import TextInput
from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.errors import DataError

MAX_TOKENS = 10_000  # of the vocabulary
_UNKNOWN, _NUM_SPECIAL = 1, 4  # the id of the unknown token; ids 0 to 3 are special tokens


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


class TextData(Batches):
    """Batches of token ids (int32) and one-hot classes (float32). The texts are `source`.

    Args:
        texts: a `LabelledTexts`. Words that occur at least twice in its training texts make the vocabulary.
        num_words: tokens per text; longer texts are cut off, shorter ones padded with 0.
        token_dropout: fraction of the training tokens that are replaced by the unknown token, at random in each epoch.

    Attributes:
        vocabulary: the `Vocabulary`.

    Example:
        >>> from tfaccel.data import documentation_passages
        >>> texts = TextData(documentation_passages(), num_words=100, token_dropout=0.4)
        >>> tokens, classes = next(iter(texts.train_data(32, seed=0, epoch=0)))
        >>> tokens.shape, classes.shape
        (TensorShape([32, 100]), TensorShape([32, 5]))
    """

    source: LabelledTexts

    def __init__(self, texts: LabelledTexts, *, num_words: int, token_dropout: float = 0.0) -> None:
        self._num_words, self._token_dropout = num_words, token_dropout
        self.vocabulary = Vocabulary.of(texts.train_texts, unit="words", least_count=2, most_tokens=MAX_TOKENS)
        super().__init__(
            texts,
            self._batches,
            num_train_examples=len(texts.train_texts),
            several_epochs=True,
            takes_every=True,
            raw_input=TextInput(vocabulary=self.vocabulary, num_tokens=num_words, class_names=texts.class_names),
        )

    def _batches(self) -> Any:

        texts, one_hot = self.source, np.eye(len(self.source.class_names), dtype=np.float32)
        train = self.vocabulary.encode_all(texts.train_texts, self._num_words), one_hot[list(texts.train_labels)]
        test = self.vocabulary.encode_all(texts.test_texts, self._num_words), one_hot[list(texts.test_labels)]
        return TextBatches(train, test, change=self._with_unknown_tokens)

    def _with_unknown_tokens(self, examples: tuple[np.ndarray, np.ndarray], generator: np.random.Generator) -> Any:
        tokens, classes = examples
        dropped = (generator.random(tokens.shape) < self._token_dropout) & (tokens >= _NUM_SPECIAL)
        return np.where(dropped, np.int32(_UNKNOWN), tokens), classes
