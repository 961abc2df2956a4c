"""The fraction of generated images that a classifier of real images assigns to the intended class."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tfaccel.errors import DataError
from tfaccel.reporting.density_baselines import gaussian_samples


def recognised_samples(
    samples: np.ndarray,
    labels: np.ndarray,
    *,
    class_names: tuple[str, ...],
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
) -> dict[str, Any]:
    """Classifies samples with a support vector machine trained on real images; scores are fractions from 0 to 1.

    Args:
        samples: standardized pixels, of shape (num_samples, height, width, channels).
        labels: the class index that each sample was generated for.
        class_names: the name of each class; each needs at least one sample.
        train: real images, standardized in the same way, and their classes.
        test: other real images and their classes.

    Returns:
        "recognised" and "recognised_by_class" for the samples, "real_test_accuracy" for the real test images, and
        "num_samples".

    Raises:
        DataError: if a class has no sample.

    Example:
        >>> dark, bright = np.zeros((5, 2, 2, 1)), np.ones((5, 2, 2, 1))
        >>> real = np.concatenate([dark, bright]), np.repeat([0, 1], 5)
        >>> recognised_samples(*real, class_names=("dark", "bright"), train=real, test=real)["recognised"]
        1.0
    """
    from sklearn.svm import SVC

    if set(range(len(class_names))) - set(labels.tolist()):
        raise DataError(f"Each of {len(class_names)} classes needs a sample. Received: classes {sorted(set(labels))}.")

    def features(pixels: np.ndarray) -> np.ndarray:
        return pixels.reshape(len(pixels), -1)

    classifier = SVC().fit(features(train[0]), train[1])
    of_samples = classifier.predict(features(samples)) == labels
    of_test = classifier.predict(features(test[0])) == test[1]
    return {
        "recognised": float(of_samples.mean()),
        "recognised_by_class": {name: float(of_samples[labels == i].mean()) for i, name in enumerate(class_names)},
        "real_test_accuracy": float(of_test.mean()),
        "num_samples": len(samples),
    }


def recognised_beside_gaussians(
    samples: np.ndarray,
    labels: np.ndarray,
    *,
    class_names: tuple[str, ...],
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
) -> dict[str, Any]:
    """Like `recognised_samples`, plus "gaussian_recognised" for as many samples from one Gaussian per class.

    Arguments and errors: see `recognised_samples`.

    Example:
        >>> real = np.concatenate([np.zeros((5, 2, 2, 1)), np.ones((5, 2, 2, 1))]), np.repeat([0, 1], 5)
        >>> found = recognised_beside_gaussians(*real, class_names=("dark", "bright"), train=real, test=real)
        >>> found["gaussian_recognised"]
        1.0
    """
    judge = functools.partial(recognised_samples, class_names=class_names, train=train, test=test)
    simple = judge(*gaussian_samples(*train, max(1, len(samples) // len(class_names))))
    return {**judge(samples, labels), "gaussian_recognised": simple["recognised"]}
