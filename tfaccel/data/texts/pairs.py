"""The noun `TextPairs`: texts and what is to be written for each, cut into a training and a test part."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from tfaccel.data.texts.dates import date_pairs
from tfaccel.data.texts.documentation import Topic, documentation_topics
from tfaccel.data.texts.files import read_aligned_lines, read_columns
from tfaccel.data.texts.vocabulary import END, NUM_SPECIAL_TOKENS, START, Vocabulary, padded, split_text
from tfaccel.errors import DataError

TEST_PART = 0.1


@dataclass(frozen=True, kw_only=True)
class TextPairs:
    """Texts and what is to be written for each, cut into a training and a test part.

    Args:
        train: pairs of a text and what is to be written for it.
        test: the same, to test with.
    """

    train: tuple[tuple[str, str], ...]
    test: tuple[tuple[str, str], ...]

    @classmethod
    def cut(cls, pairs: Sequence[tuple[str, str]], name: str) -> Self:
        """Pairs with a tenth of them, always the same ones, kept for testing. Repeated pairs count once.

        Raises:
            DataError: if there are fewer than two.
        """
        pairs = list(dict.fromkeys(pairs))
        if len(pairs) < 2:
            raise DataError(f"{name} must have two different pairs of texts at least. Received: {len(pairs)}.")
        order = np.random.default_rng(0).permutation(len(pairs))
        num_test = max(1, int(TEST_PART * len(pairs)))
        test = set(order[:num_test].tolist())
        return cls(
            train=tuple(pair for row, pair in enumerate(pairs) if row not in test),
            test=tuple(pairs[row] for row in sorted(test)),
        )


def dates_in_words(*, num_train: int = 10_000, num_test: int = 1_000) -> TextPairs:
    """Dates written in many ways and in ISO format, the same at every call; no date is in both parts."""
    pairs = date_pairs(num_train + num_test, seed=0)
    return TextPairs(train=tuple(pairs[:num_train]), test=tuple(pairs[num_train:]))


def read_translations(data_dir: str | os.PathLike[str]) -> TextPairs:
    """The lines of `source.txt` in a folder, with those of `target.txt`.

    Raises:
        DataError: if a file cannot be read, or their lines do not go together; the line is named.
    """
    folder = Path(data_dir)
    if not folder.is_dir():
        raise DataError(f"`data_dir` must be a folder with source.txt and target.txt. Received: {folder}.")
    lines = read_aligned_lines(folder / "source.txt", folder / "target.txt")
    return TextPairs.cut(list(zip(*lines, strict=True)), str(folder))


def documentation_summaries() -> TextPairs:
    """Entries of CPython's documentation without their first sentence, and that sentence; cut by topic.

    There are more to train on, since single paragraphs of the training topics are entries there too.
    """
    topics = documentation_topics()
    return summaries_of_topics([t for t in topics if not t.is_held_out], [t for t in topics if t.is_held_out])


def summaries_of_topics(train: Iterable[Topic], test: Iterable[Topic]) -> TextPairs:
    """Entries of topics to train on, single paragraphs included, and entries of other topics to test with."""
    pairs = [pair for topic in train for pair in (*topic.entries(), *topic.prose())]
    return TextPairs(train=tuple(dict.fromkeys(pairs)), test=tuple(pair for topic in test for pair in topic.entries()))


def read_summaries(
    path: str | os.PathLike[str], *, document_column: str = "document", summary_column: str = "summary"
) -> TextPairs:
    """Documents and their summaries from a CSV file.

    Raises:
        DataError: if the file cannot be read or lacks a column (with the nearest name).
    """
    columns = read_columns(path, (document_column, summary_column))
    return TextPairs.cut(list(zip(*columns, strict=True)), str(path))


@dataclass(frozen=True)
class PairArrays:
    """Encoded pairs, each array int32 with one row a pair.

    Attributes:
        source: tokens of what is read.
        written: START and the tokens to be written.
        labels: those tokens and END.
        weights: 1 where there is a label, 0 for padding; float32.
    """

    source: np.ndarray
    written: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def examples(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Inputs, labels and weights, as a model is trained on them."""
        return {"source": self.source, "written": self.written}, self.labels, self.weights


def encode_pairs(
    pairs: Sequence[tuple[str, str]], vocabularies: tuple[Vocabulary, Vocabulary], lengths: tuple[int, int]
) -> PairArrays:
    """Pairs as arrays; what is longer than the lengths is cut off.

    Example:
        >>> vocabulary = Vocabulary(unit="characters", tokens=("a", "b"))
        >>> encode_pairs([("ab", "b")], (vocabulary, vocabulary), (3, 2)).labels.tolist()
        [[5, 3]]
    """
    sources = [vocabularies[0].encode(source) for source, _ in pairs]
    targets = [vocabularies[1].encode(target) for _, target in pairs]
    return _pair_arrays(sources, targets, lengths)


def encode_pairs_to_copy(
    pairs: Sequence[tuple[str, str]], vocabulary: Vocabulary, lengths: tuple[int, int], num_copied: int
) -> PairArrays:
    """Pairs as arrays; words of a source that the vocabulary lacks have numbers after those of the vocabulary.

    Example:
        >>> vocabulary = Vocabulary(unit="words", tokens=("a", "b"))
        >>> encode_pairs_to_copy([("a x y", "y b")], vocabulary, (3, 3), 2).labels.tolist()
        [[7, 5, 3]]
    """
    sources, targets = [], []
    for source, target in pairs:
        unknown = unknown_words(source, vocabulary, lengths[0], num_copied)
        sources.append(_encode(source, vocabulary, unknown))
        targets.append(_encode(target, vocabulary, unknown))
    return _pair_arrays(sources, targets, lengths)


def unknown_words(text: str, vocabulary: Vocabulary, length: int, num_copied: int) -> list[str]:
    """The first words among the first `length` of a text that the vocabulary lacks, each once."""
    words = split_text(text, vocabulary.unit)[:length]
    return [word for word in dict.fromkeys(words) if vocabulary.encode(word)[0] < NUM_SPECIAL_TOKENS][:num_copied]


def _encode(text: str, vocabulary: Vocabulary, unknown: Sequence[str]) -> list[int]:
    places = {word: number for number, word in enumerate(unknown, start=len(vocabulary))}
    words = split_text(text, vocabulary.unit)
    return [places.get(word, number) for word, number in zip(words, vocabulary.encode(text), strict=True)]


def _pair_arrays(sources: list[list[int]], targets: list[list[int]], lengths: tuple[int, int]) -> PairArrays:
    # An empty text would leave nothing to look at.
    source = padded([tokens or [END] for tokens in sources], lengths[0])
    labels = padded([[*tokens, END] for tokens in targets], lengths[1])
    written = padded([[START, *tokens] for tokens in targets], lengths[1])
    return PairArrays(source, written, labels, (labels != 0).astype(np.float32))
