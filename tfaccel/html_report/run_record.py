"""`RunRecord`: what the directory of a training run holds, read without trusting any of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.html_report.blocks import Picture
from tfaccel.html_report.texts import get_number
from tfaccel.planning.plan import Plan
from tfaccel.training.run.result import TrainResult
from tfaccel.training.run.run_dir import NO_METRICS, RUN_ID

POSITION = ("epoch", "step", "seconds")  # keys of a row of metrics.jsonl that say where it stands
_MAX_EPOCHS = 2**53  # browsers count exactly up to here
MAX_PICTURES, MAX_PICTURE_BYTES = 24, 8 * 2**20
_DAMAGES = (OSError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError, TfaccelError)
_VALIDATION = "val_"
_NO_OUTCOMES = (*NO_METRICS, "learning_rate")
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
        held_out = {name.removeprefix(_VALIDATION): last[name] for name in last if name.startswith(_VALIDATION)}
        given = held_out or last if self.result is None else self.result.final
        found = {name: get_number(value) for name, value in given.items() if name not in _NO_OUTCOMES}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def has_validation(self) -> bool:
        """Whether the metrics in `final` are on validation data."""
        return any(name.startswith(_VALIDATION) for name in self.last_metrics)

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
    """Reads the directory of a training run; what is missing or damaged is left out and named in `problems`.

    Args:
        path: the directory.
        name: as in `RunRecord`.
    """
    problems: list[str] = []
    config = read_mapping(path / "config.json", problems)
    data = read_mapping(path / "result.json", problems)
    rows = read_rows(path / "metrics.jsonl", problems) or _get_rows(data.get("history"))
    result, plan = None, None
    if data:
        try:
            result = TrainResult.from_json({**data, "run_dir": str(path)})
            _check_result(result)
        except _DAMAGES as error:
            result = None
            problems.append(f"result.json is not a result of `tfaccel train`: {_reason(error)}")
    plan_data = data.get("plan") or read_mapping(path / "plan.json", problems)
    try:
        plan = Plan.from_json(plan_data) if plan_data else None
    except _DAMAGES as error:
        problems.append(f"The plan cannot be read: {_reason(error)}")
    pictures = read_pictures(path, problems, drawn_by=f"the recipe in run {name}")
    return RunRecord(
        path=path,
        name=name,
        config={name: value for name, value in config.items() if name != RUN_ID},
        rows=tuple(map(_flat, rows)),
        last_metrics=_get_metrics(rows[-1]) if rows else {},
        result=result,
        result_data=data,
        plan=plan,
        pictures=pictures,
        problems=tuple(problems),
    )


def read_mapping(file: Path, problems: list[str]) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no file, or if it is damaged, which is added to `problems`."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return found
    except FileNotFoundError:
        return {}
    except _DAMAGES as error:
        problems.append(f"{file.name} cannot be read: {_reason(error)}")
        return {}


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
        except (*_DAMAGES, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's own for broken PNG files
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
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except _DAMAGES as error:
        problems.append(f"{file.name} cannot be read: {_reason(error)}")
        return []
    rows: list[Mapping[str, Any]] = []
    damaged = []
    for number, line in enumerate(lines, 1):
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


def _get_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in NO_METRICS and not isinstance(value, dict)}


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


def _check_result(result: TrainResult) -> None:
    """Raises an error for values of other types than `TrainResult` states, which a damaged file may hold."""
    for name in ("final", "step_seconds", "versions", "hardware", "history"):
        if not isinstance(getattr(result, name), dict):
            raise ValueError(f"{name} is not a JSON object")
    for name in ("examples_per_second", "first_step_seconds", "wall_seconds"):
        if get_number(getattr(result, name)) is None:
            raise ValueError(f"{name} is not a number")
    result.verdict  # noqa: B018 - it is computed from the history, which must hold numbers


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:200]}…" if len(text) > 200 else text
