"""Baselines for tables, without a neural network."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.tables.tabular_set import TabularSet

_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
_NUM_FOLDS = 4


def class_probabilities(table: TabularSet) -> dict[str, np.ndarray]:
    """Class probabilities of the test rows by gradient boosting (default settings) and logistic regression.

    The penalty of logistic regression is chosen by cross-validation on the training rows.

    Returns:
        Name -> probabilities, of shape (num_test_rows, num_classes).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    targets = table.train.targets
    weights = None if table.class_weights is None else table.class_weights[targets]
    boosted = HistGradientBoostingClassifier(categorical_features=_is_category(table), random_state=0)
    boosted.fit(_codes(table.train.inputs), targets, sample_weight=weights)
    linear = _scaled(LogisticRegression(max_iter=500))
    counts = np.bincount(targets)
    if counts[counts > 0].min() >= _NUM_FOLDS:
        linear = GridSearchCV(
            linear, {"logisticregression__C": list(_PENALTIES)}, cv=_NUM_FOLDS, scoring="neg_log_loss"
        )
    linear.fit(_numbers(table, table.train.inputs), targets)
    found = {}
    for name, model, rows in (
        ("gradient boosting", boosted, _codes(table.test.inputs)),
        ("logistic regression", linear, _numbers(table, table.test.inputs)),
    ):
        found[name] = np.zeros((len(table.test.targets), len(table.encoding.class_names)))
        found[name][:, model.classes_] = model.predict_proba(rows)
    return found


def predicted_numbers(table: TabularSet) -> dict[str, np.ndarray]:
    """Predictions for the test rows by ridge regression, gradient boosting (default settings) and the training mean.

    The penalty of ridge regression is chosen by cross-validation on the training rows.

    Returns:
        Name -> predictions, of shape (num_test_rows,).
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    targets = table.train.targets
    ridge = _scaled(RidgeCV(alphas=np.logspace(-2, 4, 25))).fit(_numbers(table, table.train.inputs), targets)
    boosted = HistGradientBoostingRegressor(categorical_features=_is_category(table), random_state=0)
    boosted.fit(_codes(table.train.inputs), targets)
    return {
        "ridge regression": np.asarray(ridge.predict(_numbers(table, table.test.inputs)), np.float32),
        "gradient boosting": np.asarray(boosted.predict(_codes(table.test.inputs)), np.float32),
        "mean": np.full(len(table.test.targets), np.mean(targets), np.float32),
    }


def _scaled(model: Any) -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler(), model)


def _codes(inputs: Any) -> np.ndarray:
    """Categorical columns as codes, then numeric ones."""
    return np.concatenate([np.asarray(inputs[name], np.float64) for name in sorted(inputs)], axis=1)


def _is_category(table: TabularSet) -> np.ndarray:
    is_category = np.arange(_codes(table.train.inputs).shape[1]) < len(table.encoding.categorical)
    few = [column.num_codes <= 255 for column in table.encoding.categorical]  # max categories of gradient boosting
    is_category[: len(few)] = few
    return is_category


def _numbers(table: TabularSet, inputs: Any) -> np.ndarray:
    """Numeric columns, then one-hot encoded categories."""
    parts = [np.asarray(inputs["numbers"], np.float64)] if "numbers" in inputs else []
    for number, column in enumerate(table.encoding.categorical):
        parts.append(np.eye(column.num_codes)[inputs["categories"][:, number]])
    return np.concatenate(parts, axis=1)
