"""The data of text workloads: texts with a class each, pieces of a long text, and pairs of source and target texts.

Texts with a class are encoded by a `Vocabulary` of their words, or by the tokenizer of a preset of KerasHub.

`dates_in_words` are pairs that are made up: dates in many formats, and in ISO format.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.class_labels import LabelledTexts
from tfaccel.data.epochs import Batches
from tfaccel.data.hub_presets import Preset
from tfaccel.data.in_memory import InMemory, TextBatches, filled_columns
from tfaccel.data.raw_input import RawInput, TextInput
from tfaccel.data.texts.documentation import Topic, documentation_topics
from tfaccel.data.texts.files import read_aligned_lines, read_columns
from tfaccel.data.texts.vocabulary import END, NUM_SPECIAL_TOKENS, START, UNKNOWN, Unit, Vocabulary, padded
from tfaccel.errors import DataError
from tfaccel.remote import readable_path

MAX_TOKENS = 10_000  # of the vocabulary
TEST_PART = 0.1

_MONTH_NAMES = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
}
MONTHS = {language: names.split() for language, names in _MONTH_NAMES.items()}
DAYS = {
    "en": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "de": ["Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"],
    "fr": ["lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"],
}
# Numeric dates differ by separator: with dots the day comes first, with slashes the month (or the year).
_FORMS = (
    ("en", "{d} {month} {y}"),
    ("en", "{month} {d}, {y}"),
    ("en", "{month} {nth}, {y}"),
    ("en", "{day}, {month} {d}, {y}"),
    ("en", "{day} {nth} {month} {y}"),
    ("en", "the {nth} of {month}, {y}"),
    ("en", "{d} {mon} {y}"),
    ("en", "{mon} {d} {y}"),
    ("en", "{d:02}-{mon}-{y}"),
    ("en", "{m}/{d}/{y}"),
    ("en", "{m:02}/{d:02}/{y}"),
    ("en", "{y}/{m:02}/{d:02}"),
    ("en", "{y}{m:02}{d:02}"),
    ("de", "{d}.{m}.{y}"),
    ("de", "{d:02}.{m:02}.{y}"),
    ("de", "{d}. {month} {y}"),
    ("de", "{day}, den {d}. {month} {y}"),
    ("fr", "{d} {month} {y}"),
    ("fr", "le {day} {d} {month} {y}"),
)
_FIRST, _LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)


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
            order=lambda generator, _: generator.integers(stride) + stride * generator.permutation(num_pieces),
            noun="pieces",
        )


class _ClassifiedTexts(Batches):
    """Batches of tokens and one-hot classes, made by a function on first use."""

    source: LabelledTexts

    def __init__(self, texts: LabelledTexts, make_batches: Callable[[], TextBatches], raw_input: RawInput) -> None:
        super().__init__(
            texts,
            make_batches,
            num_train_examples=len(texts.train_texts),
            several_epochs=True,
            takes_every=True,
            raw_input=raw_input,
        )


class TextData(_ClassifiedTexts):
    """Batches of token ids (int32) and one-hot classes (float32). The texts are `source`.

    Args:
        texts: a `LabelledTexts`. Words that occur at least twice in its training texts make the vocabulary.
        num_words: tokens per text; longer texts are cut off, shorter ones padded with 0.
        unit: "words", "characters" or "subwords"; see `Vocabulary`.
        token_dropout: fraction of the training tokens that are replaced by the unknown token, at random in each epoch.
        group_by_length: whether batches are of texts of similar lengths, and cut to the longest; see
            `tfaccel.data.TextBatches`.

    Attributes:
        vocabulary: the `Vocabulary`.

    Example:
        >>> from tfaccel.data import documentation_passages
        >>> texts = TextData(documentation_passages(), num_words=100, token_dropout=0.4)
        >>> tokens, classes = next(iter(texts.train_data(32, seed=0, epoch=0)))
        >>> tokens.shape, classes.shape
        (TensorShape([32, 100]), TensorShape([32, 5]))
    """

    def __init__(
        self,
        texts: LabelledTexts,
        *,
        num_words: int,
        unit: Unit = "words",
        token_dropout: float = 0.0,
        group_by_length: bool = False,
    ) -> None:
        self._num_words, self._token_dropout, self._group_by_length = num_words, token_dropout, group_by_length
        most_tokens = None if unit == "subwords" else MAX_TOKENS
        self.vocabulary = Vocabulary.of(texts.train_texts, unit=unit, least_count=2, most_tokens=most_tokens)
        raw_input = TextInput(vocabulary=self.vocabulary, num_tokens=num_words, class_names=texts.class_names)
        super().__init__(texts, self._batches, raw_input)

    def _batches(self) -> Any:
        texts, one_hot = self.source, np.eye(len(self.source.class_names), dtype=np.float32)
        train = self.vocabulary.encode_all(texts.train_texts, self._num_words), one_hot[list(texts.train_labels)]
        test = self.vocabulary.encode_all(texts.test_texts, self._num_words), one_hot[list(texts.test_labels)]
        lengths = (filled_columns(train[0]), None) if self._group_by_length else None
        return TextBatches(train, test, change=self._with_unknown_tokens, lengths=lengths)

    def _with_unknown_tokens(self, examples: tuple[np.ndarray, np.ndarray], generator: np.random.Generator) -> Any:
        tokens, classes = examples
        dropped = (generator.random(tokens.shape) < self._token_dropout) & (tokens >= NUM_SPECIAL_TOKENS)
        return np.where(dropped, np.int32(UNKNOWN), tokens), classes


class PresetTextData(_ClassifiedTexts):
    """Batches of a preset's tokens and one-hot classes (float32). The texts are `source`.

    Args:
        texts: a `LabelledTexts`.
        preset: from `find_preset`. Its tokenizer is loaded, and encodes all texts, on first use.
        num_tokens: tokens per text; longer texts are cut off, shorter ones padded.
        group_by_length: as of `TextData`.

    Example:
        >>> from tfaccel.data import documentation_passages, find_preset
        >>> data = PresetTextData(documentation_passages(), find_preset("bert_tiny_en_uncased"), num_tokens=64)
        >>> data.num_train_examples == len(data.source.train_texts)
        True
    """

    def __init__(self, texts: LabelledTexts, preset: Preset, *, num_tokens: int, group_by_length: bool = False) -> None:
        self._preset, self._num_tokens, self._group_by_length = preset, num_tokens, group_by_length
        super().__init__(texts, self._batches, RawInput(class_names=tuple(map(str, texts.class_names))))

    def _batches(self) -> Any:
        texts, one_hot = self.source, np.eye(len(self.source.class_names), dtype=np.float32)
        both = encode_by_preset(self._preset, [*texts.train_texts, *texts.test_texts], self._num_tokens)
        num_train = len(texts.train_texts)
        train = {name: rows[:num_train] for name, rows in both.items()}
        test = {name: rows[num_train:] for name, rows in both.items()}
        lengths = None
        if self._group_by_length:
            lengths = dict.fromkeys(train, filled_columns(train["padding_mask"])), None
        return TextBatches(
            (train, one_hot[list(texts.train_labels)]), (test, one_hot[list(texts.test_labels)]), lengths=lengths
        )


def encode_by_preset(preset: Preset, texts: Sequence[str], num_tokens: int) -> dict[str, np.ndarray]:
    """The inputs of a preset's text classifier, int32 or bool arrays of shape (texts, num_tokens), by name.

    Args:
        preset: from `find_preset`.
        texts: the texts.
        num_tokens: tokens per text; longer texts are cut off, shorter ones padded.

    Raises:
        WorkloadError: if the preset has no tokenizer, or cannot be loaded.
    """
    preprocessor = preset.load("TextClassifierPreprocessor", sequence_length=num_tokens)
    return {name: np.asarray(rows) for name, rows in preprocessor(list(texts)).items()}


@dataclass(frozen=True, kw_only=True)
class TextPairs:
    """Pairs of source and target texts, split into a training and a test part.

    Args:
        train: the training pairs.
        test: the test pairs.
    """

    train: tuple[tuple[str, str], ...]
    test: tuple[tuple[str, str], ...]

    @classmethod
    def cut(cls, pairs: Sequence[tuple[str, str]], name: str) -> Self:
        """Holds out a tenth of the pairs, always the same, for testing. Duplicate pairs are dropped.

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
    """Dates in many formats, paired with their ISO format; the same at every call. No date is in both parts."""
    pairs = date_pairs(num_train + num_test, seed=0)
    return TextPairs(train=tuple(pairs[:num_train]), test=tuple(pairs[num_train:]))


