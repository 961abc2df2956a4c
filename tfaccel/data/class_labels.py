"""Class indices from labels given as integers or names."""

from collections.abc import Sequence

import numpy as np

from tfaccel.errors import DataError

TRAIN_SPLIT, TEST_SPLITS = "train", ("test", "validation", "valid", "val", "dev")


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
