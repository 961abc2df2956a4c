"""`tfaccel plan`: the candidate plans for a workload on this or another machine, with every reason."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import TfaccelError
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.memory_estimate import SAVING_HEADINGS, WayToSave, ways_to_save
from tfaccel.planning.candidates import candidate_plans
from tfaccel.planning.placements import may_be_cut
from tfaccel.planning.plan import SETTINGS, Plan, explain
from tfaccel.planning.plan_cache import cached_plan
from tfaccel.planning.plan_checks import EVERYDAY, EXPERIMENTAL, EXPERT, LEVELS
from tfaccel.planning.short_names import full_names
from tfaccel.planning.workload import Workload
from tfaccel.scripts.command import table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.plan_compare import COMPARE_FLAGS, compare, refuse_compare_flags
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.plan_table import ALWAYS_SHOWN, choices_table, decisive_choices
from tfaccel.scripts.train_flags import workload_options
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import chosen_workload, reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters

_LEVEL_TITLES = {EVERYDAY: "Every day", EXPERT: "For experts", EXPERIMENTAL: "Experimental"}
_FLAGS: dict[str, Flag] = {
    "hardware": (str, "JSON file describing the machine to plan for (default: this machine)"),
    "write": (str, "write the chosen plan to this JSON file"),
    "all": (False, "show all fields of the chosen plan, not only those worth a look"),
    "json": (False, "print JSON"),
    **COMPARE_FLAGS,
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    description = (
        "Prints the candidate plans for a workload, best first, and why. With --compare=cpu,gpu: how long training "
        "takes on each, and the data size from which the GPU pays."
    )
    values = command_flags(_FLAGS)
    return run_workload_command(_main, argv, values, description=description)


def _main(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    fixed, options = fixed_fields(values), workload_options(values, parameters)
    if values.compare is not None:
        return compare(values, {**options, **fixed})
    refuse_compare_flags(values)
    hardware = Hardware.load(values.hardware) if values.hardware is not None else _this_machine()
    workload, fixed = chosen_workload(values, **options), full_names(fixed, hardware)
    plans = candidate_plans(hardware, workload, **fixed)
    ways: tuple[WayToSave, ...] = ()
    if may_be_cut(hardware, fixed):
        plans, ways = _plans_that_fit(values, plans, hardware, workload, options, fixed)
    if values.write is not None:
        plans[0].save(values.write)
    if values.json:
        memory = [way.to_json() for way in ways]
        print(json.dumps({**_as_data(hardware, workload, plans), "memory": memory}, indent=2))
    else:
        _print(workload, plans, shows_all=values.all)
        if ways:
            table_console().print(_memory_table(plans[0], ways))
        measured = _measured_plan(values, hardware, workload, fixed)
        if measured is not None:
            text = (
                "`tfaccel train` with these flags does not use plan 1, but the one that `tfaccel find-fastest` measured"
            )
            table_console().print(Text(f"{text}: {measured}"))
        if values.write is not None:
            table_console().print(Text(f"Plan 1 is written to {values.write}"))
    return 0


def _plans_that_fit(
    values: flags.FlagValues,
    plans: list[Plan],
    hardware: Hardware,
    workload: Workload,
    options: dict[str, Any],
    fixed: dict[str, Any],
) -> tuple[list[Plan], tuple[WayToSave, ...]]:
    """The plans for the memory that training takes, from a trace of its step, and what would take less of a GPU."""
    from tfaccel.measuring.estimate_memory import estimate_of_plan

    size = plans[0].replica_batch_size
    try:
        estimate = estimate_of_plan(reference_of_workload(values), plans[0], hardware, options)
    except TfaccelError:  # a step that cannot be traced is planned without it
        return plans, ()
    plans = candidate_plans(hardware, workload, training_bytes=estimate.total_bytes(size), **fixed)
    num_devices = len(hardware.gpus)
    stages = sorted({2, num_devices, plans[0].devices_per_replica} - {1})
    return plans, ways_to_save(estimate, replica_batch_size=size, num_devices=num_devices, stages=stages)


def _measured_plan(
    values: flags.FlagValues, hardware: Hardware, workload: Workload, fixed: dict[str, Any]
) -> Path | None:
    """The file of the plan that `train` would use on this machine in place of the rules'; None if there is none."""
    if values.hardware is not None or (hardware.cluster is not None and hardware.cluster.num_workers > 1):
        return None
    known = cached_plan(hardware, workload, fixed)
    return None if known is None else known.file