def read_translations(data_dir: str | os.PathLike[str], *, bad_data: BadData | None = None) -> TextPairs:
    """The aligned lines of `source.txt` and `target.txt` in a folder.

    Args:
        data_dir: the folder.
        bad_data: what to do with damaged lines; None for `BadData()`, which raises an error.

    Raises:
        DataError: if a file cannot be read, or the lines are not aligned (the line is named).
    """
    folder = readable_path(data_dir, DataError)
    if not folder.is_dir():
        raise DataError(f"`data_dir` must be a folder with source.txt and target.txt. Received: {folder}.")
    pairs = read_aligned_lines(folder / "source.txt", folder / "target.txt", bad_data)
    return TextPairs.cut(pairs, str(folder))


def documentation_summaries() -> TextPairs:
    """Entries of CPython's documentation, paired with their first sentence (removed from the entry); split by topic.

    The training part also uses the single paragraphs of its topics as entries.
    """
    topics = documentation_topics()
    return summaries_of_topics([t for t in topics if not t.is_held_out], [t for t in topics if t.is_held_out])


def summaries_of_topics(train: Iterable[Topic], test: Iterable[Topic]) -> TextPairs:
    """Entries of the training topics, including single paragraphs, and entries of the test topics."""
    pairs = [pair for topic in train for pair in (*topic.entries(), *topic.prose())]
    return TextPairs(train=tuple(dict.fromkeys(pairs)), test=tuple(pair for topic in test for pair in topic.entries()))


