"""`Vocabulary`: the characters, words or subwords that a model knows, and their token ids.

References:
    Sennrich et al., Neural machine translation of rare words with subword units, 2016, https://arxiv.org/abs/1508.07909
    (byte-pair encoding)
    Uzan et al., Greed is all you need: an evaluation of tokenizer inference methods, 2024,
    https://arxiv.org/abs/2403.01289 (longest match first)
"""

import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from tfaccel.errors import DataError
from tfaccel.records import Record
from tfaccel.remote import readable_path
from tfaccel.short_repr import noun

PADDING, UNKNOWN, START, END = 0, 1, 2, 3
NUM_SPECIAL_TOKENS = 4
_SPECIAL_TOKENS = ("", "\ufffd", "", "")
_WORD = re.compile(r"\w+|[^\w\s]")
_NO_SPACE_BEFORE = set(".,;:!?)]}”’%")
_NO_SPACE_AFTER = set("([{“‘")
MOST_SUBWORDS, _LONGEST_SUBWORD = 8_000, 16

SPACE = "\u2581"  # what a space is written as in subwords, as by SentencePiece

Unit = Literal["characters", "words", "subwords"]
UNITS = ("characters", "words", "subwords")


@noun
class Vocabulary(Record):
    """The tokens that a model knows. Ids 0 to 3 are reserved for padding, unknown, start and end.

    Args:
        unit: "characters"; "words": lowercase runs of letters and digits, and single punctuation marks; or "subwords":
            frequent words and parts of words, of which the longest that fits comes first.
        tokens: the characters, words or subwords; the first one has token id 4. A subword that begins a word begins
            with "\u2581", which stands for the space before it.

    Raises:
        DataError: for another unit, or tokens that are not strings, are empty or repeat.

    Example:
        >>> vocabulary = Vocabulary(unit="characters", tokens=("a", "b"))
        >>> vocabulary.encode("abc")
        [4, 5, 1]
    """

    unit: Unit
    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        if self.unit not in UNITS:
            raise DataError(
                f"A vocabulary's unit must be 'characters', 'words' or 'subwords'. Received: unit={self.unit!r}."
            )
        if not all(isinstance(token, str) and token for token in self.tokens):
            raise DataError("A vocabulary's tokens must be texts that are not empty.")
        if len(set(self.tokens)) != len(self.tokens):
            twice = Counter(self.tokens).most_common(1)[0][0]
            raise DataError(f"A vocabulary's tokens must differ. Received {twice!r} twice.")

    @classmethod
    def of(cls, texts: Iterable[str], *, unit: Unit, least_count: int = 1, most_tokens: int | None = None) -> Self:
        """The vocabulary of texts, most frequent token first.

        Args:
            texts: the training texts.
            unit: "characters", "words" or "subwords".
            least_count: minimum number of occurrences of a token.
            most_tokens: maximum number of tokens; None for all, and for 8,000 subwords.

        Raises:
            DataError: for subwords, if the library `tokenizers` is missing (`pip install "tfaccel[text]"`).
        """
        if unit == "subwords":
            return cls(unit=unit, tokens=_learn_subwords(texts, least_count, most_tokens or MOST_SUBWORDS))
        counts = Counter(token for text in texts for token in split_text(text, unit))
        order = sorted((token for token, n in counts.items() if n >= least_count), key=lambda t: (-counts[t], t))
        return cls(unit=unit, tokens=tuple(order[:most_tokens]))

    def __len__(self) -> int:
        return NUM_SPECIAL_TOKENS + len(self.tokens)

    @functools.cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {token: number for number, token in enumerate(self.tokens, start=NUM_SPECIAL_TOKENS)}

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return [self._numbers.get(token, UNKNOWN) for token in self.split(text)]

    def split(self, text: str) -> list[str]:
        """The tokens of a text, also those that the vocabulary does not have.

        Example:
            >>> Vocabulary(unit="subwords", tokens=("\u2581un", "like", "ly")).split("unlikely unlike")
            ['\u2581un', 'like', 'ly', '\u2581un', 'like']
        """
        if self.unit != "subwords":
            return split_text(text, self.unit)
        words = (SPACE + text.replace(" ", SPACE)).split(SPACE)[1:]
        return [token for word in words for token in self._subwords(SPACE + word)]

    def _subwords(self, word: str) -> list[str]:
        found = self._split_words.get(word)
        if found is None:
            found, start = [], 0
            while start < len(word):
                sizes = range(min(self.longest, len(word) - start), 1, -1)
                size = next((size for size in sizes if word[start : start + size] in self._numbers), 1)
                found.append(word[start : start + size])
                start += size
            self._split_words[word] = found
        return found

    @functools.cached_property
    def _split_words(self) -> dict[str, list[str]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {"unit": self.unit, "tokens": self.tokens}

    @functools.cached_property
    def longest(self) -> int:
        """Number of characters of the longest token."""
        return max(map(len, self.tokens), default=1)

    def encode_all(self, texts: Sequence[str], length: int) -> np.ndarray:
        """The token ids of texts, int32, of shape (num_texts, length), truncated or padded."""
        return padded([self.encode(text) for text in texts], length)

    def decode(self, numbers: Iterable[int], *, extra: Sequence[str] = ()) -> str:
        """The text of token ids, up to the first END; padding and START are skipped.

        Args:
            numbers: token ids.
            extra: tokens of one text whose ids follow those of the vocabulary.
        """
        known = (*_SPECIAL_TOKENS, *self.tokens, *extra)
        tokens = [known[number] for number in itertools.takewhile(lambda number: number != END, numbers)]
        if self.unit == "words":
            return join_words([token for token in tokens if token])
        text = "".join(tokens)
        return text.replace(SPACE, " ").removeprefix(" ") if self.unit == "subwords" else text

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The vocabulary in a JSON file.

        Raises:
            DataError: if the file is missing or does not hold a vocabulary.
        """
        try:
            return cls.from_json(json.loads(readable_path(path, DataError).read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DataError(f"There is no file {path}. Was this folder left by a finished run?") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} holds no vocabulary: {error}.") from error


def _learn_subwords(texts: Iterable[str], least_count: int, most_tokens: int) -> tuple[str, ...]:
    """The tokens of byte-pair encoding: single characters, and then what was merged, most frequent first."""
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise DataError(
            "A vocabulary of subwords needs `tokenizers`, which is not installed. Install it: "
            "pip install 'tfaccel[text]'"
        ) from error
    learned = Tokenizer(models.BPE())
    spaces = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    learned.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Punctuation()])
    trainer = trainers.BpeTrainer(
        vocab_size=most_tokens,
        min_frequency=max(2, least_count),
        limit_alphabet=max(1, most_tokens // 2),
        max_token_length=_LONGEST_SUBWORD,
        show_progress=False,
    )
    learned.train_from_iterator(texts, trainer)
    numbers = learned.get_vocab()
    return tuple(sorted(numbers, key=numbers.__getitem__))


def split_text(text: str, unit: Literal["characters", "words"]) -> list[str]:
    """The characters of a text, or its lowercase words and punctuation marks.

    Example:
        >>> split_text("It's 3.", "words")
        ['it', "'", 's', '3', '.']
    """
    return list(text) if unit == "characters" else _WORD.findall(text.lower())


def join_words(words: Sequence[str]) -> str:
    """Joins words and punctuation marks into a text.

    Example:
        >>> join_words(["see", "(", "above", ")", "."])
        'see (above).'
    """
    text = ""
    for word in words:
        glued = not text or word in _NO_SPACE_BEFORE or text[-1] in _NO_SPACE_AFTER
        text += word if glued else f" {word}"
    return text


def padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Rows of token ids as an int32 array of shape (num_rows, length), truncated or padded with PADDING.

    Example:
        >>> padded([[4, 5, 6], [7]], 2).tolist()
        [[4, 5], [7, 0]]
    """
    array = np.full((len(rows), length), PADDING, np.int32)
    for row, numbers in zip(array, rows, strict=True):
        row[: len(numbers)] = list(numbers)[:length]
    return array
