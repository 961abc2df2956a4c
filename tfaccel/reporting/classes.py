"""Scores of predicted classes, numbers and clicks, confusion matrices, and baselines without a neural network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfaccel.errors import DataError
from tfaccel.reporting.figures import BLACK, SMALL, new_figure, saved, shown
from tfaccel.training.verdict import BaselineScores

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from tfaccel.data.interactions import InteractionSet
    from tfaccel.data.tables.tabular_set import TabularSet

_MEAN_ROWS = 10  # rows with the mean click rate that are added to those of each item
MAX_EXAMPLES, MAX_SIDE = 3000, 32  # max training images of the support vector machine, and their max side in pixels
_PENALTIES = (1.0, 10.0)
_NUM_FOLDS = 4
_MANY_VALUES = 1_000_000  # in a table, from which on several threads pay
_TABLE_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
MAX_CLASSES = 20  # rows and columns of the plot; further classes are merged into the last one
_MAX_CLASS_NAME = 18  # characters
_MAX_CLASSES_WITH_COUNTS = 12


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


def image_class_scores(
    predictions: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    train_data: Callable[..., Any],
    num_train: int | None = None,
) -> BaselineScores:
    """Compares the accuracy of predictions with a support vector machine on pixels and the most frequent class.

    The penalty is chosen by cross-validation on the training images. Images are subsampled to at most 32x32 pixels, and
    at most 3,000 training images are used.

    Args:
        predictions: the predicted class index of each test image.
        test: pixels and classes of the test images; classes are indices or one-hot rows.
        train_data: `train_data(num_images, seed=0, epoch=0, augmented=False)` returns a dataset whose first batch
            begins with pixels, of shape (num_images, height, width, channels), and classes.
        num_train: number of training images, if known.

    Example:
        >>> import tensorflow as tf
        >>> images = np.repeat([[0.0], [1.0]], 8, axis=0).reshape(16, 1, 1, 1), np.repeat([0, 1], 8)
        >>> data = lambda size, **_: tf.data.Dataset.from_tensor_slices(images).batch(size)
        >>> image_class_scores(np.zeros(16), images, data).beside()
        'accuracy 50.0 % vs. 100.0 % (SVM on pixels), 50.0 % (most frequent class)'
    """
    import tensorflow as tf
    from sklearn.svm import SVC

    batches = train_data(min(num_train or MAX_EXAMPLES, MAX_EXAMPLES), seed=0, epoch=0, augmented=False)
    images, classes = tf.nest.flatten(next(batches.as_numpy_iterator()))[:2]
    pixels, labels, wanted = _small(images), _class_indices(classes), _class_indices(test[1])
    machine = with_best_penalty(SVC(C=_PENALTIES[-1]), labels, _PENALTIES)
    several = len(np.unique(labels)) > 1
    found = machine.fit(pixels, labels).predict(_small(test[0])) if several else wanted * 0 + labels[0]
    return accuracy_scores(float(np.mean(predictions == wanted)), {"SVM on pixels": found}, labels, wanted)


def with_best_penalty(
    model: Any, labels: np.ndarray, penalties: Sequence[float], *, parameter: str = "C", **options: Any
) -> Any:
    """A classifier whose penalty is chosen by cross-validation; as it is if a class has too few examples for that.

    Args:
        model: the classifier.
        labels: the class index of each training example.
        penalties: those to choose from.
        parameter: the name of the penalty.
        **options: as for scikit-learn's `GridSearchCV`.
    """
    from sklearn.model_selection import GridSearchCV

    counts = np.bincount(labels)
    if counts[counts > 0].min() < _NUM_FOLDS:
        return model
    return GridSearchCV(model, {parameter: list(penalties)}, cv=_NUM_FOLDS, **options)


def accuracy_scores(
    score: float, found: Mapping[str, np.ndarray], labels: np.ndarray, wanted: np.ndarray
) -> BaselineScores:
    """Compares an accuracy with those of baselines and of the class that is most frequent in the training data.

    Args:
        score: the model's accuracy on the test examples.
        found: baseline -> its predicted class indices of the test examples.
        labels, wanted: the class indices of the training and of the test examples.
    """
    return BaselineScores(
        metric="accuracy",
        score=score,
        is_fraction=True,
        num_examples=len(wanted),
        baselines={name: float(np.mean(predictions == wanted)) for name, predictions in found.items()},
        trivial={"most frequent class": float(np.mean(wanted == np.bincount(labels).argmax()))},
    )


def _class_indices(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    return labels.argmax(axis=1) if labels.ndim > 1 else labels.astype(int)


def _small(images: np.ndarray) -> np.ndarray:
    """Flattened pixels of images subsampled to at most 32x32 pixels."""
    step = max(1, -(-max(images.shape[1:3]) // MAX_SIDE))
    return np.asarray(images[:, step // 2 :: step, step // 2 :: step], np.float64).reshape(len(images), -1)


def class_probabilities(table: TabularSet) -> dict[str, np.ndarray]:
    """Class probabilities of the test rows by gradient boosting (default settings) and logistic regression.

    The penalty of logistic regression is chosen by cross-validation on the training rows.

    Returns:
        Name -> probabilities, of shape (num_test_rows, num_classes).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    targets = table.train.targets
    weights = None if table.class_weights is None else table.class_weights[targets]
    boosted = HistGradientBoostingClassifier(categorical_features=_is_category(table), random_state=0)
    codes = _codes(table.train.inputs)
    with _threads(codes):
        boosted.fit(codes, targets, sample_weight=weights)
    linear = with_best_penalty(
        _scaled(LogisticRegression(max_iter=500)),
        targets,
        _TABLE_PENALTIES,
        parameter="logisticregression__C",
        scoring="neg_log_loss",
    )
    linear.fit(_numbers(table, table.train.inputs), targets)
    found = {}
    for name, model, rows in (
        ("gradient boosting", boosted, _codes(table.test.inputs)),
        ("logistic regression", linear, _numbers(table, table.test.inputs)),
    ):
        found[name] = np.zeros((len(table.test.targets), len(table.encoding.class_names)))
        with _threads(codes):
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
    codes = _codes(table.train.inputs)
    with _threads(codes):
        numbers = boosted.fit(codes, targets).predict(_codes(table.test.inputs))
    return {
        "ridge regression": np.asarray(ridge.predict(_numbers(table, table.test.inputs)), np.float32),
        "gradient boosting": np.asarray(numbers, np.float32),
        "mean": np.full(len(table.test.targets), np.mean(targets), np.float32),
    }


