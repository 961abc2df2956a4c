"""What the given directories hold: runs, searches and compared variants, read without trusting any of it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from tfaccel.compressing.compress_result import CompressResult, cells, get_notes, sensitivity_cells
from tfaccel.errors import ReportError, RunDirError, SearchError, in_one_line
from tfaccel.html_report.page import Picture, get_number
from tfaccel.planning.cache import DAMAGES
from tfaccel.planning.plan import Plan
from tfaccel.remote import readable_path
from tfaccel.training.run.result import TrainResult
from tfaccel.training.run.run_dir import NO_METRICS, RUN_ID
from tfaccel.tuning.objective import Objective, checked_objective
from tfaccel.tuning.search_result import STATUSES, SearchResult, TrialRow

Found = TypeVar("Found")

POSITION = ("epoch", "step", "seconds")  # keys of a row of metrics.jsonl that say where it stands
_MAX_EPOCHS = 2**53  # browsers count exactly up to here
MAX_PICTURES, MAX_PICTURE_BYTES = 24, 8 * 2**20
VALIDATION = "val_"
_NO_OUTCOMES = (*NO_METRICS, "learning_rate")
WHAT_ONE_HOLDS = (
    "One holds config.json and metrics.jsonl (written by `tfaccel train`), search.json or trials.jsonl "
    "(`tfaccel search`), or the report.json of `tfaccel compress`."
)
_MAX_HINTS = 3
_COMPRESSED = "compressed"  # the folder of `tfaccel compress` in a run directory
_BEST = "best"  # the folder of the retrained best model in the directory of a search
_LEAST_OF_STEPS = 0.5  # of the time of an epoch's steps: what the clock must advance unless it began anew


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What the directory of a training run holds.

    Args:
        path: the directory.
        name: short, and different from that of the other runs of the report.
        config: what `train` was asked for.
        rows: one mapping per finished epoch.
        last_metrics: the metrics of the last finished epoch, without its performance.
        result: the outcome; None if the run is not finished, or its result cannot be read.
        result_data: the content of result.json, with fields that `TrainResult` does not have.
        plan: the plan; None if it cannot be read.
        pictures: what the recipe drew.
        problems: what could not be read, one line each.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...] = ()
    last_metrics: Mapping[str, Any] = field(default_factory=dict)
    result: TrainResult | None = None
    result_data: Mapping[str, Any]
    plan: Plan | None = None
    pictures: tuple[Picture, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def workload(self) -> str:
        """The name of the recipe or workload; "" if unknown."""
        return str(self.config.get("recipe", ""))

    @property
    def final(self) -> dict[str, float]:
        """The metrics of the finished model; of the last epoch if the run is not finished.

        On validation data if the run has any; see `has_validation`.
        """
        last = self.last_metrics
        held_out = {name.removeprefix(VALIDATION): last[name] for name in last if name.startswith(VALIDATION)}
        given = held_out or last if self.result is None else self.result.final
        found = {name: get_number(value) for name, value in given.items() if name not in _NO_OUTCOMES}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def has_validation(self) -> bool:
        """Whether the metrics in `final` are on validation data."""
        return any(name.startswith(VALIDATION) for name in self.last_metrics)

    @property
    def was_resumed(self) -> bool:
        """Whether a later process trained some of the epochs: then the clock began anew between two of them."""
        return any(_is_anew(before, row) for before, row in pairwise(self.rows))

    @property
    def epochs(self) -> list[int]:
        """The numbers of the epochs, from 1."""
        numbers = (get_number(row.get("epoch")) for row in self.rows)
        return [
            place + 1 if number is None or not 0 <= number < _MAX_EPOCHS else int(number) + 1
            for place, number in enumerate(numbers)
        ]

    def values(self, name: str) -> list[float | None]:
        """One value per epoch; None where it is missing or not finite."""
        return [get_number(row.get(name)) for row in self.rows]

    def fields(self) -> list[str]:
        """The names of all numbers that were written after each epoch, in order."""
        names = dict.fromkeys(name for row in self.rows for name in row if name not in POSITION)
        return [name for name in names if any(value is not None for value in self.values(name))]


def read_run(path: Path, name: str) -> RunRecord:
    """Reads the directory of a training run; what is missing or damaged is left out and named in `problems`."""
    problems: list[str] = []
    config = read_mapping(path / "config.json", problems)
    data = read_mapping(path / "result.json", problems)
    rows = read_rows(path / "metrics.jsonl", problems) or _get_rows(data.get("history"))
    what = "result.json is not a result of `tfaccel train`"
    result = _undamaged(lambda: _get_result({**data, "run_dir": str(path)}), problems, what) if data else None
    plan_data = data.get("plan") or read_mapping(path / "plan.json", problems)
    plan = _undamaged(lambda: Plan.from_json(plan_data), problems, "The plan cannot be read") if plan_data else None
    pictures = read_pictures(path, problems, drawn_by=f"the recipe in run {name}")
    last = rows[-1] if rows else {}
    return RunRecord(
        path=path,
        name=name,
        config={name: value for name, value in config.items() if name != RUN_ID},
        rows=tuple(map(_flat, rows)),
        last_metrics={name: last[name] for name in last if name not in NO_METRICS and not isinstance(last[name], dict)},
        result=result,
        result_data=data,
        plan=plan,
        pictures=pictures,
        problems=tuple(problems),
    )


def _undamaged(read: Callable[[], Found], problems: list[str], what: str, *, with_type: bool = False) -> Found | None:
    """What is read from a file; None if it is missing, or damaged, which is added to `problems` with the error."""
    try:
        return read()
    except FileNotFoundError:
        return None
    except DAMAGES as error:
        problems.append(f"{what}: {type(error).__name__} {error}" if with_type else f"{what}: {_reason(error)}")
        return None


def read_mapping(file: Path, problems: list[str]) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no file, or if it is damaged, which is added to `problems`."""

    def read() -> dict[str, Any]:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return found

    return _undamaged(read, problems, f"{file.name} cannot be read") or {}


