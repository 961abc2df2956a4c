"""The files of class folders, listed whatever their faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from tfaccel.data.folder_files import class_folders, counted, files_below, unlisted
from tfaccel.errors import DataError
from tfaccel.extras.inspection.findings import Finding, Progress

Content = TypeVar("Content")


@dataclass(frozen=True)
class LabelledFiles:
    """Files in class folders.

    Args:
        paths: the files, in name order.
        parts: "train" or "test" for each.
        labels: the class folder of each.
        findings: class folders without files, and files of other kinds.
    """

    paths: tuple[Path, ...]
    parts: np.ndarray
    labels: np.ndarray
    findings: tuple[Finding, ...]


def list_labelled_files(folder: Path, suffixes: tuple[str, ...]) -> LabelledFiles:
    """The files with these suffixes in the class folders of `folder`, or of its `train` and `test`.

    Raises:
        DataError: if there is none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     Path(name, "cat").mkdir()
        ...     _ = Path(name, "cat", "1.txt").write_text("purrs")
        ...     list_labelled_files(Path(name), (".txt",)).labels.tolist()
        ['cat']
    """
    parts = {name: folder / name for name in ("train", "test") if (folder / name).is_dir()}
    if len(parts) < 2:
        parts = {"train": folder}
    paths: list[Path] = []
    where: list[str] = []
    labels: list[str] = []
    findings = []
    for part, root in parts.items():
        loose = sorted(entry.name for entry in root.iterdir() if entry.is_file() and not entry.name.startswith("."))
        if loose:
            text = f"{len(loose)} files are in no class folder (first {loose[0]})"
            findings.append(Finding("other files", str(root), text, "They are not used."))
        for class_folder in class_folders(root):
            files = files_below(class_folder)
            found = [file for file in files if file.suffix.lower() in suffixes]
            others = [file for file in files if file.suffix.lower() not in suffixes]
            if others:
                first = others[0].relative_to(class_folder)
                text = f"{len(others)} files do not end in {', '.join(suffixes)}: {counted(others)} (first {first})"
                findings.append(Finding("other files", str(class_folder), text, "They are not used."))
            unseen = unlisted(class_folder, suffixes)
            if unseen:
                findings.append(Finding("other files", str(class_folder), f"it has {unseen}", "They are not used."))
            if not found:
                findings.append(Finding("empty class", str(class_folder), "it holds no file to use", "Remove it."))
            paths += found
            where += [part] * len(found)
            labels += [class_folder.name] * len(found)
    if not paths:
        raise DataError(f"{folder} has no class folders with files that end in {', '.join(suffixes)}.")
    return LabelledFiles(tuple(paths), np.array(where), np.array(labels, dtype=object), tuple(findings))


def read_labelled_files(
    files: LabelledFiles,
    folder: Path,
    read: Callable[[Path], Content | Finding],
    *,
    noun: str,
    every: int,
    progress: Progress,
) -> tuple[list[Content], list[int], list[Finding]]:
    """The contents of the readable files, their rows, and the findings, including those of unreadable files.

    Args:
        files: the files.
        folder: where they are from.
        read: returns the content of a file, or a finding if it cannot be read.
        noun: what the files are called in messages.
        every: files between two progress reports.
        progress: called with the noun, the number of files read, and the total.

    Raises:
        DataError: if no file can be read.
    """
    contents, rows, findings = [], [], list(files.findings)
    for row, file in enumerate(files.paths):
        if row % every == 0:
            progress(noun.capitalize(), row, len(files.paths))
        content = read(file)
        if isinstance(content, Finding):
            findings.append(content)
        else:
            contents.append(content)
            rows.append(row)
    if not contents:
        raise DataError(
            f"None of the {len(files.paths)} {noun} in {folder} can be read; the first is {files.paths[0]}."
        )
    return contents, rows, findings
