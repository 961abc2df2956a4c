"""The data of a text classification workload: token ids of each text, and its class."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.epochs import Batches
from tfaccel.data.raw_input import TextInput
from tfaccel.data.texts.labelled_texts import LabelledTexts
from tfaccel.data.texts.vocabulary import Vocabulary

MAX_TOKENS = 10_000  # of the vocabulary
_UNKNOWN, _NUM_SPECIAL = 1, 4  # the id of the unknown token; ids 0 to 3 are special tokens


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
        from tfaccel.data.texts.batches import TextBatches

        texts, one_hot = self.source, np.eye(len(self.source.class_names), dtype=np.float32)
        train = self.vocabulary.encode_all(texts.train_texts, self._num_words), one_hot[list(texts.train_labels)]
        test = self.vocabulary.encode_all(texts.test_texts, self._num_words), one_hot[list(texts.test_labels)]
        return TextBatches(train, test, change=self._with_unknown_tokens)

    def _with_unknown_tokens(self, examples: tuple[np.ndarray, np.ndarray], generator: np.random.Generator) -> Any:
        tokens, classes = examples
        dropped = (generator.random(tokens.shape) < self._token_dropout) & (tokens >= _NUM_SPECIAL)
        return np.where(dropped, np.int32(_UNKNOWN), tokens), classes
