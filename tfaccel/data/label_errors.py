"""Labels that are probably wrong: those that a model which has not seen them is confident are others."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.inspection import Examples, Finding

_MOST_EXAMPLES = 10_000  # a sample of more is looked at
_NUM_FOLDS = 5
_MOST_NAMED = 20
_CLEARLY = 0.5  # by which the likelier class must be ahead of the given one


def probable_label_errors(classifier: Any, features: Any, examples: Examples) -> list[Finding]:
    r"""Examples whose label a classifier doubts that was trained on the other folds.

    With $\hat p_j(x)$ the cross-validated probability of class j, and $t_j$ its mean over the examples labelled j, an
    example labelled i is in doubt where some $j \ne i$ has $\hat p_j(x) \ge t_j$ and $\hat p_j(x) - \hat p_i(x) \ge
    0.5$. The clearest come first.

    Arguments:
        classifier: one of scikit-learn's, with `predict_proba`.
        features: of shape (num_examples, num_features), dense or sparse.
        examples: names and labels; those without a label are passed over, and classes with fewer than two examples.

    Returns:
        Findings, at most twenty and one that counts the others.

    Source: Northcutt et al., Confident learning, 2021, https://arxiv.org/abs/1911.00068

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> x, labels = np.repeat([[0.0], [9.0]], 20, axis=0), np.repeat(np.array(["a", "b"], dtype=object), 20)
        >>> labels[3] = "b"
        >>> names = tuple(f"row {row}" for row in range(1, 41))
        >>> examples = Examples(names, np.array(["train"] * 40), tuple(range(40)), labels)
        >>> [finding.where for finding in probable_label_errors(LogisticRegression(), x, examples)]
        ['row 4']
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    rows, labels, num_folds = _usable_rows(examples)
    if num_folds < 2:
        return []
    folds = StratifiedKFold(num_folds, shuffle=True, random_state=0)
    probabilities = cross_val_predict(classifier, features[rows], labels, cv=folds, method="predict_proba")
    names = np.unique(labels)
    given = np.searchsorted(names, labels)
    own = probabilities[np.arange(len(rows)), given]
    thresholds = np.array([own[given == number].mean() for number in range(len(names))])
    others = np.where(probabilities >= thresholds, probabilities, 0.0)
    others[np.arange(len(rows)), given] = 0.0
    lead = others.max(axis=1) - own
    doubtful = np.flatnonzero(lead >= _CLEARLY)
    doubtful = doubtful[np.argsort(-lead[doubtful], kind="stable")]
    found = [
        Finding(
            "probable label error",
            examples.names[rows[number]],
            f"it is labelled {labels[number]}, but looks like {names[others[number].argmax()]} "
            f"({100 * others[number].max():.0f} % against {100 * own[number]:.0f} %)",
            "Look at it.",
        )
        for number in doubtful[:_MOST_NAMED]
    ]
    more = len(doubtful) - len(found)
    return [*found, Finding("probable label error", "elsewhere", f"{more} more", "Look at them.")] if more else found


def _usable_rows(examples: Examples) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows to look at, their labels, and into how many folds they can be cut (0: no two classes)."""
    none = np.array([], dtype=np.int64), np.array([], dtype=str), 0
    if examples.labels is None:
        return none
    rows = np.array([row for row, label in enumerate(examples.labels) if label is not None], dtype=np.int64)
    if len(rows) > _MOST_EXAMPLES:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_EXAMPLES, replace=False))
    labels = examples.labels[rows].astype(str)
    names, counts = np.unique(labels, return_counts=True)
    is_usable = np.isin(labels, names[counts >= 2])
    if np.sum(counts >= 2) < 2:
        return none
    return rows[is_usable], labels[is_usable], int(min(_NUM_FOLDS, counts[counts >= 2].min()))
