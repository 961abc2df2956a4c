"""Data for tuning a recipe's settings: the recipe's training data, with a fraction held out for validation.

They are written as user data (`data_dir`), which the recipe reads and splits. No test data are used.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.class_labels import split_rows
from tfaccel.data.images.image_set import digits, few_digits
from tfaccel.data.interactions import KINDS, NUM_INTERACTIONS, NUM_ITEMS, NUM_USERS, generated_tables
from tfaccel.data.series_set import pendulum_series
from tfaccel.data.tables.table import Table
from tfaccel.data.tables.table_data import EMBEDDED_TARGET, embedded_table
from tfaccel.data.tables.tabular_set import target_bins
from tfaccel.data.texts.documentation import Topic, documentation_topics, joined_text
from tfaccel.data.texts.text_data import TEST_PART, TextPairs, dates_in_words, summaries_of_topics
from tfaccel.errors import TfaccelError
from tfaccel.known_names import did_you_mean

NUM_FOLDS = 5  # Each seed holds out a different fifth, if the order of rows does not matter.


def write_validation(recipe: str, folder: Path, *, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Writes a recipe's training data, split again in the way that the recipe splits its data.

    The held-out data are, for digits and tables, one of five stratified folds, chosen by the seed; for series, the last
    fifth; for documentation, topics with a fifth of the text, chosen by the seed, of which the recipe's test fraction
    (a tenth) is used; for dates, a random tenth; for scenes, always the same fifth; for the few digits, all unused
    training images.

    Args:
        recipe: its name.
        folder: an empty folder.
        seed: determines what is held out.

    Returns:
        The arguments of the recipe's `workload` to read these data, and those of the workload that `show_result` uses
        for scoring.

    Raises:
        TfaccelError: for a recipe without data to hold out.
    """
    if recipe not in _WRITERS:
        raise TfaccelError(f"There is no recipe {recipe!r} with settings to choose.{did_you_mean(recipe, _WRITERS)}")
    arguments = _WRITERS[recipe](folder, seed)
    if recipe != "gan":
        return arguments, arguments
    # A classifier trained on the training images scores samples; here it is trained on images unseen by the GAN.
    with np.load(arguments["data_dir"]) as arrays:
        train, kept = ((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    (folder / "judge").mkdir()
    return arguments, _images(folder / "judge", kept, train)


def get_fold(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The training rows and the held-out rows: one of five stratified folds, chosen by the seed.

    Example:
        >>> [len(rows) for rows in get_fold(np.repeat([0, 1], 10), seed=1)]
        [16, 4]
    """
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=0).split(labels, labels)
    train, kept = list(folds)[seed % NUM_FOLDS]
    return train, kept


def get_topics(seed: int) -> tuple[list[Topic], list[Topic]]:
    """Training topics of the documentation, and held-out ones with a fifth of the text (longest assigned first)."""
    topics = [topic for topic in documentation_topics() if not topic.is_held_out]
    lengths = [len(joined_text([topic])) for topic in topics]
    sizes, folds = np.zeros(NUM_FOLDS, int), np.zeros(len(topics), int)
    for number in np.argsort(lengths, kind="stable")[::-1]:
        folds[number] = sizes.argmin()
        sizes[folds[number]] += lengths[number]
    kept = folds == seed % NUM_FOLDS
    parts = [[topic for topic, there in zip(topics, mask, strict=True) if there] for mask in (~kept, kept)]
    return parts[0], parts[1]


def _digits(folder: Path, seed: int) -> dict[str, Any]:
    train, _ = digits().load()
    images = np.asarray(train.images)
    rows, kept = get_fold(train.labels, seed)
    return _images(folder, (images[rows], train.labels[rows]), (images[kept], train.labels[kept]))


def _few_digits(folder: Path, seed: int) -> dict[str, Any]:
    del seed
    train, unused = few_digits(range(5, 10), examples_per_class=20, test_on_unused=True).load()
    arrays = ((np.asarray(part.images), part.labels) for part in (train, unused))
    return {**_images(folder, *arrays), "image_size": 8, "baseline": False}


def _images(folder: Path, *parts: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    (x_train, y_train), (x_test, y_test) = parts
    np.savez(folder / "images.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return {"data_dir": str(folder / "images.npz")}


def _table(name: str, *, classification: bool) -> Callable[[Path, int], dict[str, Any]]:
    def write(folder: Path, seed: int) -> dict[str, Any]:
        table = embedded_table(name)
        train, _ = split_rows(_strata(table, classification))
        train_table = table.rows(train)
        for part, rows in zip(("train", "test"), get_fold(_strata(train_table, classification), seed), strict=True):
            columns = [column.values[rows].tolist() for column in train_table.columns]
            _write_csv(folder / f"{part}.csv", table.names, list(zip(*columns, strict=True)))
        return {"data_dir": str(folder), "target": EMBEDDED_TARGET}

    return write


def _strata(table: Table, classification: bool) -> np.ndarray:
    targets = table.column(EMBEDDED_TARGET).values
    return np.unique(targets, return_inverse=True)[1] if classification else target_bins(targets)


def _series(folder: Path, seed: int) -> dict[str, Any]:
    del seed
    series = pendulum_series()
    rows = [[number, *map(float, row)] for number, row in enumerate(series.values[: series.num_train])]
    _write_csv(folder / "series.csv", ("time", *series.names), rows)
    return {"data_dir": str(folder / "series.csv"), "time_column": "time"}


def _text(folder: Path, seed: int) -> dict[str, Any]:
    train, kept = map(joined_text, get_topics(seed))
    num_kept = int(len(train) * TEST_PART / (1 - TEST_PART))  # The recipe tests on the last tenth of a file.
    (folder / "text.txt").write_text(train + kept[:num_kept], encoding="utf-8")
    return {"data_dir": str(folder / "text.txt")}


def _summaries(folder: Path, seed: int) -> dict[str, Any]:
    train, topics = get_topics(seed)
    pairs = summaries_of_topics(train, topics)
    kept = list(dict.fromkeys([*pairs.test, *(pair for topic in topics for pair in topic.prose())]))
    rows = _placed(list(pairs.train), kept)
    _write_csv(folder / "summaries.csv", ("document", "summary"), rows)
    return {"data_dir": str(folder / "summaries.csv")}


def _placed(train: list[tuple[str, str]], kept: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs, ordered so that `TextPairs.cut` holds out only pairs of `kept`, and trains on all of `train`."""
    num_kept = next(n for n in range(1, len(kept) + 1) if len(_places(len(train) + n)) == n)
    places = _places(len(train) + num_kept)
    rest, others = iter(train), iter(kept)
    return [next(others if row in places else rest) for row in range(len(train) + num_kept)]


def _places(num_pairs: int) -> set[int]:
    """The rows that `TextPairs.cut` holds out for testing."""
    return {int(row) for row, _ in TextPairs.cut([(str(row), "") for row in range(num_pairs)], "rows").test}


def _dates(folder: Path, seed: int) -> dict[str, Any]:
    pairs = dates_in_words().train
    order = np.random.default_rng(seed).permutation(len(pairs))  # The recipe tests on a tenth of the lines.
    for name, column in (("source.txt", 0), ("target.txt", 1)):
        (folder / name).write_text("".join(f"{pairs[row][column]}\n" for row in order), encoding="utf-8")
    return {"data_dir": str(folder)}


def _clicks(folder: Path, seed: int) -> dict[str, Any]:
    table, _, _ = generated_tables(NUM_USERS, NUM_ITEMS, NUM_INTERACTIONS)
    for part, rows in zip(("train", "test"), get_fold(table.column("click").values, seed), strict=True):
        columns = [column.values[rows].tolist() for column in table.columns]
        _write_csv(folder / f"{part}.csv", table.names, list(zip(*columns, strict=True)))
    kinds = ",".join(f"{name}={kind}" for name, kind in KINDS.items())
    features = {"user_features": "region", "item_features": "genre,price", "column_kinds": kinds}
    return {"data_dir": str(folder), **features}


def _scenes(folder: Path, seed: int) -> dict[str, Any]:
    del folder, seed
    return {"test_part": "validation"}


def _write_csv(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


_WRITERS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "autoencoder": _digits,
    "gan": _digits,
    "image_classification": _digits,
    "object_detection": _scenes,
    "recommendation": _clicks,
    "sequence_forecasting": _series,
    "summarization": _summaries,
    "tabular_classification": _table("breast_cancer", classification=True),
    "tabular_regression": _table("diabetes", classification=False),
    "text_generation": _text,
    "transfer_learning": _few_digits,
    "translation": _dates,
}
