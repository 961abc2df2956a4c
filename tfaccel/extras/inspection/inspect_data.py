"""`inspect_data`: inspects a dataset of tables, images or texts, without changing it."""

from __future__ import annotations

import os
from pathlib import Path

from tfaccel.data.characters import data_suffix
from tfaccel.data.images.idx_files import find_idx_files
from tfaccel.data.images.image_check import IMAGE_SUFFIXES
from tfaccel.data.tables.column_kinds import kinds_from_text
from tfaccel.data.tables.files import CSV_SUFFIXES, PARQUET_SUFFIXES, TABLE_SUFFIXES, read_table
from tfaccel.data.tables.table import Table
from tfaccel.errors import DataError
from tfaccel.extras.inspection.findings import InspectionReport, Progress, no_progress
from tfaccel.extras.inspection.images import coco_files, inspect_coco, inspect_image_arrays, inspect_image_files
from tfaccel.extras.inspection.table import inspect_tables
from tfaccel.extras.inspection.texts import TEXT_SUFFIXES, inspect_text_file, inspect_text_files, inspect_text_tables
from tfaccel.remote import readable_path

_TABLE_SUFFIXES = CSV_SUFFIXES + PARQUET_SUFFIXES


def inspect_data(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    text_column: str | None = None,
    column_kinds: str = "",
    encoding: str = "utf-8",
    progress: Progress = no_progress,
) -> InspectionReport:
    """Inspects a dataset: shape and types, missing values, class balance, duplicates, leaks, labels, memory.

    Args:
        path: a table (.csv, .tsv, .parquet); images in a `.npz` file, or in the IDX files of a folder; a text (.txt,
            .md, .rst); a folder with one sub-folder of images or texts for each class; a folder with images and boxes
            in COCO format; or a folder with `train` and `test` of any of these.
        target: the target column of a table; None to skip the checks of classes and labels.
        text_column: the column of a table that holds texts; None for a table of numbers and categories.
        column_kinds: overrides of inferred column kinds, as NAME=KIND,NAME=KIND.
        encoding: Python's name of the encoding of CSV and text files.
        progress: called from time to time with the current task, the amount done and the total.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "pets.csv")
        ...     _ = file.write_text("legs,age\\n4,3\\n4,\\n4,5\\n")
        ...     report = inspect_data(file)
        >>> [(finding.kind, finding.where) for finding in report.findings]
        [('constant column', 'legs'), ('missing values', 'age')]
    """
    place = readable_path(path, DataError)
    if not place.exists():
        raise DataError(f"There is no file or folder {place}.")
    if find_idx_files(place) or (place.is_file() and place.suffix.lower() == ".npz"):
        return inspect_image_arrays(place, progress=progress)
    files = _table_files(place)
    if files:
        tables = {}
        natural = () if text_column is None else tuple(filter(None, (text_column, target)))
        for number, (part, file) in enumerate(files.items()):
            progress(f"Reading {file.name}", number, len(files))
            table = read_table(file, encoding=encoding, texts=natural)
            tables[part] = Table(file.name, table.columns)
        if text_column is not None:
            return inspect_text_tables(
                tables, path=str(place), text_column=text_column, target=target, progress=progress
            )
        kinds = kinds_from_text(column_kinds)
        return inspect_tables(tables, path=str(place), target=target, column_kinds=kinds, progress=progress)
    if place.is_file() and data_suffix(place) in TEXT_SUFFIXES:
        return inspect_text_file(place, encoding=encoding, progress=progress)
    if place.is_file():
        suffixes = ", ".join((*_TABLE_SUFFIXES, ".npz", *TEXT_SUFFIXES))
        raise DataError(f"Data must be a folder, or a file that ends in {suffixes}. Received: {place}.")
    boxes = coco_files(place)
    if boxes:
        return inspect_coco(place, boxes, progress=progress)
    return _inspect_folder(place, encoding, progress)


def _table_files(place: Path) -> dict[str, Path]:
    """Part -> file; empty if there is no table."""
    if place.is_file():
        return {"train": place} if data_suffix(place) in _TABLE_SUFFIXES else {}
    found = {
        part: place / f"{part}{suffix}"
        for part in ("train", "test")
        for suffix in TABLE_SUFFIXES
        if (place / f"{part}{suffix}").is_file()
    }
    return found if "train" in found else {}


def _inspect_folder(folder: Path, encoding: str, progress: Progress) -> InspectionReport:
    """Images or texts, whichever the folder has more of."""
    suffixes = [file.suffix.lower() for file in folder.rglob("*") if file.is_file()]
    num_images, num_texts = (sum(map(suffixes.count, kinds)) for kinds in (IMAGE_SUFFIXES, TEXT_SUFFIXES))
    if num_images == num_texts == 0:
        raise DataError(
            f"{folder} holds no data: no table called train, and no class folders with files that end in "
            f"{', '.join(IMAGE_SUFFIXES + TEXT_SUFFIXES)}."
        )
    if num_images >= num_texts:
        return inspect_image_files(folder, progress=progress)
    return inspect_text_files(folder, encoding=encoding, progress=progress)
