"""Scores of predicted click probabilities, and baselines without a neural network."""

from __future__ import annotations

import numpy as np

from tfaccel.data.interactions.interaction_set import InteractionSet

_MEAN_ROWS = 10  # rows with the mean click rate that are added to those of each item


def click_probabilities(clicks: InteractionSet) -> dict[str, np.ndarray]:
    """Click probabilities of the test rows by the popularity of items, and by the biases of users and items.

    Popularity is an item's click rate in training, drawn to the mean as if by ten more rows. The biases are a logistic
    regression on one-hot encoded ids, with scikit-learn's default penalty.

    Returns:
        Name -> probabilities, of shape (num_test_rows,).
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression

    columns = clicks.table.encoding.categorical
    places = [[column.name for column in columns].index(names[0]) for names in (clicks.user_names, clicks.item_names)]
    train, test = (
        [part.inputs["categories"][:, place] for place in places] for part in (clicks.table.train, clicks.table.test)
    )
    labels = clicks.table.train.targets
    num_items = columns[places[1]].num_codes
    counts, positive = (np.bincount(train[1], weights, num_items) for weights in (None, labels))
    rates = (positive + _MEAN_ROWS * labels.mean()) / (counts + _MEAN_ROWS)

    def one_hot(codes: list[np.ndarray]) -> csr_matrix:
        rows = np.arange(len(codes[0]))
        parts = [
            csr_matrix((np.ones(len(rows)), (rows, one)), (len(rows), columns[place].num_codes))
            for one, place in zip(codes, places, strict=True)
        ]
        return hstack(parts, "csr")

    biases = LogisticRegression(solver="liblinear").fit(one_hot(train), labels)
    return {"item popularity": rates[test[1]], "user and item biases": biases.predict_proba(one_hot(test))[:, 1]}


def score_clicks(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Computes the area under the ROC curve (AUC) and the log loss, in nats.

    Args:
        labels: 1 for a click and 0 otherwise, of shape (num_rows,); both occur.
        probabilities: those of clicks, of the same shape.

    Example:
        >>> score_clicks(np.array([0, 1]), np.array([0.5, 0.5]))
        {'AUC': 0.5, 'log loss': 0.6931471805599453}
    """
    from sklearn.metrics import log_loss, roc_auc_score

    likely = np.clip(np.asarray(probabilities, np.float64), 1e-7, 1 - 1e-7)
    return {"AUC": float(roc_auc_score(labels, likely)), "log loss": float(log_loss(labels, likely))}
