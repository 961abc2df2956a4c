"""`Vocabulary`: the characters or words that a model knows, and their token ids."""

import functools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from tfaccel.errors import DataError
from tfaccel.local_path import local_path
from tfaccel.short_repr import short_repr

PADDING, UNKNOWN, START, END = 0, 1, 2, 3
NUM_SPECIAL_TOKENS = 4
_SPECIAL_TOKENS = ("", "\ufffd", "", "")
_WORD = re.compile(r"\w+|[^\w\s]")
_NO_SPACE_BEFORE = set(".,;:!?)]}”’%")
_NO_SPACE_AFTER = set("([{“‘")

Unit = Literal["characters", "words"]


@short_repr
@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The characters or words that a model knows. Ids 0 to 3 are reserved for padding, unknown, start and end.

    Args:
        unit: "characters", or "words": lowercase runs of letters and digits, and single punctuation marks.
        tokens: the characters or words; the first one has token id 4.

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
        if self.unit not in ("characters", "words"):
            raise DataError(f"A vocabulary's unit must be 'characters' or 'words'. Received: unit={self.unit!r}.")
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
            unit: "characters" or "words".
            least_count: minimum number of occurrences of a token.
            most_tokens: maximum number of tokens; None for all.
        """
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
        return [self._numbers.get(token, UNKNOWN) for token in split_text(text, self.unit)]

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
        tokens = []
        for number in numbers:
            if number == END:
                break
            tokens.append(known[number])
        return "".join(tokens) if self.unit == "characters" else join_words([token for token in tokens if token])

    def to_json(self) -> dict[str, Any]:
        """The vocabulary as JSON-serializable data."""
        return {"unit": self.unit, "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The vocabulary that `to_json` wrote."""
        return cls(**data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The vocabulary in a JSON file.

        Raises:
            DataError: if the file is missing or does not hold a vocabulary.
        """
        try:
            return cls.from_json(json.loads(local_path(path, DataError).read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DataError(f"There is no file {path}. Was this folder left by a finished run?") from error
        except (ValueError, TypeError) as error:
            raise DataError(f"{path} holds no vocabulary: {error}.") from error


def split_text(text: str, unit: Unit) -> list[str]:
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
