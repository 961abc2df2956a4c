"""`LabelledTexts`: texts with a class each, split into a training and a test part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tfaccel.data.images.image_set import split_rows
from tfaccel.errors import DataError
from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """Texts with a class each, split into a training and a test part.

    Args:
        class_names: a name for each class.
        train_texts: the training texts.
        train_labels: the class index of each.
        test_texts: the test texts.
        test_labels: the class index of each.
    """

    class_names: tuple[str, ...]
    train_texts: tuple[str, ...]
    train_labels: tuple[int, ...]
    test_texts: tuple[str, ...]
    test_labels: tuple[int, ...]

    @classmethod
    def of(cls, names: tuple[str, ...], train: list[tuple[str, int]], test: list[tuple[str, int]]) -> Self:
        """The parts from pairs of a text and its class index."""
        return cls(
            class_names=names,
            train_texts=tuple(text for text, _ in train),
            train_labels=tuple(label for _, label in train),
            test_texts=tuple(text for text, _ in test),
            test_labels=tuple(label for _, label in test),
        )


def labelled_texts(
    class_names: Sequence[str], texts: Sequence[Sequence[str]], labels: Sequence[np.ndarray], source: str
) -> LabelledTexts:
    """The texts of a training and a test part, or of one part, of which a stratified fifth is held out for testing.

    Args:
        class_names: a name for each class.
        texts: the texts of each part.
        labels: the class index of each text of each part.
        source: where the texts are from, for messages.

    Raises:
        DataError: if there are too few texts of a class.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> labelled_texts(("a", "b"), [["w", "x", "y", "z"]], [labels], "letters").train_labels
        (0, 1)
    """
    counts = np.bincount(labels[0], minlength=len(class_names))
    rarest = class_names[int(counts.argmin())]
    if len(texts) == 1 and counts.min() == 1:
        raise DataError(
            f"Class {rarest!r} in {source} has one text; it needs at least two, one to train on and one to test with."
        )
    if not counts.min():
        raise DataError(f"Class {rarest!r} in {source} has no text to train on.")
    parts = [list(zip(*part, strict=True)) for part in zip(texts, [rows.tolist() for rows in labels], strict=True)]
    if len(parts) == 1:
        parts = [[parts[0][i] for i in sorted(rows)] for rows in split_rows(labels[0])]
    return LabelledTexts.of(tuple(class_names), parts[0], parts[1])
