"""Density models and samples: mixtures, Gaussians, and how often a classifier recognizes generated images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfaccel.errors import DataError
from tfaccel.models.losses import independent_log_likelihood, spliced
from tfaccel.reporting.classes import softmax

_MIN_PROBABILITY = 1e-3
_NUM_COMPONENTS = (10, 20, 40, 80)
_NUM_ITERATIONS = 40
_VALIDATION_STRIDE = 5  # every fifth example validates the number of components
_MAX_DIRECTIONS = 100  # principal components in which a Gaussian is fitted


def compare_bounds(
    elbos: Mapping[str, np.ndarray], train: np.ndarray, test: np.ndarray, *, is_image: bool
) -> dict[str, float]:
    """Compares the mean ELBO with the log-likelihoods of a mixture and of independent values, in nats.

    Also computes how well the ELBO and the mixture separate test examples from spliced ones (AUROC).

    Args:
        elbos: the ELBO of each example of "train", "test" and "spliced" (spliced test examples); see
            `tfaccel.models.losses`.
        train: the training examples.
        test: the test examples.
        is_image: whether values are probabilities (Bernoulli) rather than numbers (Gaussian).
    """
    from sklearn.metrics import roc_auc_score

    independent = independent_log_likelihood(train, test, is_image=is_image)
    mixture = mixture_log_likelihood(train, np.concatenate([test, spliced(test)]), is_image=is_image)
    is_real = np.repeat([1, 0], [len(elbos["test"]), len(elbos["spliced"])])
    return {
        "elbo": float(elbos["test"].mean()),
        "train_elbo": float(elbos["train"].mean()),
        "independent": float(independent.mean()),
        "mixture": float(mixture[: len(test)].mean()),
        "auroc_of_spliced_by_mixture": float(roc_auc_score(is_real, mixture)),
        "auroc_of_spliced": float(roc_auc_score(is_real, np.concatenate([elbos["test"], elbos["spliced"]]))),
    }


def mixture_log_likelihood(train: np.ndarray, values: np.ndarray, *, is_image: bool) -> np.ndarray:
    """The log-likelihood of examples under a mixture fitted to the training examples, in nats.

    Images, with pixels from 0 to 1, use a Bernoulli mixture with independent pixels; numbers use a mixture of Gaussians
    with diagonal covariance. The number of components is chosen on a held-out fifth of the training examples.

    Args:
        train: of shape (num_examples, ...).
        values: the examples to score, of the same shape.
        is_image: whether values are probabilities.

    Example:
        >>> train = np.repeat([[0.0, 0.0], [1.0, 1.0]], 40, axis=0)
        >>> mixture_log_likelihood(train, np.array([[1.0, 1.0], [1.0, 0.0]]), is_image=True).round(1).tolist()
        [-0.8, -2.9]
    """
    train, values = (np.asarray(rows, np.float64).reshape(len(rows), -1) for rows in (train, values))
    likelihood = _bernoulli_mixture if is_image else _gaussian_mixture
    held_out = np.arange(len(train)) % _VALIDATION_STRIDE == 0
    choices = [number for number in _NUM_COMPONENTS if number <= (~held_out).sum() // 4] or [1]
    best = max(choices, key=lambda number: likelihood(train[~held_out], train[held_out], number).mean())
    return likelihood(train, values, best)


def _gaussian_mixture(train: np.ndarray, values: np.ndarray, num_components: int) -> np.ndarray:
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(
        num_components, covariance_type="diag", reg_covar=1e-2, max_iter=_NUM_ITERATIONS, tol=1e-2, random_state=0
    )
    return np.asarray(mixture.fit(train).score_samples(values))


def _bernoulli_mixture(train: np.ndarray, values: np.ndarray, num_components: int) -> np.ndarray:
    """Expectation maximization, initialized with random examples."""
    generator = np.random.default_rng(0)
    first = train[generator.choice(len(train), num_components, replace=False)]
    p = np.clip(0.5 * first + 0.5 * train.mean(axis=0), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    weights = np.full(num_components, 1 / num_components)
    for _ in range(_NUM_ITERATIONS):
        logs = _joint(train, p, weights)
        shares = softmax(logs)
        counts = shares.sum(axis=0) + 1e-9
        # Smoothing: one pseudo-example per component, the mean of all examples.
        p = (shares.T @ train + train.mean(axis=0)) / (counts + 1)[:, None]
        p, weights = np.clip(p, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY), counts / counts.sum()
    logs = _joint(values, p, weights)
    highest = logs.max(axis=1)
    return np.asarray(highest + np.log(np.exp(logs - highest[:, None]).sum(axis=1)))


def _joint(values: np.ndarray, p: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The joint log-probability of each example and each component."""
    return np.asarray(values @ np.log(p).T + (1 - values) @ np.log1p(-p).T + np.log(weights))


