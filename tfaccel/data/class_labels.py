"""Labeled examples: class indices from integers or names, class weights, and texts with a class each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from tfaccel.errors import DataError
from tfaccel.short_repr import noun

TRAIN_SPLIT, TEST_SPLITS = "train", ("test", "validation", "valid", "val", "dev")

# Above this ratio of the largest to the smallest class, rows of small classes get larger weights.
UNEQUAL_RATIO = 3.0

TEST_FRACTION = 0.2  # of examples that come in one part


def numbered_classes(
    parts: Sequence[Sequence[int | str]], source: str, names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The class names, and the class index of each example.

    Args:
        parts: the labels (integers or names) of the training part and, if there is one, of the test part.
        source: where the examples are from, for messages.
        names: the class names, in the order of the integers; None for the sorted labels of the training part.

    Raises:
        DataError: if an example has no class, or one that no training example has.

    Example:
        >>> numbered_classes([["dog", "cat", "dog"], ["cat"]], "pets")
        (('cat', 'dog'), [array([1, 0, 1]), array([0])])
    """
    places: dict[int | str, int]
    if names is None:
        found = sorted(set(parts[0]), key=lambda label: (isinstance(label, str), label))
        places, names = {label: place for place, label in enumerate(found)}, [str(label) for label in found]
    else:
        places = {**{name: place for place, name in enumerate(names)}, **{place: place for place in range(len(names))}}
    if len(names) < 2:
        raise DataError(f"{source} must have at least two classes. Received: {', '.join(names) or 'none'}.")
    for part in parts:
        unknown = next((row for row, label in enumerate(part) if label not in places), None)
        if unknown is not None:
            raise DataError(
                f"Example {unknown} (from 0) of {source} has the class {part[unknown]!r}, which is not trained on."
            )
    return tuple(names), [np.array([places[label] for label in part], np.int64) for part in parts]


def train_and_test(splits: Sequence[str], source: str) -> list[str]:
    """The training and the test split; or the only split, of which a part must be held out for testing.

    Raises:
        DataError: if there is no training split.

    Example:
        >>> train_and_test(["validation", "train"], "pets"), train_and_test(["all"], "pets")
        (['train', 'validation'], ['all'])
    """
    if len(splits) == 1:
        return list(splits)
    if TRAIN_SPLIT not in splits:
        raise DataError(f"{source} must have a split 'train'. Received: {', '.join(splits) or 'none'}.")
    return [TRAIN_SPLIT, *[name for name in TEST_SPLITS if name in splits][:1]]


def split_rows(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of a stratified 80/20 split, which depends on the labels alone, not on the seed of a run.

    Args:
        labels: the class of each row; every class at least twice.

    Returns:
        The rows of the training part and of the test part. Each class makes up the same fraction of both, up to
        rounding.

    Example:
        >>> train, test = split_rows(np.repeat([0, 1], 10))
        >>> len(train), len(test)
        (16, 4)
    """
    from sklearn.model_selection import train_test_split

    num_test = max(int(np.ceil(TEST_FRACTION * len(labels))), len(np.unique(labels)))
    train, test = train_test_split(np.arange(len(labels)), test_size=num_test, random_state=0, stratify=labels)
    return train, test


def balanced_weights(counts: np.ndarray) -> np.ndarray:
    r"""Class weights that give all classes equal weight: $n / (k n_c)$ for k classes, n rows and $n_c$ rows of class c.

    Args:
        counts: rows of each class, all positive.

    Source: G. King and L. Zeng, Logistic regression in rare events data, 2001; scikit-learn's "balanced".

    Example:
        >>> balanced_weights(np.array([30, 10])).round(3).tolist()
        [0.667, 2.0]
    """
    return np.asarray(counts.sum() / (len(counts) * counts), dtype=np.float64)


def are_unequal(counts: np.ndarray) -> bool:
    """Whether the largest class has more than three times the rows of the smallest.

    Example:
        >>> are_unequal(np.array([30, 10])), are_unequal(np.array([31, 10]))
        (False, True)
    """
    return bool(counts.max() > UNEQUAL_RATIO * counts.min())


@noun
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