def read_pictures(folder: Path, problems: list[str], *, drawn_by: str) -> tuple[Picture, ...]:
    """The PNG files of a folder, as parts of the page.

    Args:
        folder: the folder.
        problems: files that cannot be shown are added here.
        drawn_by: who drew them, for readers who cannot see them.
    """
    from PIL import Image

    files = sorted(folder.glob("*.png"))
    if len(files) > MAX_PICTURES:
        problems.append(f"Only the first {MAX_PICTURES} of {len(files)} pictures are shown.")
    pictures = []
    for file in files[:MAX_PICTURES]:
        try:
            if file.stat().st_size > MAX_PICTURE_BYTES:
                raise ValueError(f"it has more than {MAX_PICTURE_BYTES // 2**20} MiB")
            content = file.read_bytes()
            with Image.open(file, formats=["PNG"]) as image:
                width, height = image.size
                image.verify()
        except (*DAMAGES, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's own for broken PNG files
            problems.append(f"The picture {file.name} is left out: {_reason(error)}")
            continue
        pictures.append(
            Picture(
                title=file.name,
                description=f"{file.stem.replace('_', ' ')}, drawn by {drawn_by}",
                data_uri=f"data:image/png;base64,{base64.b64encode(content).decode()}",
                width=width,
                height=height,
            )
        )
    return tuple(pictures)


def read_rows(file: Path, problems: list[str]) -> list[Mapping[str, Any]]:
    """The JSON objects of a file with one on each line; damaged lines are left out and added to `problems`."""
    text = _undamaged(lambda: file.read_text(encoding="utf-8"), problems, f"{file.name} cannot be read") or ""
    rows: list[Mapping[str, Any]] = []
    damaged = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            damaged.append(str(number))
    if damaged:
        which = f"line {damaged[0]} is" if len(damaged) == 1 else f"lines {', '.join(damaged[:5])} are"
        more = f" ({len(damaged)} in all)" if len(damaged) > 5 else ""
        problems.append(f"{file.name}: {which} damaged and left out{more}")
    return rows


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the fields of the objects in it, such as `performance`."""
    inner = [value for value in row.values() if isinstance(value, dict)]
    own = {name: value for name, value in row.items() if not isinstance(value, dict)}
    return {**{name: value for one in inner for name, value in one.items() if name not in POSITION}, **own}


def _is_anew(before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether the time of a row is not that of the row before it and of the epoch between them."""
    then, now = get_number(before.get("seconds")), get_number(row.get("seconds"))
    if then is None or now is None:
        return False
    steps = (get_number(row.get("step")) or 0.0) - (get_number(before.get("step")) or 0.0)
    least = max(0.0, steps) * (get_number(row.get("step_seconds")) or 0.0)
    return now < then + _LEAST_OF_STEPS * least


def _get_rows(history: Any) -> list[Mapping[str, Any]]:
    """The history of a result as rows, where there is no metrics.jsonl."""
    if not isinstance(history, dict):
        return []
    lists = {str(name): values for name, values in history.items() if isinstance(values, list)}
    num_epochs = max(map(len, lists.values()), default=0)
    return [
        {"epoch": epoch, **{name: values[epoch] for name, values in lists.items() if epoch < len(values)}}
        for epoch in range(num_epochs)
    ]


def _get_result(data: Mapping[str, Any]) -> TrainResult:
    """The result; raises an error for values of other types than it states, which a damaged file may hold."""
    result = TrainResult.from_json(data)
    for name in ("final", "step_seconds", "versions", "hardware", "history"):
        if not isinstance(getattr(result, name), dict):
            raise ValueError(f"{name} is not a JSON object")
    for name in ("examples_per_second", "first_step_seconds", "wall_seconds"):
        if get_number(getattr(result, name)) is None:
            raise ValueError(f"{name} is not a number")
    result.verdict  # noqa: B018 - it is computed from the history, which must hold numbers
    return result


def _reason(error: BaseException) -> str:
    text = in_one_line(error) or type(error).__name__
    return f"{text[:200]}…" if len(text) > 200 else text


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
class Records:
    """Everything that a report shows.

    Args:
        runs, searches: what the directories hold.
        comparisons: those of compressed variants, each after a short name.
        problems: what could not be read, one line each, with the directory's name.
    """

    runs: tuple[RunRecord, ...]
    searches: tuple[SearchRecord, ...]
    comparisons: tuple[tuple[str, CompressResult], ...]
    problems: tuple[str, ...]


def find_records(run_dirs: Sequence[str | os.PathLike[str]]) -> Records:
    """Reads the directories; one that is given twice is read once."""
    if not run_dirs:
        raise RunDirError("Give at least one run directory: tfaccel report RUN_DIR... Received none.")
    paths = list({path.resolve(): path for path in map(_checked, run_dirs)}.values())
    runs: list[RunRecord] = []
    searches: list[SearchRecord] = []
    comparisons: list[tuple[str, CompressResult]] = []
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
            if _is_comparison(folder) and (result := _read_comparison(folder, found)) is not None:
                comparisons.append((name, result))
        problems += [f"{name}: {problem}" for problem in found]
    problems += [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    return Records(runs=tuple(runs), searches=tuple(searches), comparisons=tuple(comparisons), problems=tuple(problems))


def _checked(given: str | os.PathLike[str]) -> Path:
    path = readable_path(given, ReportError)
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
    data, what = read_mapping(path / "search.json", problems), "search.json is not the result of a search"
    result = _undamaged(lambda: _get_search(data), problems, what, with_type=True) if data else None
    found = result or _unfinished_search(path, problems)
    return SearchRecord(
        name=name, result=found, is_finished=result is not None, pictures=pictures, problems=tuple(problems)
    )


def _get_search(data: Mapping[str, Any]) -> SearchResult:
    found = SearchResult.from_json(data)
    if not all(isinstance(name, str) for name in found.objective.names) or not found.objective.parts:
        raise ValueError("its objective has no names")
    for row in (*found.rows, *found.pareto):
        _check_trial(row)
    return found


def _unfinished_search(path: Path, problems: list[str]) -> SearchResult:
    rows = []
    for data in read_rows(path / "trials.jsonl", problems):
        try:
            row = TrialRow.from_json(data)
            _check_trial(row)
            rows.append(row)
        except DAMAGES:
            problems.append("trials.jsonl: a line that is not a trial is left out")
    config = read_mapping(path / "config.json", problems)
    objective = _get_objective(config, rows)
    algorithm = str(config.get("algorithm", ""))
    return SearchResult.of(path, rows, objective, algorithm=algorithm, wall_seconds=0.0)


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


def _read_comparison(folder: Path, problems: list[str]) -> CompressResult | None:
    data, what = read_mapping(folder / "report.json", problems), "report.json is not the result of `tfaccel compress`"
    return _undamaged(lambda: _get_comparison(data), problems, what, with_type=True) if data else None


def _get_comparison(data: Mapping[str, Any]) -> CompressResult:
    result = CompressResult.from_json(data)
    result.summary()
    for one in result.results:  # computed from all figures: a damaged one is found here
        cells(result, one), get_notes(result, one)
    for cost in result.sensitivity:
        sensitivity_cells(cost)
    return result
