"""Class weights for imbalanced classes."""

import numpy as np

# Above this ratio of the largest to the smallest class, rows of small classes get larger weights.
UNEQUAL_RATIO = 3.0


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
