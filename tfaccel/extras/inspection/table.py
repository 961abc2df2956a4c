"""Inspection of tables: columns, missing values, duplicates, leaks, correlations, labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from tfaccel.data.tables.column_kinds import (
    CATEGORICAL,
    DATE,
    IGNORED,
    NOTATIONS_ADVICE,
    NUMERIC,
    check_kinds,
    get_kind,
    kinds_of_columns,
    unread_notation,
)
from tfaccel.data.tables.table import Column, Table
from tfaccel.extras.inspection.findings import (
    Examples,
    Finding,
    InspectionReport,
    Progress,
    finished,
    no_progress,
    probable_label_errors,
)

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

_MIN_ROWS = 20
_MAX_OUTLIERS = 0.05  # fraction of the rows
_GAP, _GAP_OF_NINES = 3.0, 0.5  # between outliers and the others, as multiples of the range of the others
_NINES = frozenset(sign * (10**digits - 1) for digits in range(2, 10) for sign in (1, -1))

_EQUAL = 0.98  # fraction of rows in which a copy must agree with the target
_MIN_ROWS_PER_VALUE = 5  # of a column that could determine the target
_LEFT_OVER = 0.1  # largest fraction of the errors of always predicting the most frequent class
_MONOTONE = 0.9995  # rank correlation
_SMOOTH = 0.002  # fraction of the target's variance between neighbors in the column
_APART = 0.05  # spread within classes, as a fraction of the distance between the nearest two
_ADVICE = "Would it be known before the target is? If not, leave it out: --column_kinds={}=ignored."
Texts = list[str | None]


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
    kinds = kinds_of_columns(joined, column_kinds)
    features = [column for column in joined.columns if column.name != goal]
    findings: list[Finding] = []
    columns = {}
    for number, column in enumerate(joined.columns):
        progress("Columns", number, len(joined.columns))
        columns[column.name], found = _inspect_column(column, kinds[column.name], is_target=column.name == goal)
        findings += found
    labels = None
    if goal is not None:
        progress("Columns that tell the target", 0, 1)
        values = joined.column(goal)
        labels = values.texts() if _are_classes(values) else None
        told = values.texts().tolist(), _finite(values) if labels is None else None
        for column in features:
            numbers = _finite(column) if kinds[column.name] == NUMERIC else None
            findings += tells_the_target(column.name, (column.texts().tolist(), numbers), told)
    findings += _correlations([column for column in features if kinds[column.name] == NUMERIC])
    keys = tuple(zip(*(column.texts().tolist() for column in features), strict=True))
    examples = replace(Examples.of_rows(tables, labels), keys=keys)
    report = InspectionReport(
        path=path,
        kind="table",
        shape=f"{len(features)} columns" + (f" and the target {goal}" if goal else ""),
        columns=columns,
        num_bytes=joined.num_rows * 4 * len(joined.columns),
        findings=tuple(findings),
    )
    doubt_labels = partial(_label_errors, features, kinds, examples)
    return finished(report, examples, doubt_labels=doubt_labels, progress=progress)


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


def _inspect_column(column: Column, kind: str, *, is_target: bool) -> tuple[dict[str, Any], list[Finding]]:
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
        numbers, wrong = column.numbers
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
    numbers, _ = column.numbers
    return np.where(np.isfinite(numbers), numbers, np.nan)


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
            codes = {text: code for code, text in enumerate(sorted(column.codes[1].to_pylist()))}
            arrays.append(np.array([codes.get(text, np.nan) for text in column.texts().tolist()]))
    classifier = RandomForestClassifier(100, min_samples_leaf=2, random_state=0)
    return probable_label_errors(classifier, np.stack(arrays, axis=1).astype(np.float64), examples)


def outliers(name: str, numbers: np.ndarray) -> list[Finding]:
    """The values at one or both ends of a column that a wide gap separates from all others.

    Args:
        name: the name of the column.
        numbers: its values, NaN for missing ones.

    Example:
        >>> [finding.text for finding in outliers("age", np.array([*range(20, 60), 9999.0]))]
        ['1 of 41 values stands apart: 9999 in row 41; the others are from 20 to 59']
    """
    rows = np.flatnonzero(np.isfinite(numbers))
    order = rows[np.argsort(numbers[rows], kind="stable")]
    values = numbers[order]
    low = _number_below(values)
    high = len(values) - _number_below(-values[::-1])
    apart = np.sort(np.concatenate([order[:low], order[high:]]))
    if len(values) < _MIN_ROWS or len(apart) == 0:
        return []
    shown = ", ".join(f"{numbers[row]:.15g} in row {row + 1}" for row in apart)
    verb = "stands" if len(apart) == 1 else "stand"
    text = f"{len(apart)} of {len(values)} values {verb} apart: {shown}; the others are from {values[low]:.6g} to "
    return [Finding("outlier", name, f"{text}{values[high - 1]:.6g}", "Fix it; empty the field if no value was known.")]


def _number_below(values: np.ndarray) -> int:
    """The number of lowest values, of sorted ones, that a gap separates from the others."""
    for count in range(int(_MAX_OUTLIERS * len(values)) + 1, 0, -1):
        others = values[count:]
        if len(np.unique(others[: len(others) - int(_MAX_OUTLIERS * len(values)) or None])) < 3:
            continue
        # The other end may have outliers too, which do not count for the range.
        spread = float(others[-1 - min(int(_MAX_OUTLIERS * len(values)), len(others) - 2)] - others[0])
        gap = float(others[0] - values[count - 1])
        wanted = _GAP_OF_NINES if {abs(value) for value in values[:count].tolist()} <= _NINES else _GAP
        if spread > 0 and gap > wanted * spread:
            return count
    return 0


def tells_the_target(
    name: str, column: tuple[Texts, np.ndarray | None], target: tuple[Texts, np.ndarray | None]
) -> list[Finding]:
    """A finding if a column reveals the target in the rows that have both; else an empty list.

    Args:
        name: the name of the column.
        column: its values as texts, and as numbers (NaN for missing ones) if it is numeric.
        target: those of the target, with numbers for regression and None for classification.

    Example:
        >>> kinds = ["cat", "dog"] * 20
        >>> codes = [{"cat": "1", "dog": "2"}[kind] for kind in kinds]
        >>> tells_the_target("code", (codes, None), (kinds, None))[0].text
        'each of its values goes with one value of the target, in 40 of 40 rows'
    """
    rows = [row for row, (a, b) in enumerate(zip(column[0], target[0], strict=True)) if a is not None and b is not None]
    texts, goals = [column[0][row] for row in rows], [target[0][row] for row in rows]
    if len(rows) < _MIN_ROWS or len(set(goals)) < 2:
        return []
    numbers, values = (None if one is None else one[rows] for one in (column[1], target[1]))
    text = _equal(texts, goals) or _function_of_values(texts, goals, values)
    if not text and numbers is not None:
        usable = np.isfinite(numbers) if values is None else np.isfinite(numbers) & np.isfinite(values)
        if usable.sum() >= _MIN_ROWS and np.ptp(numbers[usable]) > 0:
            if values is None:
                text = _apart(numbers[usable], np.array(goals, dtype=object)[usable])
            else:
                text = _smooth(numbers[usable], values[usable])
    return [Finding("tells the target", name, text, _ADVICE.format(name))] if text else []


def _equal(texts: Texts, goals: Texts) -> str:
    num_equal = sum(a == b for a, b in zip(texts, goals, strict=True))
    if num_equal < _EQUAL * len(texts) or Counter(goals).most_common(1)[0][1] >= num_equal:
        return ""
    return f"it is equal to the target in {num_equal} of {len(texts)} rows"


def _function_of_values(texts: Texts, goals: Texts, values: np.ndarray | None) -> str:
    """Whether a column with few distinct values determines the target."""
    groups: dict[str | None, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(text, []).append(row)
    if len(groups) < 2 or len(texts) < _MIN_ROWS_PER_VALUE * len(groups):
        return ""
    if values is not None and len(set(goals)) * _MIN_ROWS_PER_VALUE > len(goals):
        inside = sum(float(((values[rows] - values[rows].mean()) ** 2).sum()) for rows in groups.values())
        whole = float(((values - values.mean()) ** 2).sum())
        return "its values leave almost nothing of the target open" if inside < _SMOOTH * whole else ""
    right = sum(Counter(goals[row] for row in rows).most_common(1)[0][1] for rows in groups.values())
    guessed = Counter(goals).most_common(1)[0][1]
    errors, errors_without = len(goals) - right, len(goals) - guessed
    if errors > (1 - _EQUAL) * len(goals) or errors > _LEFT_OVER * errors_without:
        return ""
    return f"each of its values goes with one value of the target, in {right} of {len(goals)} rows"


def _smooth(numbers: np.ndarray, values: np.ndarray) -> str:
    """Whether a regression target is a function of a column: neighbors in the column have neighboring targets."""
    if np.ptp(values) == 0:
        return ""
    rank = float(stats.spearmanr(numbers, values).statistic)
    if abs(rank) >= _MONOTONE:
        return f"the target rises or falls with it (rank correlation {rank:.4f})"
    ordered = values[np.lexsort((values, numbers))]
    steps = float((np.diff(ordered) ** 2).mean()) / (2 * float(values.var()))
    return "the target is a smooth function of it, almost without a rest" if steps < _SMOOTH else ""


def _apart(numbers: np.ndarray, goals: np.ndarray) -> str:
    """Whether the numbers of each class are close together and far from those of other classes: a noisy label."""
    of_class = [numbers[goals == name] for name in sorted(set(goals.tolist()))]
    centers = np.sort([float(np.median(group)) for group in of_class])
    distance = float(np.diff(centers).min()) if len(centers) > 1 else 0.0
    spread = max(float(np.std(group)) for group in of_class)
    return "its numbers are the classes with a little noise" if distance > 0 and spread < _APART * distance else ""
