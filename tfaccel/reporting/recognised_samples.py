"""How many generated images a classifier that has seen real ones alone takes for what they were drawn as."""

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
    """What a support vector machine, trained on real images, makes of samples; all results are parts from 0 to 1.

    Args:
        samples: standardised pixels, of shape (num_samples, height, width, channels).
        labels: the class that each sample was drawn for, a number from 0.
        class_names: a name for each class; each needs at least one sample.
        train: real images, standardised in the same way, and their classes.
        test: other real images and their classes.

    Returns:
        "recognised" and "recognised_by_class" of the samples, "real_test_accuracy" of the real test images, and
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
    """What `recognised_samples` returns, and "gaussian_recognised" of as many samples of a Gaussian of each class.

    Arguments, errors: as there.

    Example:
        >>> real = np.concatenate([np.zeros((5, 2, 2, 1)), np.ones((5, 2, 2, 1))]), np.repeat([0, 1], 5)
        >>> found = recognised_beside_gaussians(*real, class_names=("dark", "bright"), train=real, test=real)
        >>> found["gaussian_recognised"]
        1.0
    """
    judge = functools.partial(recognised_samples, class_names=class_names, train=train, test=test)
    simple = judge(*gaussian_samples(*train, max(1, len(samples) // len(class_names))))
    return {**judge(samples, labels), "gaussian_recognised": simple["recognised"]}