def _this_machine() -> Hardware:
    from tfaccel.hardware.detect import detect_hardware

    return detect_hardware()


def _as_data(hardware: Hardware, workload: Workload, plans: list[Plan]) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "hardware": hardware.to_json(),
        "candidates": [plan.to_json() for plan in plans],
        "chosen": plans[0].to_json(),
        "reasons": [asdict(explanation) for explanation in explain(plans[0])],
    }


def _print(workload: Workload, plans: list[Plan], *, shows_all: bool) -> None:
    console = table_console()
    console.print(_candidate_table(workload, plans))
    if shows_all:
        console.print(_chosen_table(plans[0]))
    else:
        num_others = len(explain(plans[0])) - len(decisive_choices(plans[0]))
        console.print(Text("Chosen: plan 1, each choice as its flag, with the reason", style="bold"))
        console.print(choices_table(plans[0]))
        console.print(Text(f"{num_others} other fields, most for experts; --all shows them, with every reason."))
    others = _other_reasons(plans)
    if others:
        console.print(Text("Why the other candidates have other values", style="bold"))
        for line in others:
            console.print(Text(f"  {line}"))


def _candidate_table(workload: Workload, plans: list[Plan]) -> Table:
    title = f"Candidate plans for {workload.name}, best first by rule of thumb"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in ("", "strategy", "devices", "dtype\npolicy", "XLA", "batch\n(replica)", "steps\na call", "else"):
        width = len("GPU:7 (8)") if heading == "devices" else None
        table.add_column(heading, overflow="fold", no_wrap=heading.startswith(("dtype", "batch")), max_width=width)
    for number, plan in enumerate(plans, start=1):
        table.add_row(
            str(number),
            _with_workers(plan),
            devices_text(plan.devices),
            plan.dtype_policy,
            "on" if plan.jit_compile else "off",
            f"{plan.global_batch_size} ({plan.replica_batch_size})",
            "auto" if plan.steps_per_execution is None else str(plan.steps_per_execution),
            ", ".join(_other_differences(plan, plans[0])),
        )
    return table


def _chosen_table(plan: Plan) -> Table:
    table = Table(title="Chosen: plan 1", title_justify="left")
    for heading in ("field", "value", "why", "override with"):
        table.add_column(heading, overflow="fold")
    for level in LEVELS:
        table.add_section()
        table.add_row(Text(_LEVEL_TITLES[level], style="bold"))
        for explanation in (one for one in explain(plan) if SETTINGS[one.field].level == level):
            value = devices_text(plan.devices) if explanation.field == "devices" else str(explanation.value)
            table.add_row(explanation.field, value, Text(explanation.reason), Text(explanation.flag))
    return table


def _memory_table(plan: Plan, ways: tuple[WayToSave, ...]) -> Table:
    table = Table(title="Memory of each GPU, and what other values of plan fields save", title_justify="left")
    for heading in SAVING_HEADINGS:
        table.add_column(heading, justify="left" if heading in (SAVING_HEADINGS[0], "") else "right", overflow="fold")
    for way in ways:
        name, _, value = way.field.partition("=")
        used = value and str(getattr(plan, name)).lower() == value
        table.add_row(*way.row()[:-1], "used by plan 1" if used else way.remark)
    return table


def devices_text(devices: tuple[str, ...]) -> str:
    """The devices, abbreviated if there are many, such as "GPU:0 to GPU:7 (8)"."""
    return ", ".join(devices) if len(devices) <= 2 else f"{devices[0]} to {devices[-1]} ({len(devices)})"


def _with_workers(plan: Plan) -> str:
    return plan.strategy if plan.num_workers == 1 else f"{plan.strategy} ({plan.num_workers} workers)"


def _other_differences(plan: Plan, first: Plan) -> list[str]:
    return [
        f"{mine.field}: {mine.value}"
        for mine, theirs in zip(explain(plan), explain(first), strict=True)
        if mine.value != theirs.value and mine.field not in ALWAYS_SHOWN
    ]


def _other_reasons(plans: list[Plan]) -> list[str]:
    """One line per value that differs from the first plan, in the order of the candidates."""
    said = {(explanation.field, explanation.value) for explanation in explain(plans[0])}
    lines = []
    for plan in plans[1:]:
        for other in explain(plan):
            if (other.field, other.value) not in said:
                said.add((other.field, other.value))
                value = devices_text(plan.devices) if other.field == "devices" else other.value
                lines.append(f"{other.field}={value}: {other.reason}")
    return lines


if __name__ == "__main__":
    sys.exit(run(["plan", *sys.argv[1:]]))
