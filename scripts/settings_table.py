"""The input, output and table of `tfaccel benchmark settings`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tfaccel.benchmarks.recipe_settings import RECIPE_SETTINGS
from tfaccel.benchmarks.settings_suite import (
    SettingScores,
    SettingTrial,
    get_settings,
    run_settings_suite,
    setting_scores,
)
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.files import write_json
from tfaccel.known_names import did_you_mean
from tfaccel.scripts.command import show_progress, table_console
from tfaccel.scripts.command_flags import Flag

SETTINGS_FLAGS: dict[str, Flag] = {"recipes": (["all"], "settings: recipes whose settings to try; or all")}


def run_settings(out: str | None, *, recipes: Sequence[str], num_seeds: int) -> dict[str, Any]:
    """Tries settings; `out` is written after each run, and runs that it already contains are skipped."""
    path = None if out is None else Path(out)
    recipes = chosen_recipes(recipes)
    progress = partial(show_progress, "benchmark")
    machine = SuiteOptions(repetitions=num_seeds, progress=progress).machine()

    def report(trials: list[SettingTrial]) -> dict[str, Any]:
        return {
            "suite": "settings",
            "machine": machine,
            "settings": [scores.to_json() for scores in setting_scores(trials)],
            "trials": [asdict(trial) for trial in trials],
        }

    def save(trials: list[SettingTrial]) -> None:
        if path is not None:
            write_json(path, report(trials))

    try:
        done = [] if path is None else read_trials(path)
        return report(run_settings_suite(recipes, num_seeds=num_seeds, done=done, save=save, progress=progress))
    finally:
        progress("")


def chosen_recipes(names: Sequence[str]) -> list[str]:
    """The recipes whose settings to try, without duplicates; raises TfaccelError for one without settings."""
    if list(names) == ["all"]:
        return list(RECIPE_SETTINGS)
    for name in names or [""]:
        if name not in RECIPE_SETTINGS:
            hint = did_you_mean(name, RECIPE_SETTINGS)
            raise TfaccelError(f"--recipes: no settings of {name!r}.{hint} Recipes: {', '.join(RECIPE_SETTINGS)}.")
    return list(dict.fromkeys(names))


def read_trials(path: Path) -> list[SettingTrial]:
    """The trials in a file; none if there is no file."""
    if not path.exists():
        return []
    try:
        return [SettingTrial(**trial) for trial in json.loads(path.read_text())["trials"]]
    except (ValueError, KeyError, TypeError) as error:
        raise TfaccelError(f"--out: {path} is not a settings report to continue. Name another file.") from error


def print_settings(data: dict[str, Any]) -> None:
    """Prints a table of all settings; the current ones in full, others by what differs."""
    table = Table(title="Settings, on held-out training data", title_justify="left")
    for heading in ("recipe", "setting", "metric"):
        table.add_column(heading, overflow="fold")
    for heading in ("mean", "spread", "seeds", "gain", "its spread", "better"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in data["settings"]:
        fields = {name: one[name] for name in ("recipe", "setting", "metric")}
        scores = SettingScores(**fields, scores=tuple(one["scores"]), gains=tuple(one["gains"]))
        table.add_row(*(Text(cell) for cell in make_row(scores)))
    table_console().print(table)


def make_row(scores: SettingScores) -> list[str]:
    """The cells of a setting's row.

    Example:
        >>> make_row(SettingScores(recipe="gan", setting={"epochs": 30}, metric="recognised", scores=(0.5,)))
        ['gan', 'epochs=30 (present)', 'recognised', '0.5000', '', '1', '', '', '']
    """
    present = get_settings(scores.recipe)[0]
    changed = {name: value for name, value in scores.setting.items() if value != present.get(name)}
    text = ", ".join(f"{name}={value}" for name, value in (changed or scores.setting).items())
    numbers = (scores.mean_gain, scores.gain_spread)
    gain, gain_spread = ("" if number is None else f"{number:+.4f}" for number in numbers)
    better = "" if not changed else "yes" if scores.is_better else "no"
    spread = "" if scores.spread is None else f"{scores.spread:.4f}"
    return [
        scores.recipe,
        text if changed else f"{text} (present)",
        scores.metric,
        f"{scores.mean:.4f}",
        spread,
        str(len(scores.scores)),
        gain,
        gain_spread.lstrip("+"),
        better,
    ]
