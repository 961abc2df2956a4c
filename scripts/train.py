"""Trains a recipe or your own workload, and writes a run directory.

    tfaccel train --recipe=image_classification                        # writes runs/image_classification-DATE
    tfaccel train --recipe=image_classification --run_dir=runs/digits
    tfaccel train --recipe=image_classification --autotune             # measures plans first, as `tfaccel find-fastest`
    tfaccel train --workload=my_project.digits:workload --epochs=5 --run_dir=runs/mine
    tfaccel train --recipe=image_classification --run_dir=runs/digits --resume=auto    # continues a stopped run
    tfaccel train --recipe=image_classification --profile=30:40    # a trace of these steps for TensorBoard's profiler

    tfaccel train --recipe=image_classification --num_workers=2    # two workers on this machine; see `tfaccel launch`
    tfaccel train --recipe=image_classification --num_workers=2 --engine=ray    # on a Ray cluster

On several machines, run this command on each, with the cluster and the worker's task index in TF_CONFIG (or under
Slurm, or in an indexed Kubernetes job). They wait for each other for 300 seconds, or TFACCEL_WORKER_WAIT_SECONDS; only
worker 0 writes the run directory, which the others need not see.

Ctrl-C and SIGTERM stop training after the steps in progress (about half a second of them), and save a checkpoint;
several workers stop together if one of them gets the signal. A second signal ends the process at once. After SIGTERM,
the process ends within TFACCEL_GRACE_SECONDS (15 by default), with a new checkpoint or without. --resume=must does what
--resume=auto does, but fails if there is no run to continue; --resume=extend also trains a complete run up to a larger
number of --epochs.

Exit status: 0; 2 for bad input, or files that cannot be written; 138 after SIGTERM, or if another worker did not start
or was lost: the same command with --resume=auto continues, on all workers; 130 for Ctrl-C; 143 after a second SIGTERM;
1 for any other error.
"""

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import flags
from rich.table import Table

from tfaccel.data.epochs import check_one_batch
from tfaccel.errors import LaunchError, TfaccelError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.machine import Machine
from tfaccel.launching.worker_group import WorkerGroup
from tfaccel.planning.own_model import DeferredItems
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import get_run_epochs, scaling_advice
from tfaccel.planning.short_names import full_names
from tfaccel.planning.workload import Workload
from tfaccel.processes.launched import launch_date, resume_in_attempt
from tfaccel.scripts.command import table_console
from tfaccel.scripts.find_fastest import measured_plans
from tfaccel.scripts.launch import check_num_workers
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.plan_table import choices_table
from tfaccel.scripts.start_again import can_start_again, carried_plan, has_started_again, start_again_if_needed
from tfaccel.scripts.train_flags import (
    check_callback_paths,
    check_trackers,
    define_train_flags,
    own_callbacks,
    run_dir,
    run_option,
    scaling_rule,
    with_teacher,
    workload_options,
)
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import chosen_workload, reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters
from tfaccel.training.run.remote_run import shown_run
from tfaccel.training.run.result import PROGRESS, TrainResult
from tfaccel.training.run.run_dir import checked_place, resume_on
from tfaccel.training.run.run_options import StepRange

_GO_ON = "The same command with --resume=auto continues from the newest checkpoint."
_NO_MFU = (
    "unknown: `tfaccel roofline` with the same --recipe (or --workload) and flags measures this machine's limits for "
    "this plan"
)


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = flags.FlagValues()
    return run_workload_command(
        lambda values, parameters: _main(values, parameters, argv[1:]),
        argv,
        values,
        description=(__doc__ or "").strip(),
        define_options=define_train_flags,
    )


def _main(values: flags.FlagValues, parameters: WorkloadParameters, arguments: Sequence[str]) -> int:
    directory = run_dir(values)
    group = _group(values)
    if group is not None and launch_date() is None:
        cluster = detect_hardware().cluster
        if cluster is None:
            _check_before_launch(values, parameters)
            return _launched(values, group, directory, arguments)
        check_num_workers(values.num_workers, cluster)
    if values.profile is not None:
        StepRange.of(values.profile)  # reports a wrong range before anything is loaded
    check_trackers(values.log_to)
    check_callback_paths(values.callbacks)
    checked_place(directory, resume_on(find_cluster(Machine.here()), resume_in_attempt(values.resume)))
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        workload, plan, origin = _what_to_train(values, parameters, directory)
        if not values.quiet:
            _print_plan(workload, plan, origin)
            if scaling_rule(values) is None and (
                advice := scaling_advice(workload.global_batch_size, plan.global_batch_size)
            ):
                print(advice)
        try:
            result = _train(workload, plan, directory, values)
        except KeyboardInterrupt as error:
            raise error if error.args else KeyboardInterrupt(_GO_ON) from None
    if values.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        _print_result(result)
    return 0


