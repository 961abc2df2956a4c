"""Searches for the best hyperparameters of a recipe or your own workload, with parallel trials.

    tfaccel search --recipe=image_classification --algorithm=random --max_trials=16 --parallel=2 --run_dir=runs/search
    tfaccel search --recipe=image_classification --run_dir=runs/search --resume=auto ...   # continues a stopped search
    tfaccel search --workload=mine:workload --space=mine:build --objective=val_accuracy --run_dir=runs/search
    tfaccel search --recipe=image_classification --algorithm=tpe --pruning=median --max_trials=30 --run_dir=runs/tpe
    tfaccel search --recipe=image_classification --engine=ray --parallel=8 --run_dir=runs/search   # on a Ray cluster

Algorithms: random, grid, bayesian and hyperband are Keras Tuner's; tpe, cmaes and nsga2 are Optuna's, with its pruners
(pip install 'tfaccel[optuna]').

Without --space it searches the recipe's own space: architecture, optimizer, learning rate, schedule, batch size,
regularization and augmentation, where the recipe supports them; parameters that are set by flags are not searched. Exit
status 1 if no trial has a score.
"""

import contextlib
import json
import os
import sys
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import WorkloadError
from tfaccel.planning.load_workload import list_recipes
from tfaccel.scripts.command import INTERRUPTED, run_command, table_console
from tfaccel.scripts.search_flags import define_tune_flags, search_options
from tfaccel.scripts.train_flags import run_dir
from tfaccel.scripts.workload_parameters import WorkloadParameters
from tfaccel.tuning.search_result import SearchResult, TrialRow

_MAX_ROWS = 30


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = flags.FlagValues()
    define_tune_flags(values)
    parameters = WorkloadParameters(argv, values)
    return run_command(lambda: _main(values, parameters), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    directory, options = run_dir(values), search_options(values, parameters)
    progress = _Progress(options.get("max_trials"), quiet=values.quiet)
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        from tfaccel.tuning.search import search

        try:
            result = search(
                _workload(values),
                values.space,
                run_dir=directory,
                resume=values.resume,
                on_row=progress.show,
                **options,
            )
        except KeyboardInterrupt:
            print("\nStopped. Continue: the same command, --resume=auto. No finished trial is lost.", file=sys.stderr)
            return INTERRUPTED
    if values.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        _print_result(result)
    return 0 if result.best is not None else 1


def _workload(values: flags.FlagValues) -> str | None:
    """The recipe or import path given by --recipe or --workload; None if a tuner needs no data."""
    recipe, import_path = values.recipe, values.workload
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if recipe is None and import_path is None and values.tuner is not None:
        return None
    if (recipe is None) == (import_path is None):
        names = ", ".join(entry.name for entry in list_recipes())
        raise WorkloadError(
            "Give --recipe=NAME or --workload=package.module:function. "
            f"Received: {'neither' if recipe is None else 'both'}. Recipes: {names}."
        )
    if import_path is not None and ":" not in import_path:
        raise WorkloadError(f"A workload is written package.module:function. Received: {import_path!r}.")
    return str(recipe or import_path)


class _Progress:
    """Prints a line to standard error for each finished trial."""

    def __init__(self, max_trials: int | None, *, quiet: bool) -> None:
        self._of = "" if max_trials is None else f" of {max_trials}"
        self._quiet = quiet
        self._done = 0

    def show(self, row: TrialRow) -> None:
        """Shows a trial."""
        self._done += 1
        if not self._quiet:
            score = "" if row.score is None else f", score {row.score:.6g}"
            cause = f": {row.cause}" if row.cause else ""
            print(
                f"trial {row.trial_id} {row.status}{score}, {row.seconds:.1f} s{cause} ({self._done}{self._of} done)",
                file=sys.stderr,
                flush=True,
            )


def _print_result(result: SearchResult) -> None:
    console = table_console()
    direction = "highest" if result.objective.direction == "max" else "lowest"
    title = f"{len(result.rows)} trials, {result.algorithm}; {direction} {', '.join(result.objective.names)}"
    table = Table(title=title, title_justify="left")
    pareto = {row.trial_id for row in result.pareto} if len(result.objective.parts) > 1 else set()
    for heading in (
        "trial",
        "status",
        "score",
        *(result.objective.names if pareto else ()),
        "seconds",
        "hyperparameters",
        "cause",
    ):
        table.add_column(heading, overflow="fold")
    ranked = sorted(result.rows, key=lambda row: _rank(row, rising=result.objective.direction == "max"))
    for row in ranked[:_MAX_ROWS]:
        name = f"{row.trial_id} *" if row.trial_id in pareto else row.trial_id
        measured = [_number(row.metrics.get(metric)) for metric in result.objective.names] if pareto else []
        values = ", ".join(f"{key}={_number(value)}" for key, value in row.hyperparameters.items())
        spread = "" if row.spread is None else f" ± {row.spread:.2g}"
        cells = [
            name,
            row.status,
            f"{_number(row.score)}{spread}",
            *measured,
            f"{row.seconds:.1f}",
            values,
            row.cause or "",
        ]
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    if len(ranked) > _MAX_ROWS:
        print(f"{len(ranked) - _MAX_ROWS} more trials are in {result.run_dir}/trials.jsonl.")
    if pareto:
        print("* Pareto front: no other trial is better in one objective and at least as good in the others")
    if result.best is None:
        print("No trial has a score: see the causes above, and the logs in the run directory.")
    else:
        print(f"Best: trial {result.best.trial_id}; results in {result.run_dir}, {result.wall_seconds:.1f} s in total.")
        values = " ".join(f"{name}={value}" for name, value in result.best_hyperparameters.items())
        print(f"Best hyperparameters: {values}")
    if result.best_run_dir is not None:
        final = ", ".join(f"{name} {value:.4f}" for name, value in (result.best_final or {}).items())
        print(f"Retrained: {result.best_run_dir} ({final}).")


def _rank(row: TrialRow, *, rising: bool) -> tuple[bool, float, str]:
    score = 0.0 if row.score is None else row.score
    return (not row.has_score, -score if rising else score, row.trial_id)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(run(["search", *sys.argv[1:]]))
