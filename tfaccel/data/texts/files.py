"""Text read from files: whole files, their lines, columns of tables, and labeled texts."""

from __future__ import annotations

import io
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import SKIP_ADVICE, BadData
from tfaccel.data.characters import get_codec, read_characters, text_damage
from tfaccel.data.class_labels import LabelledTexts, labelled_texts
from tfaccel.data.folder_files import class_folders, files_below, part_folders, passed_over
from tfaccel.data.named_sets import read_hugging_face_texts, read_tfds_texts
from tfaccel.data.tables.column_kinds import check_spellings
from tfaccel.data.tables.files import read_table
from tfaccel.data.texts.documentation import GROUP_NAMES, documentation_topics
from tfaccel.errors import DataError
from tfaccel.remote import readable_path

_TEST_FRACTION = 0.1

logger = logging.getLogger("tfaccel")
_SUFFIXES = (".txt",)


def read_text(
    path: str | os.PathLike[str], *, encoding: str = "utf-8", keeps_damage: bool = False, advice: str = SKIP_ADVICE
) -> str:
    """The text of a file, with line endings normalized to newlines.

    Args:
        path: the file, which may be compressed.
        encoding: Python's name of its encoding. UTF-16 with its byte order mark is recognized.
        keeps_damage: whether zero bytes, and bytes that are not in the encoding, are kept for `text_damage` to find.
        advice: the end of messages about them.

    Raises:
        DataError: if the file does not exist, cannot be read, is empty, holds zero bytes, or is in another encoding
            (the line is named).

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.txt")
        ...     _ = path.write_text("one\\ntwo\\n")
        ...     read_text(path)
        'one\\ntwo\\n'
    """
    path = readable_path(path, DataError)
    if path.is_dir():
        raise DataError(f"Expected a text file. Received the folder {path}.")
    how = f"Save the file as UTF-8. {advice}"
    text = read_characters(path, get_codec(encoding), keeps_damage=keeps_damage, advice=how)
    if "\0" in text and not keeps_damage:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(
            f"{path} is damaged, or not a text file: line {line} holds a zero byte. Repair the file. {advice}".strip()
        )
    if not text.strip():
        raise DataError(f"{path} holds no text.")
    return text


def whole_lines(path: str | os.PathLike[str], bad_data: BadData) -> list[str]:
    """The lines of a text file with their ends, without damaged ones.

    Raises:
        DataError: as `read_text` does, if damaged lines are not left out.
    """
    text = read_text(path, keeps_damage=bad_data.skips)
    lines = list(io.StringIO(text, newline="\n"))  # `str.splitlines` also splits at U+2028, U+0085 and form feeds
    wrong = {number: text_damage(line) for number, line in enumerate(lines, start=1)}
    for number, damage in wrong.items():
        if damage:
            bad_data.found(DataError(f"{path}, line {number}: {damage}."), path, number)
    return [line for number, line in enumerate(lines, start=1) if not wrong[number]]


def read_text_parts(
    path: str | os.PathLike[str], *, min_characters: int, bad_data: BadData | None = None
) -> tuple[str, str]:
    """The first 90 % of the text of a file, for training, and the last 10 %, for testing.

    Args:
        path: the file.
        min_characters: minimum length of each part.
        bad_data: what to do with damaged lines; None for `BadData()`, which raises an error.

    Raises:
        DataError: if the file cannot be read, or is too short.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.txt")
        ...     _ = path.write_text("one two three four five.")
        ...     read_text_parts(path, min_characters=1)
        ('one two three four fiv', 'e.')
    """
    bad_data = bad_data or BadData()
    lines = whole_lines(path, bad_data)
    bad_data.finish(len(lines), "lines")
    text = "".join(lines)
    least = int(np.ceil(2 * min_characters / _TEST_FRACTION))
    if len(text) < least:
        raise DataError(f"{path} has {len(text)} characters; it needs at least {least} to train and test with.")
    cut = len(text) - int(_TEST_FRACTION * len(text))
    return text[:cut], text[cut:]


def read_columns(
    path: str | os.PathLike[str],
    columns: tuple[str, str],
    bad_data: BadData | None = None,
    *,
    encoding: str = "utf-8",
    texts: tuple[str, ...] | None = None,
) -> tuple[list[str], list[str]]:
    """Two columns of texts in a table, read as by `read_table`. No value may be empty.

    Args:
        path: the file.
        columns: the names of the columns.
        bad_data: what to do with damaged rows.
        encoding: Python's name of the encoding of a CSV file.
        texts: those of natural text, in which "NA" is a word; None for both.

    Raises:
        DataError: if the file cannot be read, lacks a column (the message suggests the closest name), or has a
            malformed row (its line is named).

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.csv")
        ...     _ = path.write_text("label,text\\ngood,It works.\\n")
        ...     read_columns(path, ("text", "label"))
        (['It works.'], ['good'])
    """
    bad_data = bad_data or BadData()
    table = read_table(path, encoding=encoding, bad_data=bad_data, texts=columns if texts is None else texts)
    values = [table.column(name).texts() for name in columns]
    is_whole = np.ones(table.num_rows, bool)
    for column in columns:
        for row in np.flatnonzero(is_whole & table.column(column).missing).tolist():
            place = table.place(row)
            text = f"{path}, line {place}: column {column!r} is empty. Fill or remove it."
            bad_data.found(DataError(text), path, place)
            is_whole[row] = False
    bad_data.finish(int(is_whole.sum()), "rows")
    return values[0][is_whole].tolist(), values[1][is_whole].tolist()