def read_summaries(
    path: str | os.PathLike[str],
    *,
    document_column: str = "document",
    summary_column: str = "summary",
    encoding: str = "utf-8",
    bad_data: BadData | None = None,
) -> TextPairs:
    """Documents and their summaries from a table.

    Args:
        path: the file.
        document_column, summary_column: the columns.
        encoding: Python's name of the encoding of a CSV file.
        bad_data: what to do with damaged rows; None for `BadData()`, which raises an error.

    Raises:
        DataError: if the file cannot be read or lacks a column (the message suggests the closest name).
    """
    columns = read_columns(path, (document_column, summary_column), bad_data, encoding=encoding)
    return TextPairs.cut(list(zip(*columns, strict=True)), str(path))


@dataclass(frozen=True)
class PairArrays:
    """Encoded pairs: arrays with one row per pair, int32 unless noted.

    Attributes:
        source: token ids of the source.
        written: START and the token ids of the target (the decoder's input).
        labels: the token ids of the target and END.
        weights: 1 for labels, 0 for padding; float32.
    """

    source: np.ndarray
    written: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def examples(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """The inputs, labels and sample weights of a model."""
        return {"source": self.source, "written": self.written}, self.labels, self.weights

    def lengths(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """The number of tokens of each example, likewise: `lengths` of `tfaccel.data.TextBatches`."""
        source, target = filled_columns(self.source), filled_columns(self.labels)
        return {"source": source, "written": target}, target, target


def encode_pairs(
    pairs: Sequence[tuple[str, str]], vocabularies: tuple[Vocabulary, Vocabulary], lengths: tuple[int, int]
) -> PairArrays:
    """Pairs as arrays, truncated to the lengths.

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
    """Pairs as arrays; out-of-vocabulary words of a source get token ids after those of the vocabulary.

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
    """The first distinct out-of-vocabulary words among the first `length` words of a text."""
    words = vocabulary.split(text)[:length]
    return [word for word in dict.fromkeys(words) if vocabulary.encode(word)[0] < NUM_SPECIAL_TOKENS][:num_copied]


def _encode(text: str, vocabulary: Vocabulary, unknown: Sequence[str]) -> list[int]:
    places = {word: number for number, word in enumerate(unknown, start=len(vocabulary))}
    words = vocabulary.split(text)
    return [places.get(word, number) for word, number in zip(words, vocabulary.encode(text), strict=True)]


def _pair_arrays(sources: list[list[int]], targets: list[list[int]], lengths: tuple[int, int]) -> PairArrays:
    # An empty source would leave nothing to attend to.
    source = padded([tokens or [END] for tokens in sources], lengths[0])
    labels = padded([[*tokens, END] for tokens in targets], lengths[1])
    written = padded([[START, *tokens] for tokens in targets], lengths[1])
    return PairArrays(source, written, labels, (labels != 0).astype(np.float32))


def date_pairs(num_pairs: int, *, seed: int) -> list[tuple[str, str]]:
    """Distinct dates from 1900 to 2099, each in a random format and in ISO format.

    Example:
        >>> date_pairs(2, seed=0)
        [('April 1, 2038', '2038-04-01'), ('Montag, den 5. Dezember 2050', '2050-12-05')]
    """
    generator = random.Random(seed)
    days = generator.sample(range((_LAST - _FIRST).days + 1), num_pairs)
    dates = [_FIRST + datetime.timedelta(days=number) for number in days]
    return [(write_date(date, generator), date.isoformat()) for date in dates]


def write_date(date: datetime.date, generator: random.Random) -> str:
    """A date in one of 19 formats; one in four is all uppercase or all lowercase."""
    language, form = generator.choice(_FORMS)
    month, day = MONTHS[language][date.month - 1], DAYS[language][date.weekday()]
    text = form.format(d=date.day, m=date.month, y=date.year, month=month, mon=month[:3], day=day, nth=_nth(date.day))
    change = generator.randrange(8)
    return text.upper() if change == 0 else text.lower() if change == 1 else text


def _nth(number: int) -> str:
    ending = "th" if 10 < number < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
