"""Scores of predicted classes and numbers."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Converts logits of shape (num_rows, num_classes) to probabilities.

    Example:
        >>> softmax(np.array([[0.0, 0.0]])).tolist()
        [[0.5, 0.5]]
    """
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def class_scores(targets: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Computes accuracy, balanced accuracy (the mean per-class accuracy) and log loss (in nats).

    Args:
        targets: the true class indices, of shape (num_rows,).
        probabilities: of shape (num_rows, num_classes).

    Example:
        >>> class_scores(np.array([0, 0, 0, 1]), np.array([[0.5, 0.5]] * 4))
        {'accuracy': 0.75, 'balanced accuracy': 0.5, 'log loss': 0.6931471805599453}
    """
    is_right = probabilities.argmax(axis=1) == targets
    of_true = np.clip(probabilities[np.arange(len(targets)), targets], 1e-7, 1.0)
    balanced = np.mean([is_right[targets == number].mean() for number in np.unique(targets)])
    return {
        "accuracy": float(is_right.mean()),
        "balanced accuracy": float(balanced),
        "log loss": float(-np.log(of_true).mean()),
    }


def score_numbers(targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Computes R² and mean absolute error.

    Args:
        targets: the true values, of shape (num_rows,).
        predictions: of the same shape.

    Example:
        >>> score_numbers(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0]))
        {'r2': 1.0, 'mean absolute error': 0.0}
    """
    from sklearn.metrics import mean_absolute_error, r2_score

    errors = float(mean_absolute_error(targets, predictions))
    return {"r2": float(r2_score(targets, predictions)), "mean absolute error": errors}