def read_aligned_lines(
    first: str | os.PathLike[str], second: str | os.PathLike[str], bad_data: BadData | None = None
) -> list[tuple[str, str]]:
    """The pairs of lines of two line-aligned files.

    Args:
        first, second: the files.
        bad_data: what to do with pairs of lines of which one is damaged, or empty. Files of different length are always
            an error: which lines belong together is not known.

    Raises:
        DataError: if a file cannot be read, or a line has no counterpart in the other file (the line is named).
    """
    bad_data = bad_data or BadData()
    texts = [read_text(path, keeps_damage=bad_data.skips) for path in (first, second)]
    lines = [text.removesuffix("\n").split("\n") for text in texts]
    if len(lines[0]) != len(lines[1]):
        longer, shorter = (first, second) if len(lines[0]) > len(lines[1]) else (second, first)
        line = min(map(len, lines)) + 1
        raise DataError(
            f"{first} and {second} are not aligned: line {line} of {longer} has no line in {shorter}, which ends with "
            f"line {line - 1}. Give every line its translation."
        )
    kept = []
    for number, (a, b) in enumerate(zip(*lines, strict=True), start=1):
        damaged = [(path, wrong) for path, text in ((first, a), (second, b)) if (wrong := text_damage(text))]
        if damaged:
            bad_data.found(DataError(f"{damaged[0][0]}, line {number}: {damaged[0][1]}."), damaged[0][0], number)
        elif bool(a.strip()) != bool(b.strip()):
            empty, full = (first, second) if b.strip() else (second, first)
            error = DataError(
                f"{first} and {second} are not aligned: line {number} of {empty} is empty, but that of {full} is not."
            )
            bad_data.found(error, empty, number)
        elif a.strip():
            kept.append((a.strip(), b.strip()))
    bad_data.finish(len(kept), "pairs of lines")
    return kept


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

    A folder may have `train` and `test` instead, with a sub-folder for each class in both. "tfds:NAME" is a dataset of
    TensorFlow Datasets, "hf:NAME" one of Hugging Face; see `tfaccel.data.named_sets` for their splits. Without a test
    part, a stratified fifth of the texts, always the same, is held out for testing.

    Args:
        data_dir: the file or folder, or the name of the dataset.
        text_column: the column of the texts, in a table or dataset.
        label_column: the column of their classes.
        encoding: Python's name of the encoding of a CSV file, or of text files.
        bad_data: what to do with damaged rows, records and files; None for `BadData()`, which raises an error.

    Raises:
        DataError: if something cannot be read (it is named), a class has fewer than two texts, or there is only one
            class.
    """
    columns: dict[str, Any] = {"text_column": text_column, "label_column": label_column}
    bad_data = bad_data or BadData()
    path = readable_path(data_dir, DataError)
    if str(data_dir).startswith("tfds:"):
        return read_tfds_texts(str(data_dir), **columns, bad_data=bad_data)
    if str(data_dir).startswith("hf:"):
        return read_hugging_face_texts(str(data_dir), **columns)
    if path.is_dir():
        parts = _read_folder(path, bad_data, encoding)
    elif path.exists():
        chosen = text_column, label_column
        read = read_columns(path, chosen, bad_data, encoding=encoding, texts=chosen[:1])
        parts = [list(zip(*read, strict=True))]
        check_spellings({label for _, label in parts[0]}, f"The column {label_column!r} of {path}")
    else:
        raise DataError(f"There is no folder or file {path} (`data_dir`).")
    names = tuple(sorted({label for part in parts for _, label in part}))
    if len(names) < 2:
        raise DataError(f"{path} must have at least two classes. Received one, {names[0]!r}.")
    labels = [np.array([names.index(label) for _, label in part]) for part in parts]
    return labelled_texts(names, [[text for text, _ in part] for part in parts], labels, str(path))


def _read_folder(folder: Path, bad_data: BadData, encoding: str) -> list[list[tuple[str, str]]]:
    """Pairs of a text and its class: of the folders of the training and the test part, or of all classes."""
    folders = part_folders(folder) or [folder]
    classes = [entry.name for entry in class_folders(folders[0])]
    if not classes:
        raise DataError(f"{folders[0]} must have one sub-folder of .txt files for each class. Received: none.")
    parts: list[list[tuple[str, str]]] = []
    used: list[Path] = []
    for part in folders:
        unknown = next((entry.name for entry in class_folders(part) if entry.name not in classes), None)
        if unknown is not None:
            raise DataError(f"{part} has the class {unknown!r}, which the training texts do not have.")
        pairs: list[tuple[str, str]] = []
        for name in classes:
            files = files_below(part / name, _SUFFIXES) if (part / name).is_dir() else []
            used += files
            if not files:
                raise DataError(f"The class folder {part / name} holds no .txt file.")
            texts = [bad_data.tried(partial(read_text, file, encoding=encoding), file) for file in files]
            pairs += [(text, name) for text in texts if text is not None]
        parts.append(pairs)
    others = passed_over(folder, used, _SUFFIXES)
    if others:
        logger.warning(others)
    bad_data.finish(sum(map(len, parts)), "texts")
    return parts
