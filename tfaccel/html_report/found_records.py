"""What the given directories hold: training runs, searches and comparisons of compressed variants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.compressing.comparison.gate import CompressResult
from tfaccel.compressing.comparison.gate_table import cells, get_notes, sensitivity_cells
from tfaccel.errors import ReportError, RunDirError, SearchError
from tfaccel.html_report.blocks import Picture
from tfaccel.html_report.run_record import RunRecord, read_mapping, read_pictures, read_rows, read_run
from tfaccel.local_path import local_path
from tfaccel.tuning.objective import Objective, checked_objective
from tfaccel.tuning.search_result import SearchResult
from tfaccel.tuning.trial_row import STATUSES, TrialRow, best_row, pareto_front

WHAT_ONE_HOLDS = (
    "One has config.json and metrics.jsonl (of `tfaccel train`), search.json or trials.jsonl (`tfaccel search`)"
    ", or the report.json of `tfaccel compress`."
)
_MAX_HINTS = 3
_COMPRESSED = "compressed"  # the folder of `tfaccel compress` in a run directory
_BEST = "best"  # the folder of the retrained best model in the directory of a search
_DAMAGES = (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, StopIteration)


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """A search.

    Args:
        name: short, and different from that of the other searches of the report.
        result: its trials.
        is_finished: whether search.json was written.
        pictures: what the search drew.
        problems: what could not be read.
    """

    name: str
    result: SearchResult
    is_finished: bool
    pictures: tuple[Picture, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompressRecord:
    """A comparison of compressed variants.

    Args:
        name: short, and different from that of the other comparisons of the report.
        result: the comparison.
    """

    name: str
    result: CompressResult


@dataclass(frozen=True, kw_only=True)
class Records:
    """Everything that a report shows.

    Args:
        runs, searches, comparisons: what the directories hold.
        problems: what could not be read, one line each, with the directory's name.
    """

    runs: tuple[RunRecord, ...]
    searches: tuple[SearchRecord, ...]
    comparisons: tuple[CompressRecord, ...]
    problems: tuple[str, ...]


def find_records(run_dirs: Sequence[str | os.PathLike[str]]) -> Records:
    """Reads the directories; one that is given twice is read once.

    Raises:
        RunDirError: if there is none, or if one is not the directory of a run, a search or a comparison.
    """
    if not run_dirs:
        raise RunDirError("Give at least one run directory: tfaccel report RUN_DIR... Received none.")
    paths = list({_checked(path).resolve(): Path(path) for path in run_dirs}.values())
    runs: list[RunRecord] = []
    searches: list[SearchRecord] = []
    comparisons: list[CompressRecord] = []
    problems: list[str] = []
    for path, name in zip(paths, _names(paths), strict=True):
        found: list[str] = []
        if _is_search(path):
            search = _read_search(path, name)
            searches.append(search)
            found += search.problems
            if _is_run(path / _BEST):
                runs.append(read_run(path / _BEST, f"{name}/{_BEST}"))
        elif _is_run(path):
            runs.append(read_run(path, name))
        for folder in (path, path / _COMPRESSED):
            if _is_comparison(folder):
                comparisons += _read_comparison(folder, name, found)
        problems += [f"{name}: {problem}" for problem in found]
    problems += [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    return Records(runs=tuple(runs), searches=tuple(searches), comparisons=tuple(comparisons), problems=tuple(problems))


def _checked(given: str | os.PathLike[str]) -> Path:
    path = local_path(given, ReportError)
    try:
        if not str(given) or not path.exists():
            raise RunDirError(f"There is no run directory {str(given)!r}. {WHAT_ONE_HOLDS}")
        if not path.is_dir():
            raise RunDirError(f"{path} is a file, not a run directory. {WHAT_ONE_HOLDS}")
        if _is_run(path) or _is_search(path) or _is_comparison(path):
            return path
        inside = sorted(one for one in path.iterdir() if one.is_dir() and (_is_run(one) or _is_search(one)))
    except OSError as error:
        raise RunDirError(f"The run directory {path} cannot be read: {error.strerror}.") from error
    hint = f" It has run directories: {', '.join(map(str, inside[:_MAX_HINTS]))}." if inside else ""
    raise RunDirError(f"{path} is not a run directory. {WHAT_ONE_HOLDS}{hint}")


def _is_run(path: Path) -> bool:
    return (path / "config.json").is_file() and not _is_search(path)


def _is_search(path: Path) -> bool:
    return any((path / name).is_file() for name in ("search.json", "trials.jsonl", "space.json"))


def _is_comparison(path: Path) -> bool:
    return (path / "report.json").is_file()


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ from each other.

    Example:
        >>> _names([Path("runs/a"), Path("runs/b")]), _names([Path("one/a"), Path("two/a")])
        (['a', 'b'], ['one/a', 'two/a'])
    """
    parts = [path.absolute().resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _read_search(path: Path, name: str) -> SearchRecord:
    problems: list[str] = []
    pictures = read_pictures(path, problems, drawn_by=f"`tfaccel search` in {name}")
    data = read_mapping(path / "search.json", problems)
    if data:
        try:
            found = SearchResult.from_json(data)
            if not all(isinstance(name, str) for name in found.objective.names) or not found.objective.parts:
                raise ValueError("its objective has no names")
            for row in (*found.rows, *found.pareto):
                _check_trial(row)
            return SearchRecord(name=name, result=found, is_finished=True, pictures=pictures, problems=tuple(problems))
        except _DAMAGES as error:
            problems.append(f"search.json is not the result of a search: {type(error).__name__} {error}")
    rows = _read_trials(path / "trials.jsonl", problems)
    config = read_mapping(path / "config.json", problems)
    objective = _get_objective(config, rows)
    result = SearchResult(
        run_dir=str(path),
        algorithm=str(config.get("algorithm", "")),
        objective=objective,
        rows=tuple(rows),
        best=best_row(rows, objective),
        pareto=tuple(pareto_front(rows, objective)),
        wall_seconds=0.0,
    )
    return SearchRecord(name=name, result=result, is_finished=False, pictures=pictures, problems=tuple(problems))


def _read_trials(file: Path, problems: list[str]) -> list[TrialRow]:
    """The trials of a search that has not ended."""
    rows = []
    for data in read_rows(file, problems):
        try:
            row = TrialRow.from_json(data)
            _check_trial(row)
            rows.append(row)
        except _DAMAGES:
            problems.append(f"{file.name}: a line that is not a trial is left out")
    return rows


def _check_trial(row: TrialRow) -> None:
    """Raises ValueError for values of other types than `TrialRow` states, which a damaged file may hold."""
    if not isinstance(row.hyperparameters, dict) or not isinstance(row.metrics, dict):
        raise ValueError(f"trial {row.trial_id} has no hyperparameters or metrics")
    if not isinstance(row.trial_id, str) or row.status not in STATUSES:
        raise ValueError(f"trial {row.trial_id} has the status {row.status!r:.50}")
    figures = [value for value in (row.score, *row.metrics.values()) if value is not None]
    for value in (row.seconds, *figures):
        if not isinstance(value, int | float):
            raise ValueError(f"a figure of trial {row.trial_id} is not a number")
        float(value)  # an OverflowError for a whole number of hundreds of digits


def _get_objective(config: dict[str, Any], rows: Sequence[TrialRow]) -> Objective:
    """The objective of a search that has not ended: the stated one, or else its default."""
    names = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    for wanted in (config.get("objective"), None):
        try:
            return checked_objective(wanted, names)
        except (SearchError, AttributeError, TypeError):
            continue
    return Objective((("score", "max"),))


def _read_comparison(folder: Path, name: str, problems: list[str]) -> list[CompressRecord]:
    data = read_mapping(folder / "report.json", problems)
    try:
        if not data:
            return []
        result = CompressResult.from_json(data)
        result.summary()
        for one in result.results:  # computed from all figures: a damaged one is found here
            cells(result, one), get_notes(result, one)
        for cost in result.sensitivity:
            sensitivity_cells(cost)
        return [CompressRecord(name=name, result=result)]
    except _DAMAGES as error:
        problems.append(f"report.json is not the result of `tfaccel compress`: {type(error).__name__} {error}")
        return []
