"""Plots of confusion matrices, one per model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfaccel.errors import DataError
from tfaccel.reporting.picture_files import BLACK, SMALL, new_figure, saved, shown

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

MAX_CLASSES = 20  # rows and columns of the plot; further classes are merged into the last one
_MAX_NAME = 18  # characters
_MAX_CLASSES_WITH_COUNTS = 12


def confusion_figure(matrices: Mapping[str, np.ndarray], *, class_names: tuple[str, ...]) -> Figure:
    """Plots one confusion matrix per model.

    Rows are true classes, columns predicted ones; the larger a cell's fraction of its row, the darker it is.
    With more than 20 classes, the last ones are merged into "others".

    Args:
        matrices: model -> counts, of shape (num_classes, num_classes).
        class_names: the name of each class.

    Raises:
        DataError: if there is no matrix, or one has a different shape.

    Example:
        >>> figure = confusion_figure({"network": np.array([[8, 1], [0, 9]])}, class_names=("cat", "dog"))
        >>> figure.axes[0].get_title()
        'network: accuracy 94.4 %'
    """
    num_classes = len(class_names)
    wrong = [name for name, matrix in matrices.items() if matrix.shape != (num_classes, num_classes)]
    if not matrices or wrong:
        raise DataError(
            f"Each model needs counts of shape ({num_classes}, {num_classes}), and there must be a model. "
            f"Received: {', '.join(f'{name} {matrices[name].shape}' for name in wrong) or 'none'}."
        )
    is_rotated = min(num_classes, MAX_CLASSES) > 3
    figure = new_figure(120 + 440 * len(matrices), 500 + 100 * is_rotated)
    all_axes = figure.subplots(1, len(matrices), squeeze=False, sharey=True)[0]
    for axes, (model, matrix) in zip(all_axes, matrices.items(), strict=True):
        counts, names = joined(matrix, class_names)
        fractions = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        texts = [shown(name, _MAX_NAME) for name in names]
        axes.set_xticks(range(len(names)), texts, rotation=90 * is_rotated, fontsize=SMALL)
        axes.set_yticks(range(len(names)), texts, fontsize=SMALL)
        accuracy = 100 * np.trace(matrix) / max(1, matrix.sum())
        axes.set(title=f"{shown(model, 30)}: accuracy {accuracy:.1f} %", xlabel="predicted class")
        if len(names) <= _MAX_CLASSES_WITH_COUNTS:
            for row, column in np.ndindex(counts.shape):
                color = "white" if fractions[row, column] > 0.5 else BLACK
                axes.text(
                    column, row, f"{counts[row, column]:.0f}", ha="center", va="center", fontsize=SMALL, color=color
                )
    all_axes[0].set_ylabel("true class")
    return figure


save_confusion_picture = saved(confusion_figure)


def save_confusions(
    path: Path, labels: np.ndarray, probabilities: Mapping[str, np.ndarray], *, class_names: tuple[str, ...]
) -> None:
    """Saves the plot of `confusion_figure` for predicted probabilities.

    Args:
        path: the PNG file to write.
        labels: the true class index of each example.
        probabilities: model -> class probabilities, of shape (num_examples, num_classes).
        class_names: the name of each class.
    """
    from sklearn.metrics import confusion_matrix

    numbers = range(len(class_names))
    matrices = {
        name: confusion_matrix(labels, values.argmax(axis=1), labels=numbers) for name, values in probabilities.items()
    }
    save_confusion_picture(path, matrices, class_names=class_names)


def joined(matrix: np.ndarray, class_names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns counts and names, with the last classes merged if there are more than `MAX_CLASSES`.

    Example:
        >>> counts, names = joined(np.ones((30, 30), int), tuple(map(str, range(30))))
        >>> counts.shape, names[-1], int(counts[-1, -1])
        ((20, 20), 'others', 121)
    """
    if len(class_names) <= MAX_CLASSES:
        return matrix, class_names
    kept = np.arange(MAX_CLASSES)
    counts = np.add.reduceat(np.add.reduceat(matrix, kept, axis=0), kept, axis=1)
    return counts, (*class_names[: MAX_CLASSES - 1], "others")