def _threads(codes: np.ndarray) -> Any:
    """Within the block, gradient boosting takes one thread for a small table.

    At the end of each of its thousands of short loops, all threads wait for each other, actively. Where other programs
    use the cores, two threads took 8 to 29 seconds for what one does in 0.7 seconds.
    """
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1 if codes.size < _MANY_VALUES else None, user_api="openmp")


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


def confusion_figure(matrices: Mapping[str, np.ndarray], *, class_names: tuple[str, ...]) -> Figure:
    """Plots one confusion matrix per model.

    Rows are true classes, columns predicted ones; the larger a cell's fraction of its row, the darker it is.
    With more than 20 classes, the last ones are merged into "others".

    Args:
        matrices: model -> counts, of shape (num_classes, num_classes).
        class_names: the name of each class.

    Example:
        >>> figure = confusion_figure({"network": np.array([[8, 1], [0, 9]])}, class_names=("cat", "dog"))
        >>> figure.axes[0].get_title()
        'network: accuracy 94.4 %'
    """
    num_classes = len(class_names)
    wrong = [name for name, matrix in matrices.items() if matrix.shape != (num_classes, num_classes)]
    if not matrices or wrong:
        raise DataError(
            f"Each model needs counts of shape ({num_classes}, {num_classes}), and there must be a model. "
            f"Received: {', '.join(f'{name} {matrices[name].shape}' for name in wrong) or 'none'}."
        )
    is_rotated = min(num_classes, MAX_CLASSES) > 3
    figure = new_figure(120 + 440 * len(matrices), 500 + 100 * is_rotated)
    all_axes = figure.subplots(1, len(matrices), squeeze=False, sharey=True)[0]
    for axes, (model, matrix) in zip(all_axes, matrices.items(), strict=True):
        counts, names = joined(matrix, class_names)
        fractions = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        texts = [shown(name, _MAX_CLASS_NAME) for name in names]
        axes.set_xticks(range(len(names)), texts, rotation=90 * is_rotated, fontsize=SMALL)
        axes.set_yticks(range(len(names)), texts, fontsize=SMALL)
        accuracy = 100 * np.trace(matrix) / max(1, matrix.sum())
        axes.set(title=f"{shown(model, 30)}: accuracy {accuracy:.1f} %", xlabel="predicted class")
        if len(names) <= _MAX_CLASSES_WITH_COUNTS:
            for row, column in np.ndindex(counts.shape):
                color = "white" if fractions[row, column] > 0.5 else BLACK
                axes.text(
                    column, row, f"{counts[row, column]:.0f}", ha="center", va="center", fontsize=SMALL, color=color
                )
    all_axes[0].set_ylabel("true class")
    return figure


save_confusion_picture = saved(confusion_figure)


def save_confusions(
    path: Path, labels: np.ndarray, probabilities: Mapping[str, np.ndarray], *, class_names: tuple[str, ...]
) -> None:
    """Saves the plot of `confusion_figure` for predicted probabilities.

    Args:
        path: the PNG file to write.
        labels: the true class index of each example.
        probabilities: model -> class probabilities, of shape (num_examples, num_classes).
        class_names: the name of each class.
    """
    from sklearn.metrics import confusion_matrix

    numbers = range(len(class_names))
    matrices = {
        name: confusion_matrix(labels, values.argmax(axis=1), labels=numbers) for name, values in probabilities.items()
    }
    save_confusion_picture(path, matrices, class_names=class_names)


def joined(matrix: np.ndarray, class_names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns counts and names, with the last classes merged if there are more than `MAX_CLASSES`.

    Example:
        >>> counts, names = joined(np.ones((30, 30), int), tuple(map(str, range(30))))
        >>> counts.shape, names[-1], int(counts[-1, -1])
        ((20, 20), 'others', 121)
    """
    if len(class_names) <= MAX_CLASSES:
        return matrix, class_names
    kept = np.arange(MAX_CLASSES)
    counts = np.add.reduceat(np.add.reduceat(matrix, kept, axis=0), kept, axis=1)
    return counts, (*class_names[: MAX_CLASSES - 1], "others")
