"""Image classification baselines without a neural network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfaccel.training.verdict.baseline_scores import BaselineScores

MAX_EXAMPLES, MAX_SIDE = 3000, 32  # max training images of the support vector machine, and their max side in pixels
_PENALTIES = (1.0, 10.0)
_NUM_FOLDS = 4


def image_class_scores(
    predictions: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    train_data: Callable[..., Any],
    num_train: int | None = None,
) -> BaselineScores:
    """Compares the accuracy of predictions with a support vector machine on pixels and the most frequent class.

    The penalty is chosen by cross-validation on the training images. Images are subsampled to at most 32x32 pixels, and
    at most 3,000 training images are used.

    Args:
        predictions: the predicted class index of each test image.
        test: pixels and classes of the test images; classes are indices or one-hot rows.
        train_data: `train_data(num_images, seed=0, epoch=0, augmented=False)` returns a dataset whose first batch
            begins with pixels, of shape (num_images, height, width, channels), and classes.
        num_train: number of training images, if known.

    Example:
        >>> import tensorflow as tf
        >>> images = np.repeat([[0.0], [1.0]], 8, axis=0).reshape(16, 1, 1, 1), np.repeat([0, 1], 8)
        >>> data = lambda size, **_: tf.data.Dataset.from_tensor_slices(images).batch(size)
        >>> image_class_scores(np.zeros(16), images, data).beside()
        'accuracy 50.0 % vs. 100.0 % (SVM on pixels), 50.0 % (most frequent class)'
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
    """Flattened pixels of images subsampled to at most 32x32 pixels."""
    step = max(1, -(-max(images.shape[1:3]) // MAX_SIDE))
    return np.asarray(images[:, step // 2 :: step, step // 2 :: step], np.float64).reshape(len(images), -1)