def gaussian_samples(images: np.ndarray, labels: np.ndarray, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples each class from a Gaussian with full covariance, in the space of the principal components.

    Args:
        images: of shape (num_images, ...).
        labels: their class indices.
        num_samples: number of samples per class.

    Returns:
        Samples, shaped like the images, and their classes.

    Example:
        >>> images, labels = np.repeat([[0.0], [9.0]], 5, axis=0), np.repeat([0, 1], 5)
        >>> samples, classes = gaussian_samples(images, labels, 2)
        >>> samples.round().tolist(), classes.tolist()
        ([[0.0], [0.0], [9.0], [9.0]], [0, 0, 1, 1])
    """
    from sklearn.decomposition import PCA

    rows = np.asarray(images, np.float64).reshape(len(images), -1)
    components = PCA(min(*rows.shape, _MAX_DIRECTIONS), random_state=0).fit(rows)
    generator = np.random.default_rng(0)
    samples = []
    for label in np.unique(labels):
        known = components.transform(rows[labels == label])
        covariance = np.atleast_2d(np.cov(known, rowvar=False)) if len(known) > 1 else np.zeros((known.shape[1],) * 2)
        drawn = generator.multivariate_normal(known.mean(axis=0), covariance, num_samples, method="eigh")
        samples.append(components.inverse_transform(drawn))
    made = np.concatenate(samples).reshape(-1, *images.shape[1:])
    return made.astype(np.float32), np.repeat(np.unique(labels), num_samples)


def recognised_beside_gaussians(
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
        "recognised" and "recognised_by_class" for the samples, "real_test_accuracy" for the real test images,
        "num_samples", and "gaussian_recognised" for as many samples from one Gaussian per class.

    Raises:
        DataError: if a class has no sample.

    Example:
        >>> real = np.concatenate([np.zeros((5, 2, 2, 1)), np.ones((5, 2, 2, 1))]), np.repeat([0, 1], 5)
        >>> found = recognised_beside_gaussians(*real, class_names=("dark", "bright"), train=real, test=real)
        >>> found["recognised"], found["gaussian_recognised"]
        (1.0, 1.0)
    """
    from sklearn.svm import SVC

    if set(range(len(class_names))) - set(labels.tolist()):
        raise DataError(f"Each of {len(class_names)} classes needs a sample. Received: classes {sorted(set(labels))}.")
    classifier = SVC().fit(train[0].reshape(len(train[0]), -1), train[1])

    def are_right(pixels: np.ndarray, classes: np.ndarray) -> np.ndarray:
        return np.asarray(classifier.predict(pixels.reshape(len(pixels), -1)) == classes)

    of_samples = are_right(samples, labels)
    of_gaussians = are_right(*gaussian_samples(*train, max(1, len(samples) // len(class_names))))
    return {
        "recognised": float(of_samples.mean()),
        "recognised_by_class": {name: float(of_samples[labels == i].mean()) for i, name in enumerate(class_names)},
        "real_test_accuracy": float(are_right(*test).mean()),
        "num_samples": len(samples),
        "gaussian_recognised": float(of_gaussians.mean()),
    }
