"""How much the rows of each class are to count, where classes are of unequal size."""

import numpy as np

# From this ratio of the largest to the smallest class on, rows of small classes are made to count more.
UNEQUAL_RATIO = 3.0


def balanced_weights(counts: np.ndarray) -> np.ndarray:
    r"""Weights with which all classes count the same: $n / (k n_c)$ for k classes and n rows, $n_c$ of a class.

    Args:
        counts: rows of each class, none of them 0.

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
