"""The noun `LabelledTexts`: texts with a class each, cut into a training and a test part."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfaccel.data.image_set import split_rows
from tfaccel.data.text_documentation import GROUP_NAMES, documentation_topics
from tfaccel.data.text_files import read_columns, read_text
from tfaccel.errors import DataError


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """Texts with a class each, cut into a training and a test part.

    Arguments:
        class_names: a name for each class.
        train_texts: the texts to train on.
        train_labels: the class of each, a number from 0.
        test_texts: the texts to test with.
        test_labels: the class of each.
    """

    class_names: tuple[str, ...]
    train_texts: tuple[str, ...]
    train_labels: tuple[int, ...]
    test_texts: tuple[str, ...]
    test_labels: tuple[int, ...]


def documentation_passages() -> LabelledTexts:
    """Passages of CPython's documentation and the chapter group of each; no topic is in both parts.

    Example:
        >>> documentation_passages().class_names
        ('statements', 'expressions', 'data model', 'library', 'names and literals')
    """
    parts: dict[bool, list[tuple[str, int]]] = {False: [], True: []}
    for topic in documentation_topics():
        parts[topic.is_held_out] += [(text, GROUP_NAMES.index(topic.group)) for text in topic.passages()]
    return _labelled(GROUP_NAMES, parts[False], parts[True])


def read_labelled_texts(
    data_dir: str | os.PathLike[str], *, text_column: str = "text", label_column: str = "label"
) -> LabelledTexts:
    """Texts from a CSV file, or from a folder with a sub-folder of `.txt` files for each class.

    A stratified fifth of the texts is kept for testing, always the same one.

    Arguments:
        data_dir: the file or folder.
        text_column: the column of the texts, in a CSV file.
        label_column: the column of their classes.

    Raises:
        DataError: if something cannot be read (it is named), a class has fewer than two texts, or there is one only.
    """
    path = Path(data_dir)
    if path.is_dir():
        pairs = _read_folder(path)
    elif path.exists():
        pairs = list(zip(*read_columns(path, (text_column, label_column)), strict=True))
    else:
        raise DataError(f"There is no folder or file {path} (`data_dir`).")
    counts = Counter(label for _, label in pairs)
    names = tuple(sorted(counts))
    if len(names) < 2:
        raise DataError(f"{path} must have at least two classes. Received one, {names[0]!r}.")
    rarest = min(names, key=lambda name: counts[name])
    if counts[rarest] < 2:
        raise DataError(
            f"Class {rarest!r} in {path} has one text; two are the least, one to train on and one to test with."
        )
    rows = [(text, names.index(label)) for text, label in pairs]
    train, test = split_rows(np.array([label for _, label in rows]))
    return _labelled(names, [rows[i] for i in sorted(train)], [rows[i] for i in sorted(test)])


def _read_folder(folder: Path) -> list[tuple[str, str]]:
    classes = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    if not classes:
        raise DataError(f"{folder} must have one sub-folder of .txt files for each class. Received: none.")
    pairs = []
    for entry in classes:
        files = [file for file in sorted(entry.iterdir()) if file.suffix.lower() == ".txt"]
        if not files:
            raise DataError(f"The class folder {entry} holds no .txt file.")
        pairs += [(read_text(file), entry.name) for file in files]
    return pairs


def _labelled(names: tuple[str, ...], train: list[tuple[str, int]], test: list[tuple[str, int]]) -> LabelledTexts:
    return LabelledTexts(
        class_names=names,
        train_texts=tuple(text for text, _ in train),
        train_labels=tuple(label for _, label in train),
        test_texts=tuple(text for text, _ in test),
        test_labels=tuple(label for _, label in test),
    )
