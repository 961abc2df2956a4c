"""Classifiers that need no network: what they reach on the same images or rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfaccel.training.baseline_scores import BaselineScores

MAX_EXAMPLES, MAX_SIDE = 3000, 32  # training images that a support vector machine sees, and their height and width
_PENALTIES = (1.0, 10.0)
_NUM_FOLDS = 4


def image_class_scores(
    predictions: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    train_data: Callable[..., Any],
    num_train: int | None = None,
) -> BaselineScores:
    """The accuracy of predictions beside a support vector machine on pixels, and beside the most frequent class.

    The penalty is chosen by cross-validation on the training images. Images of more than 32 pixels are sampled down to
    that; of many training images, 3,000 are taken.

    Args:
        predictions: a class for each test image, a number from 0.
        test: pixels and classes of the test images: numbers, or one-hot rows.
        train_data: `train_data(num_images, seed=0, epoch=0, augmented=False)` gives a data set whose first batch begins
            with pixels, of shape (num_images, height, width, channels), and classes.
        num_train: training images that there are, if that is known.

    Example:
        >>> import tensorflow as tf
        >>> images = np.repeat([[0.0], [1.0]], 8, axis=0).reshape(16, 1, 1, 1), np.repeat([0, 1], 8)
        >>> data = lambda size, **_: tf.data.Dataset.from_tensor_slices(images).batch(size)
        >>> image_class_scores(np.zeros(16), images, data).beside()
        'accuracy 50.0 % beside 100.0 % (SVM on pixels), 50.0 % (most frequent class)'
    """
    import tensorflow as tf
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    batches = train_data(min(num_train or MAX_EXAMPLES, MAX_EXAMPLES), seed=0, epoch=0, augmented=False)
    images, classes = tf.nest.flatten(next(batches.as_numpy_iterator()))[:2]
    pixels, labels, wanted = _small(images), _numbers(classes), _numbers(test[1])
    machine: Any = SVC(C=_PENALTIES[-1])
    counts = np.bincount(labels)
    if counts[counts > 0].min() >= _NUM_FOLDS:
        machine = GridSearchCV(machine, {"C": list(_PENALTIES)}, cv=_NUM_FOLDS)
    found = machine.fit(pixels, labels).predict(_small(test[0])) if (counts > 0).sum() > 1 else wanted * 0 + labels[0]
    return BaselineScores(
        metric="accuracy",
        score=float(np.mean(predictions == wanted)),
        is_fraction=True,
        num_examples=len(wanted),
        baselines={"SVM on pixels": float(np.mean(found == wanted))},
        trivial={"most frequent class": float(np.mean(wanted == counts.argmax()))},
    )


def _numbers(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    return labels.argmax(axis=1) if labels.ndim > 1 else labels.astype(int)


def _small(images: np.ndarray) -> np.ndarray:
    """Rows of pixels of images that are sampled down to at most 32 pixels a side."""
    step = max(1, -(-max(images.shape[1:3]) // MAX_SIDE))
    return np.asarray(images[:, step // 2 :: step, step // 2 :: step], np.float64).reshape(len(images), -1)