def _group(values: flags.FlagValues) -> WorkerGroup | None:
    """The workers to start; None to train in this process.

    Raises:
        LaunchError: for an unknown engine, a flag of another one, or a missing number of workers.
    """
    engine = str(values.engine) if values["engine"].present or values.num_workers is not None else None
    options = {} if values.address is None else {"address": values.address}
    if options and engine != "ray":
        raise LaunchError(f"--address is for --engine=ray. Received: --address with --engine={engine or 'local'}.")
    return WorkerGroup.of(engine, values.num_workers, options)


def _check_before_launch(values: flags.FlagValues, parameters: WorkloadParameters) -> None:
    """Reports what can be known of wrong flags before workers are started; they check the others."""
    if values.profile is not None:
        StepRange.of(values.profile)
    check_trackers(values.log_to)
    check_callback_paths(values.callbacks)
    fixed_fields(values)
    if parameters.are_known:
        workload_options(values, parameters)
    else:
        chosen_workload(values)  # says why it cannot be loaded


def _launched(values: flags.FlagValues, group: WorkerGroup, directory: str, arguments: Sequence[str]) -> int:
    """Runs this command as several workers."""
    folder = checked_place(directory, values.resume)
    command = [sys.executable, "-m", "tfaccel", "train", *arguments, f"--run_dir={directory}"]

    def say(text: str) -> None:
        if not values.quiet:
            print(f"launch: {text}", file=sys.stderr, flush=True)

    return group.run(command, folder=folder.with_name(f"{folder.name}-logs"), on_event=say)


