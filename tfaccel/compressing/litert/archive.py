"""The ZIP archive appended to a LiteRT file: class names, and a description of the raw inputs.

LiteRT's runtimes ignore it; the task libraries of Android and iOS read the class names from it.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from tfaccel.data.raw_input import FILE_NAME, RawInput, raw_input_of_json
from tfaccel.errors import ExportError

LABELS_FILE = "labels.txt"
LITERT_SUFFIX = ".tflite"
_IDENTIFIER = slice(4, 8)
_MODEL_IDENTIFIER = b"TFL3"


def make_archive(raw_input: RawInput | None) -> bytes:
    """The archive to append to a model with these raw inputs; empty if there is nothing to record."""
    if raw_input is None:
        return b""
    names = raw_input.class_names
    files = {LABELS_FILE: "".join(f"{' '.join(name.split())}\n" for name in names)} if names else {}
    files[FILE_NAME] = json.dumps(raw_input.to_json(), ensure_ascii=False)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)  # a fixed date, so that equal models give equal files
            entry.compress_type = zipfile.ZIP_STORED if name == LABELS_FILE else zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    return content.getvalue()


def is_litert_file(path: Path) -> bool:
    """Whether a file is a LiteRT model, by its content."""
    if path.suffix.lower() == LITERT_SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(_IDENTIFIER.stop)[_IDENTIFIER] == _MODEL_IDENTIFIER
    except OSError:
        return False


def read_litert_labels(path: Path) -> list[str]:
    """The class names in a LiteRT file; empty if it has none."""
    return _read(path, LABELS_FILE).splitlines()


def read_litert_raw_input(path: Path) -> RawInput | None:
    """The raw inputs recorded in a LiteRT file; None if it has none.

    Raises:
        ExportError: if the record cannot be read.
    """
    text = _read(path, FILE_NAME)
    if not text:
        return None
    try:
        return raw_input_of_json(json.loads(text))
    except Exception as error:  # the file may be from anywhere
        raise ExportError(f"The record of the raw inputs in {path} cannot be read: {error}") from error


def _read(path: Path, name: str) -> str:
    """A text in the archive; "" if there is none."""
    if not zipfile.is_zipfile(path):
        return ""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name).decode() if name in archive.namelist() else ""
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ExportError(f"The archive appended to the model in {path} cannot be read: {error}") from error
