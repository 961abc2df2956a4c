"""`tfaccel train`: trains a recipe or a workload of your own, and leaves a run directory."""

import contextlib
import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from absl import flags
from rich.console import Console
from rich.table import Table

from tfaccel.planning.candidates import default_plan
from tfaccel.planning.override_flags import FieldExplanation, explain
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import Plan
from tfaccel.planning.recipe_list import RECIPES_PACKAGE
from tfaccel.planning.workload import Workload
from tfaccel.scripts.command import run_command
from tfaccel.scripts.plan_flags import define_plan_flags, fixed_fields
from tfaccel.scripts.train_flags import (
    chosen_epochs,
    define_train_flags,
    run_dir,
    run_option,
    with_teacher,
    workload_options,
)
from tfaccel.scripts.workload_flags import chosen_workload, define_workload_flags
from tfaccel.scripts.workload_parameters import define_parameter_flags, workload_parameters
from tfaccel.training.result import TrainResult

define_workload_flags()
define_plan_flags()
define_train_flags()

# These fields of the plan are shown before training; others where they are set by you.
_SHOWN = ("strategy", "devices", "dtype_policy", "jit_compile", "global_batch_size", "steps_per_execution")
_INTERRUPTED = 130  # the exit status of a command ended by Ctrl-C


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    define_parameter_flags(argv)
    return run_command(_main, argv, description="Trains a recipe or a workload of your own.")


def _main() -> int:
    as_json, quiet = flags.FLAGS["json"].value, flags.FLAGS["quiet"].value
    directory = run_dir()
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        workload, plan, epochs = _what_to_train()
        if not quiet:
            _print_plan(workload, plan)
        try:
            result = _train(workload, plan, epochs, directory)
        except KeyboardInterrupt:
            print("\nStopped. The same command with --resume=auto goes on from the newest checkpoint.", file=sys.stderr)
            return _INTERRUPTED
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        _print_result(result)
    return 0


def _what_to_train() -> tuple[Workload, Plan, int]:
    """The workload, made for the plan's batch size and the epochs; the plan; the epochs."""
    fixed, options = fixed_fields(), workload_options()
    plan_file = flags.FLAGS["plan"].value
    plan = None if plan_file is None else _changed(Plan.load(plan_file), fixed)
    batch_size = plan.global_batch_size if plan is not None else fixed.get("global_batch_size")
    parameters = workload_parameters()
    if "epochs" in parameters and run_option("epochs") is not None:
        options["epochs"] = run_option("epochs")
    if "global_batch_size" in parameters and batch_size is not None:
        options["global_batch_size"] = batch_size
    workload = chosen_workload(**options)
    if plan is None:
        from tfaccel.hardware.detect import detect_hardware

        plan = default_plan(detect_hardware(), workload, **fixed)
        if "global_batch_size" in parameters and plan.global_batch_size != workload.global_batch_size:
            workload = chosen_workload(**{**options, "global_batch_size": plan.global_batch_size})
    return with_teacher(workload), plan, chosen_epochs(parameters)


def _changed(plan: Plan, fixed: dict[str, Any]) -> Plan:
    """A plan from a file, with the fields that were set by flags."""
    reasons = {**dict(plan.reasons), **dict.fromkeys(fixed, SET_BY_YOU)}
    return replace(plan, **fixed, reasons=tuple(reasons.items()))


def _train(workload: Workload, plan: Plan, epochs: int, directory: str) -> TrainResult:
    from tfaccel.training.train import train

    result = train(
        workload,
        plan,
        run_dir=directory,
        epochs=epochs,
        seed=flags.FLAGS["seed"].value or 0,
        resume=flags.FLAGS["resume"].value or "never",
        checkpoint_interval=run_option("checkpoint_interval"),
        verbose=0 if flags.FLAGS["quiet"].value else 1,
    )
    if flags.FLAGS["recipe"].value is not None:
        show_result = getattr(import_module(f"{RECIPES_PACKAGE}.{workload.name}"), "show_result", None)
        if show_result is not None:
            from tfaccel.training.run_recipe import show_on_chief

            return show_on_chief(show_result, workload, result)
    return result


def _print_plan(workload: Workload, plan: Plan) -> None:
    print(f"Plan for {workload.name}: each choice as the flag that changes it, and why. `tfaccel plan` shows others.")
    for explanation in explain(plan):
        if explanation.field in _SHOWN or explanation.reason == SET_BY_YOU:
            print(f"  {_as_flag(explanation)}  {explanation.reason}")


def _as_flag(explanation: FieldExplanation) -> str:
    """A choice as it is written on the command line."""
    value = explanation.value
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    if isinstance(value, bool):
        text = "on" if value else "off"
    return f"{explanation.flag.removesuffix('=VALUE')}={text}"


def _print_result(result: TrainResult) -> None:
    table = Table(title=f"Trained {result.recipe}", title_justify="left", box=None, show_header=False)
    for name, value in result.final.items():
        table.add_row(name, f"{value:.4f}")
    table.add_row("time", f"{result.wall_seconds:.1f} s, first call {result.first_step_seconds:.1f} s")
    if result.first_step_seconds > 0:  # A run that was stopped after its last step takes none.
        table.add_row("speed", f"{result.examples_per_second:,.0f} examples/s")
    folder = Path(result.run_dir)
    to_look_at = sorted(path.name for path in folder.iterdir() if path.suffix in (".png", ".csv", ".txt"))
    for name in ("model.keras", *to_look_at, "result.json", "metrics.jsonl", "tensorboard"):
        if (folder / name).exists():
            table.add_row(name.partition(".")[0], str(folder / name))
    table.add_row("fit", result.verdict.text())
    Console().print(table)


if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]]))
