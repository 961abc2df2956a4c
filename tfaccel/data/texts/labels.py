"""Labeled texts: passages of CPython's documentation, or a user's file, folder or named dataset."""

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.folder_files import class_folders, files_below, passed_over
from tfaccel.data.texts.documentation import GROUP_NAMES, documentation_topics
from tfaccel.data.texts.files import read_columns, read_text
from tfaccel.data.texts.labelled_texts import LabelledTexts, labelled_texts
from tfaccel.errors import DataError
from tfaccel.local_path import local_path

logger = logging.getLogger("tfaccel")

_SUFFIXES = (".txt",)


def documentation_passages() -> LabelledTexts:
    """Passages of CPython's documentation and the chapter group of each; no topic is in both parts.

    Example:
        >>> documentation_passages().class_names
        ('statements', 'expressions', 'data model', 'library', 'names and literals')
    """
    parts: dict[bool, list[tuple[str, int]]] = {False: [], True: []}
    for topic in documentation_topics():
        parts[topic.is_held_out] += [(text, GROUP_NAMES.index(topic.group)) for text in topic.passages()]
    return LabelledTexts.of(GROUP_NAMES, parts[False], parts[True])


def read_labelled_texts(
    data_dir: str | os.PathLike[str],
    *,
    text_column: str = "text",
    label_column: str = "label",
    encoding: str = "utf-8",
    bad_data: BadData | None = None,
) -> LabelledTexts:
    """Texts from a table, from a folder with a sub-folder of `.txt` files for each class, or from a named dataset.

    "tfds:NAME" is a dataset of TensorFlow Datasets, "hf:NAME" one of Hugging Face; see `tfds_sets` and `hugging_face`
    for their splits. From other sources a stratified fifth of the texts, always the same, is held out for testing.

    Args:
        data_dir: the file or folder, or the name of the dataset.
        text_column: the column of the texts, in a table or dataset.
        label_column: the column of their classes.
        encoding: Python's name of the encoding of a CSV file.
        bad_data: what to do with damaged rows, records and files; None for `BadData()`, which raises an error.

    Raises:
        DataError: if something cannot be read (it is named), a class has fewer than two texts, or there is only one
            class.
    """
    columns: dict[str, Any] = {"text_column": text_column, "label_column": label_column}
    bad_data = bad_data or BadData()
    path = local_path(data_dir, DataError)
    if str(data_dir).startswith("tfds:"):
        from tfaccel.data.tfds_sets import read_tfds_texts

        return read_tfds_texts(str(data_dir), **columns, bad_data=bad_data)
    if str(data_dir).startswith("hf:"):
        from tfaccel.data.hugging_face import read_hugging_face_texts

        return read_hugging_face_texts(str(data_dir), **columns)
    if path.is_dir():
        pairs = _read_folder(path, bad_data)
    elif path.exists():
        pairs = list(zip(*read_columns(path, (text_column, label_column), bad_data, encoding=encoding), strict=True))
    else:
        raise DataError(f"There is no folder or file {path} (`data_dir`).")
    names = tuple(sorted({label for _, label in pairs}))
    if len(names) < 2:
        raise DataError(f"{path} must have at least two classes. Received one, {names[0]!r}.")
    labels = np.array([names.index(label) for _, label in pairs])
    return labelled_texts(names, [[text for text, _ in pairs]], [labels], str(path))


def _read_folder(folder: Path, bad_data: BadData) -> list[tuple[str, str]]:
    classes = class_folders(folder)
    if not classes:
        raise DataError(f"{folder} must have one sub-folder of .txt files for each class. Received: none.")
    pairs: list[tuple[str, str]] = []
    used: list[Path] = []
    for entry in classes:
        files = files_below(entry, _SUFFIXES)
        used += files
        if not files:
            raise DataError(f"The class folder {entry} holds no .txt file.")
        texts = [bad_data.tried(partial(read_text, file), file) for file in files]
        pairs += [(text, entry.name) for text in texts if text is not None]
    others = passed_over(folder, used, _SUFFIXES)
    if others:
        logger.warning(others)
    bad_data.finish(len(pairs), "texts")
    return pairs
