"""Inspection of tables: columns, missing values, duplicates, leaks, correlations, labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfaccel.data.tables.column_kinds import CATEGORICAL, DATE, IGNORED, NUMERIC, check_kinds, get_kind, get_numbers
from tfaccel.data.tables.notations import NOTATIONS_ADVICE, unread_notation
from tfaccel.data.tables.table import Column, Table
from tfaccel.extras.inspection.checks import balance, copies, memory, part_sizes
from tfaccel.extras.inspection.findings import Examples, Finding, InspectionReport, Progress, no_progress
from tfaccel.extras.inspection.label_errors import probable_label_errors
from tfaccel.extras.inspection.outliers import outliers
from tfaccel.extras.inspection.target import tells_the_target

_HIGH_CORRELATION = 0.98
_MAX_CORRELATED_COLUMNS = 300  # more are not checked for correlations
_MANY_MISSING = 0.5  # fraction of the rows
# Kind of a column -> how training handles its missing values.
_OF_MISSING = {
    NUMERIC: "They are replaced by the median.",
    CATEGORICAL: "They form a separate category.",
    DATE: "They are replaced by the median, and a feature tells the model where.",
    IGNORED: "",
}
_MAX_CLASSES, _ROWS_PER_CLASS = 50, 10  # up to these, numeric targets are treated as classes


def inspect_tables(
    tables: Mapping[str, Table],
    *,
    path: str,
    target: str | None,
    column_kinds: Mapping[str, str],
    progress: Progress = no_progress,
) -> InspectionReport:
    """Inspects a table, or its training and its test part.

    Args:
        tables: "train" and perhaps "test" -> the table.
        path: where they are from, for the report.
        target: the column to predict; None to skip the checks of classes and labels.
        column_kinds: column -> kind, to override the inferred kinds.
        progress: called with the current state.

    Raises:
        DataError: if the target, or a column of the training part in the test part, is missing.

    Example:
        >>> ages = np.array([3.0, 4.0, 3.0, 5.0])
        >>> table = Table("pets.csv", (Column("age", ages), Column("legs", np.full(4, 4.0))))
        >>> report = inspect_tables({"train": table}, path="pets.csv", target=None, column_kinds={})
        >>> [(finding.kind, finding.where) for finding in report.findings]
        [('constant column', 'legs'), ('duplicate', 'row 1 of pets.csv, row 3 of pets.csv')]
    """
    first = tables["train"]
    check_kinds(column_kinds, first)
    goal = None if target is None else first.column(target).name
    joined = _joined(tables)
    kinds = {c.name: column_kinds.get(c.name, get_kind(c)) for c in joined.columns}
    features = [column for column in joined.columns if column.name != goal]
    findings: list[Finding] = []
    columns = {}
    for number, column in enumerate(joined.columns):
        progress("Columns", number, len(joined.columns))
        columns[column.name], found = _inspect_column(column, kinds[column.name], joined, is_target=column.name == goal)
        findings += found
    if goal is not None:
        progress("Columns that tell the target", 0, 1)
        findings += _tellers(features, kinds, joined.column(goal), _are_classes(joined.column(goal)))
    findings += _correlations([column for column in features if kinds[column.name] == NUMERIC])
    examples = _examples(tables, features, joined, goal)
    progress("Copies and leaks", 0, 1)
    findings += copies(examples)
    counts, weights, found = balance(examples)
    findings += found
    if examples.labels is not None:
        progress("Labels, by cross-validation", 0, 1)
        findings += _label_errors(features, kinds, examples)
    num_bytes = joined.num_rows * 4 * len(joined.columns)
    free, found = memory(num_bytes)
    return InspectionReport(
        path=path,
        kind="table",
        shape=f"{len(features)} columns" + (f" and the target {goal}" if goal else ""),
        num_examples=part_sizes(examples),
        columns=columns,
        class_counts=counts,
        class_weights=weights,
        num_bytes=num_bytes,
        memory_bytes=free,
        findings=tuple(findings + found),
    )


def _joined(tables: Mapping[str, Table]) -> Table:
    """The rows of all parts in one table, with the columns of the first."""
    parts = list(tables.values())
    if len(parts) == 1:
        return parts[0]
    columns = []
    for column in parts[0].columns:
        same = [part.column(column.name) for part in parts]
        is_text = any(part.is_text for part in same)
        columns.append(Column(column.name, np.concatenate([part.texts() if is_text else part.values for part in same])))
    return Table(parts[0].source, tuple(columns))


def _inspect_column(
    column: Column, kind: str, table: Table, *, is_target: bool
) -> tuple[dict[str, Any], list[Finding]]:
    texts = column.texts().tolist()
    missing, distinct = column.missing, {text for text in texts if text is not None}
    num_missing, num_rows = int(missing.sum()), len(missing)
    about: dict[str, Any] = {"kind": kind, "num_missing": num_missing, "num_distinct": len(distinct)}
    findings = []
    if num_missing and not is_target:
        advice = "Drop the column." if num_missing > _MANY_MISSING * num_rows else _OF_MISSING[kind]
        text = f"{num_missing} of {num_rows} values are missing"
        findings.append(Finding("missing values", column.name, text, advice))
    if num_missing and is_target and not _are_classes(column):
        text = f"{num_missing} of {num_rows} rows do not say what to predict"
        findings.append(Finding("missing target", column.name, text, "They are left out."))
    if len(distinct) < 2:
        text = f"all values are {next(iter(distinct))}" if distinct else "there is no value"
        findings.append(Finding("constant column", column.name, text, "Drop the column: it says nothing."))
    if kind == NUMERIC:
        numbers, wrong = get_numbers(column)
        if len(wrong):
            row = int(wrong.min())
            text = f"{len(wrong)} values are not numbers, first {column.values[row]!r} in row {row + 1}"
            advice = f"Fix them, or say --column_kinds={column.name}=categorical."
            findings.append(Finding("text among numbers", column.name, text, advice))
        present = numbers[np.isfinite(numbers)]
        if len(present):
            about |= {"min": float(present.min()), "median": float(np.median(present)), "max": float(present.max())}
            findings += outliers(column.name, numbers)
    elif kind in (CATEGORICAL, IGNORED) and (notation := unread_notation(column)):
        advice = f"{NOTATIONS_ADVICE}."
        findings.append(Finding("numbers or dates that are not read", column.name, f"it holds {notation}", advice))
    elif kind == IGNORED and len(distinct) > 1 and not is_target:
        findings.append(_of_distinct_texts(column, len(distinct)))
    return about, findings


def _of_distinct_texts(column: Column, num_distinct: int) -> Finding:
    if column.has_ambiguous_dates:
        text = "day and month of its dates are ambiguous"
        return Finding("dates of two readings", column.name, text, "Write them as 2024-05-31; else it is not used.")
    text = f"{num_distinct} different texts in {len(column.values)} rows"
    advice = f"It is not used, except with --text_column={column.name}."
    return Finding("nearly distinct texts", column.name, text, advice)


def _tellers(features: list[Column], kinds: Mapping[str, str], target: Column, are_classes: bool) -> list[Finding]:
    """Columns that reveal the target."""
    goal = target.texts().tolist(), None if are_classes else _finite(target)
    findings = []
    for column in features:
        numbers = _finite(column) if kinds[column.name] == NUMERIC else None
        findings += tells_the_target(column.name, (column.texts().tolist(), numbers), goal)
    return findings


def _are_classes(target: Column) -> bool:
    """Whether a target holds classes; many distinct numbers are a regression target."""
    texts = target.texts()
    distinct = {text for text in texts.tolist() if text is not None}
    is_few = len(distinct) <= min(_MAX_CLASSES, max(2, len(texts) / _ROWS_PER_CLASS))
    return is_few or get_kind(target) != NUMERIC


def _correlations(columns: list[Column]) -> list[Finding]:
    """Pairs of highly correlated numeric columns."""
    columns = columns[:_MAX_CORRELATED_COLUMNS]
    numbers = [_filled(column) for column in columns]
    varied = [number for number, values in enumerate(numbers) if values.std() > 0]
    if len(varied) < 2:
        return []
    correlations = np.corrcoef(np.stack([numbers[number] for number in varied]))
    pairs = zip(*np.nonzero(np.triu(np.abs(correlations) >= _HIGH_CORRELATION, k=1)), strict=True)
    return [
        Finding(
            "correlated columns",
            f"{columns[varied[a]].name}, {columns[varied[b]].name}",
            f"their correlation is {correlations[a, b]:.3f}",
            "One of them may be enough.",
        )
        for a, b in pairs
    ]


def _filled(column: Column) -> np.ndarray:
    """Numbers with the median in place of missing or invalid values."""
    numbers = _finite(column)
    if np.isnan(numbers).all():
        return np.zeros(len(numbers))
    return np.where(np.isnan(numbers), np.nanmedian(numbers), numbers)


def _finite(column: Column) -> np.ndarray:
    """Numbers with NaN for missing, infinite or invalid values."""
    numbers, _ = get_numbers(column)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _examples(tables: Mapping[str, Table], features: list[Column], joined: Table, goal: str | None) -> Examples:
    names = tuple(f"row {row + 1} of {table.source}" for table in tables.values() for row in range(table.num_rows))
    parts = np.array([part for part, table in tables.items() for _ in range(table.num_rows)])
    keys = tuple(zip(*(column.texts().tolist() for column in features), strict=True))
    labels = None
    if goal is not None:
        labels = joined.column(goal).texts() if _are_classes(joined.column(goal)) else None
    return Examples(names, parts, keys, labels)


def _label_errors(features: list[Column], kinds: Mapping[str, str], examples: Examples) -> list[Finding]:
    from sklearn.ensemble import RandomForestClassifier

    used = [column for column in features if kinds[column.name] in (NUMERIC, CATEGORICAL)]
    if not used:
        return []
    arrays = []
    for column in used:
        if kinds[column.name] == NUMERIC:
            arrays.append(_finite(column))
        else:
            codes = {text: code for code, text in enumerate(sorted({t for t in column.texts() if t is not None}))}
            found = [codes.get(text, -1) for text in column.texts().tolist()]
            arrays.append(np.array([np.nan if code < 0 else code for code in found]))
    classifier = RandomForestClassifier(100, min_samples_leaf=2, random_state=0)
    return probable_label_errors(classifier, np.stack(arrays, axis=1).astype(np.float64), examples)
