"""Labels that are probably wrong: a cross-validated model confidently predicts others."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.extras.inspection.findings import Examples, Finding

_MAX_EXAMPLES = 10_000  # larger datasets are sampled
_NUM_FOLDS = 5
_MIN_CLASS_EXAMPLES = 10  # smaller classes cannot be learned
_CLEARLY = 0.5  # minimum lead of the likelier class over the given one
_MIN_KAPPA = 0.65  # minimum agreement with the labels, beyond chance, of a classifier that may doubt them
_TEMPERATURES = np.geomspace(0.3, 20.0, 60)
KIND = "probable label error"


def probable_label_errors(classifier: Any, features: Any, examples: Examples) -> list[Finding]:
    r"""Examples whose label is doubted by a classifier trained on the other folds.

    The classifier's probabilities are first calibrated by temperature scaling: normalized powers $p^{1/T}$, with the T
    that maximizes the likelihood of the labels. With $\hat p_j(x)$ the cross-validated probability of class j, and
    $t_j$ its mean over the examples labeled j, the label i of an example is doubted if some $j \ne i$ has
    $\hat p_j(x) \ge t_j$ and $\hat p_j(x) - \hat p_i(x) \ge 0.5$. The clearest cases come first.

    A classifier that rarely agrees with the labels (Cohen's kappa below 0.65) doubts none, since most of its doubts
    would be its own errors. A finding reports this.

    Args:
        classifier: a scikit-learn classifier with `predict_proba`.
        features: of shape (num_examples, num_features), dense or sparse.
        examples: names and labels; examples without a label and classes with fewer than ten examples are skipped.

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
    from sklearn.metrics import cohen_kappa_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    rows, labels = _usable_rows(examples)
    if not len(rows):
        return []
    folds = StratifiedKFold(_NUM_FOLDS, shuffle=True, random_state=0)
    probabilities = cross_val_predict(classifier, features[rows], labels, cv=folds, method="predict_proba")
    names = np.unique(labels)
    given = np.searchsorted(names, labels)
    guessed = probabilities.argmax(axis=1)
    if not cohen_kappa_score(given, guessed) >= _MIN_KAPPA:
        text = f"a simple classifier gives the label of {np.mean(guessed == given):.0%} of the examples only"
        return [Finding("labels not checked", "labels", text, "It cannot say which labels are wrong.")]
    probabilities = _calibrated(probabilities, given)
    own = probabilities[np.arange(len(rows)), given]
    thresholds = np.array([own[given == number].mean() for number in range(len(names))])
    others = np.where(probabilities >= thresholds, probabilities, 0.0)
    others[np.arange(len(rows)), given] = 0.0
    lead = others.max(axis=1) - own
    doubtful = np.flatnonzero(lead >= _CLEARLY)
    return [
        Finding(
            KIND,
            examples.names[rows[number]],
            f"it is labeled {labels[number]}, but looks like {names[others[number].argmax()]} "
            f"({100 * others[number].max():.0f} % against {100 * own[number]:.0f} %)",
            "Look at it.",
        )
        for number in doubtful[np.argsort(-lead[doubtful], kind="stable")]
    ]


def _calibrated(probabilities: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The probabilities at the temperature that maximizes the likelihood of the labels."""
    logits = np.log(np.clip(probabilities, 1e-12, 1.0))
    best, least = probabilities, np.inf
    for temperature in _TEMPERATURES:
        scaled = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
        scaled /= scaled.sum(axis=1, keepdims=True)
        loss = -float(np.log(np.clip(scaled[np.arange(len(given)), given], 1e-12, 1.0)).mean())
        if loss < least:
            best, least = scaled, loss
    return best


def _usable_rows(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """The rows to check, and their labels; empty if fewer than two classes have enough examples."""
    none = np.array([], dtype=np.int64), np.array([], dtype=str)
    if examples.labels is None:
        return none
    rows = np.array([row for row, label in enumerate(examples.labels) if label is not None], dtype=np.int64)
    if len(rows) > _MAX_EXAMPLES:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MAX_EXAMPLES, replace=False))
    labels = examples.labels[rows].astype(str)
    names, counts = np.unique(labels, return_counts=True)
    is_usable = np.isin(labels, names[counts >= _MIN_CLASS_EXAMPLES])
    if np.sum(counts >= _MIN_CLASS_EXAMPLES) < 2:
        return none
    return rows[is_usable], labels[is_usable]