def _what_to_train(
    values: flags.FlagValues, parameters: WorkloadParameters, directory: str
) -> tuple[Workload, Plan, str]:
    """The workload, the plan, and where the plan comes from."""
    fixed = fixed_fields(values)
    if values.autotune and (values.plan is not None or values.teacher is not None):
        raise TfaccelError(
            "--autotune chooses the plan for training without a teacher: drop it, or --plan and --teacher."
        )
    plan = None if values.plan is None else _changed(Plan.load(values.plan), fixed)
    workload = chosen_workload(values, **workload_options(values, parameters))
    if values.max_minutes is None:
        get_run_epochs(workload, run_option("epochs", values))  # reports a missing number of epochs early
    measured = carried_plan()
    continues = resume_in_attempt(values.resume) != "never" and (Path(directory) / "plan.json").exists()
    measures = values.autotune and not continues
    if measures and not has_started_again():
        options = {**workload_options(values, parameters), **fixed}
        measured = measured_plans(reference_of_workload(values), options, quiet=values.quiet).plan
    origin = f"from {values.plan}"
    if plan is None:
        plan, origin = _chosen_plan(workload, fixed, directory, values, measured=measured)
    if values.recipe is not None:
        check_one_batch(workload.num_train_examples, plan.global_batch_size // plan.accumulation_steps)
    start_again_if_needed(plan, measured)
    return with_teacher(workload, values), plan, origin


def _chosen_plan(
    workload: Workload, fixed: dict[str, Any], directory: str, values: flags.FlagValues, *, measured: Plan | None
) -> tuple[Plan, str]:
    """The plan, if no file gives one, and where it comes from; `measured` is what --autotune has just found."""
    from tfaccel.training.run.run_options import plan_and_origin

    chosen: dict[str, Any] = {"can_restart": can_start_again(), "measured": measured, **fixed}
    return plan_and_origin(detect_hardware(), workload, directory, resume=resume_in_attempt(values.resume), **chosen)


def _changed(plan: Plan, fixed: dict[str, Any]) -> Plan:
    """A plan from a file, changed by flags."""
    reasons = {**dict(plan.reasons), **dict.fromkeys(fixed, SET_BY_YOU)}
    return replace(plan, **full_names(fixed), reasons=tuple(reasons.items()))


def _train(workload: Workload, plan: Plan, directory: str, values: flags.FlagValues) -> TrainResult:
    tracked: list[Any] = []

    def callbacks() -> list[Any]:
        from tfaccel.training.run.trackers import trackers

        cluster = find_cluster(Machine.here())
        logs = values.log_to if cluster is None or cluster.is_chief else []
        described = {**workload.options, "workload": workload.name, "seed": values.seed}
        described |= {f"plan.{name}": value for name, value in plan.to_json().items() if name != "reasons"}
        tracked.extend(trackers(logs, Path(directory), described))
        return [*own_callbacks(values.callbacks), *tracked]

    final = None
    try:
        # TensorFlow reads the plan's environment when Keras is imported, which callbacks do: not before `train` does.
        result = _trained(workload, plan, directory, values, DeferredItems(callbacks))
        final = result.final
    finally:
        for tracker in tracked:
            tracker.close(final)
    from tfaccel.training.recipe import show_on_chief

    return show_on_chief(workload, result)


def _trained(
    workload: Workload, plan: Plan, directory: str, values: flags.FlagValues, callbacks: Sequence[Any]
) -> TrainResult:
    from tfaccel.training.train import train

    return train(
        workload,
        plan,
        run_dir=directory,
        epochs=run_option("epochs", values),
        max_seconds=None if values.max_minutes is None else 60 * values.max_minutes,
        seed=values.seed,
        resume=values.resume,
        checkpoint_interval=run_option("checkpoint_interval", values),
        keep_checkpoints=values.keep_checkpoints,
        profile=values.profile,
        verbose=0 if values.quiet else PROGRESS,
        learning_rate_scaling=scaling_rule(values),
        scaling_warm_up=values.scaling_warm_up,
        on_nonfinite=values.on_nonfinite,
        validate_on=values.validate_on,
        callbacks=callbacks,
        extend_schedule=values.extend_schedule,
    )


def _print_plan(workload: Workload, plan: Plan, origin: str) -> None:
    print(f"Plan for {workload.name} ({origin}): each choice as its flag, with the reason.")
    table_console().print(choices_table(plan))


def _print_result(result: TrainResult) -> None:
    table = Table(title=f"Trained {result.recipe}", title_justify="left", box=None, show_header=False)
    for name, value in result.final.items():
        table.add_row(name, f"{value:.4f}")
    table.add_row("time", f"{result.wall_seconds:.1f} s, first call {result.first_step_seconds:.1f} s")
    if result.first_step_seconds > 0:  # a run resumed after its last step runs none
        table.add_row("speed", f"{result.examples_per_second:,.0f} examples/s")
    scaled = result.learning_rate_scaling
    if scaled is not None and "scaled_learning_rate" in scaled:
        rates = f"{scaled['learning_rate']:.4g} -> {scaled['scaled_learning_rate']:.4g}"
        sizes = f"batch size {scaled['global_batch_size']}, recommended {scaled['recommended_batch_size']}"
        table.add_row("peak rate", f"{rates} ({scaled['rule']} scaling: {sizes})")
    if result.performance is not None:
        mfu = result.performance.mfu
        is_one_machine = result.plan.num_workers == 1 and result.plan.strategy != "tpu"
        unknown = _NO_MFU if is_one_machine else "unknown on TPUs, and with several workers"
        table.add_row("MFU", unknown if mfu is None else f"{mfu:.2f}")
    if result.bottleneck is not None:
        table.add_row("limit", result.bottleneck.text)
    for proof in (result.proof or {}).values():
        table.add_row("proof", proof["text"])
    if result.left_out_batches:
        table.add_row("left out", f"{result.left_out_batches} batches whose loss or gradients were not finite")
    folder = Path(result.run_dir)  # the chief's folder, which other workers may not see
    to_look_at = sorted(path.name for path in folder.glob("*") if path.suffix in (".png", ".csv", ".txt"))
    for name in ("model.keras", *to_look_at, "result.json", "metrics.jsonl", "tensorboard"):
        if (folder / name).exists():
            table.add_row(name.partition(".")[0], f"{shown_run(folder)}/{name}")
    table.add_row("fit", result.verdict.text())
    table_console().print(table)


if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]]))
