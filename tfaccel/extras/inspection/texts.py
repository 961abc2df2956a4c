"""Inspection of texts: unreadable files, lengths, duplicates, leaks, labels."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tfaccel.data.characters import get_codec, read_characters, text_damage
from tfaccel.data.tables.table import Table
from tfaccel.data.texts.files import read_text
from tfaccel.errors import DataError
from tfaccel.extras.inspection.findings import (
    Examples,
    Finding,
    InspectionReport,
    Progress,
    finished,
    no_progress,
    probable_label_errors,
    read_labelled_files,
)

TEXT_SUFFIXES = (".txt", ".md", ".rst")
_MAX_WORDS = 20_000  # vocabulary of the classifier
_RARE, _LONG_TEXT = 5, 10_000  # characters with fewer occurrences are rare in a longer text
_LONG_LINE = 40  # characters; longer lines do not repeat by accident
_EVERY = 200  # files between two progress reports


def inspect_text_files(path: Path, *, encoding: str = "utf-8", progress: Progress = no_progress) -> InspectionReport:
    """Inspects text files in class folders.

    Raises:
        DataError: if no file can be read.
    """

    def read(file: Path) -> str | Finding:
        try:
            text = read_characters(file, get_codec(encoding))
        except DataError as error:
            return Finding("unreadable file", str(file), str(error), "Fix it, or give its --encoding.")
        wrong = text_damage(text)
        return Finding("unreadable file", str(file), wrong, "Repair or remove it.") if wrong else text

    examples, texts, findings = read_labelled_files(
        path, TEXT_SUFFIXES, read, noun="texts", every=_EVERY, progress=progress
    )
    return _report(str(path), examples, texts, findings=findings, progress=progress)


def inspect_text_file(path: Path, *, encoding: str = "utf-8", progress: Progress = no_progress) -> InspectionReport:
    """Inspects a single text for language modeling.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "a.txt")
        ...     _ = file.write_text("It purrs.\\n" * 5)
        ...     inspect_text_file(file).shape
        '50 characters, 9 different, in 5 lines'
    """
    progress("Text", 0, 1)
    text = read_text(path, encoding=encoding, advice="Or give its --encoding.")
    findings, lines, counts = [], text.removesuffix("\n").split("\n"), Counter(text)
    odd = {mark: count for mark, count in counts.items() if _is_odd(mark)}
    if odd:
        shown = ", ".join(f"U+{ord(mark):04X} {count} times" for mark, count in sorted(odd.items()))
        findings.append(Finding("odd characters", str(path), shown, "They hint at a wrong --encoding. Remove them."))
    rare = sorted(mark for mark, count in counts.items() if count < _RARE and mark not in odd)
    if len(rare) > len(counts) / 3 and len(text) > _LONG_TEXT:
        marks = " ".join(rare)
        findings.append(
            Finding(
                "rare characters",
                str(path),
                f"{len(rare)} of {len(counts)} are in it fewer than {_RARE} times: {marks}",
                "A model by characters learns little of them.",
            )
        )
    long_lines = Counter(" ".join(line.split()) for line in lines)
    findings += [
        Finding("duplicate", f"lines of {path}", f"{count} times the same: {line}", "Keep one, unless it is intended.")
        for line, count in long_lines.items()
        if count > 1 and len(line) >= _LONG_LINE
    ]
    report = InspectionReport(
        path=str(path),
        kind="text",
        shape=f"{len(text):,} characters, {len(counts):,} different, in {len(lines):,} lines",
        num_bytes=len(text.encode("utf-8", "replace")),
        findings=tuple(findings),
    )
    return finished(report, Examples((str(path),), np.array(["train"]), (text,)))


def _is_odd(mark: str) -> bool:
    """Whether a character does not belong in a text: a control character or a replacement character."""
    return mark in "\ufffd\ufeff" or (unicodedata.category(mark) == "Cc" and mark not in "\n\r\t\f")


def inspect_text_tables(
    tables: Mapping[str, Table], *, path: str, text_column: str, target: str | None, progress: Progress = no_progress
) -> InspectionReport:
    """Inspects a column of texts, and the labels in another one if `target` is given.

    Raises:
        DataError: if one of the columns is missing.

    Example:
        >>> from tfaccel.data.tables.table import Column
        >>> texts = np.array(["It purrs.", None, "it  purrs."], dtype=object)
        >>> table = Table("pets.csv", (Column("text", texts),))
        >>> report = inspect_text_tables({"train": table}, path="pets.csv", text_column="text", target=None)
        >>> [(finding.kind, finding.where) for finding in report.findings]
        [('empty text', 'row 2 of pets.csv'), ('duplicate', 'row 1 of pets.csv, row 3 of pets.csv')]
    """
    texts = [text or "" for table in tables.values() for text in table.column(text_column).texts().tolist()]
    labels = None
    if target is not None:
        labels = np.concatenate([table.column(target).texts() for table in tables.values()])
    return _report(path, Examples.of_rows(tables, labels), texts, findings=[], progress=progress)


def _report(
    path: str, examples: Examples, texts: list[str], *, findings: list[Finding], progress: Progress
) -> InspectionReport:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    empty = [name for name, text in zip(examples.names, texts, strict=True) if not text.strip()]
    findings += [Finding("empty text", name, "it holds nothing to read", "Remove it.") for name in empty]
    kept = [row for row, text in enumerate(texts) if text.strip()]
    if not kept:
        raise DataError(f"All {len(texts)} texts in {path} are empty.")
    texts = [texts[row] for row in kept]
    # Texts that differ only in whitespace or case count as duplicates.
    keys = tuple(hashlib.sha1(" ".join(text.casefold().split()).encode()).digest() for text in texts)
    labels = None if examples.labels is None else examples.labels[kept]
    examples = Examples(tuple(examples.names[row] for row in kept), examples.parts[kept], keys, labels)

    def doubt_labels() -> list[Finding]:
        words = TfidfVectorizer(sublinear_tf=True, max_features=_MAX_WORDS, token_pattern=r"(?u)\b\w+\b")
        classifier = make_pipeline(words, LogisticRegression(C=10, max_iter=1000))
        return probable_label_errors(classifier, np.array(texts, dtype=object), examples)

    num_words = np.array([len(text.split()) for text in texts])
    report = InspectionReport(
        path=path,
        kind="texts",
        shape=f"{int(np.median(num_words))} words (median), at most {num_words.max()}",
        num_bytes=sum(len(text.encode("utf-8", "replace")) for text in texts),
        findings=tuple(findings),
    )
    return finished(report, examples, doubt_labels=doubt_labels, progress=progress)
