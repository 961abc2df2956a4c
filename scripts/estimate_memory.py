"""Estimates the memory that training takes, by batch size, and the largest batch that fits, without training.

    tfaccel estimate-memory --recipe=image_classification
    tfaccel estimate-memory --recipe=image_classification --dtype_policy=mixed_bfloat16 --batch_sizes=256,1024,4096
    tfaccel estimate-memory --workload=my_project.digits:workload --hardware=server.json --accumulation_steps=4

The training step is traced for two batch sizes in a child process, which takes some seconds. Weights, optimizer state,
activations and temporaries follow from its graph, for any other batch size too. The last columns are for layers whose
activations are recomputed in the backward pass (`keras.RematScope`). Another machine's --hardware file is written by
`tfaccel env --json`.
"""

import contextlib
import json
import sys

from absl import flags
from rich.table import Table
from rich.text import Text

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.memory_estimate import HEADINGS, MemoryEstimate, mebibytes
from tfaccel.scripts.command import check_writable, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.model_flags import shown_log
from tfaccel.scripts.plan_flags import fixed_fields
from tfaccel.scripts.train_flags import workload_options
from tfaccel.scripts.workload_command import run_workload_command
from tfaccel.scripts.workload_flags import reference_of_workload
from tfaccel.scripts.workload_parameters import WorkloadParameters

_FLAGS: dict[str, Flag] = {
    "batch_sizes": ([], "replica batch sizes to estimate (default: half the plan's, the plan's, and twice the plan's)"),
    "hardware": (str, "JSON file describing the machine to estimate for (default: this machine)"),
    "head_room": (0.1, "the fraction of the device's memory that is to stay free"),
    "out": (str, "also write the estimate to this JSON file"),
    "quiet": (False, "show no progress"),
    "json": (False, "print JSON"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_workload_command(_main, argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues, parameters: WorkloadParameters) -> int:
    from tfaccel.measuring.estimate_memory import estimate_memory

    check_writable("out", values.out)
    sizes = [_size(text) for text in values.batch_sizes]
    hardware = None if values.hardware is None else Hardware.load(values.hardware)
    with contextlib.nullcontext() if values.quiet else shown_log(program="estimate-memory"):
        estimate = estimate_memory(
            reference_of_workload(values),
            batch_sizes=sizes,
            hardware=hardware,
            head_room=values.head_room,
            **workload_options(values, parameters),
            **fixed_fields(values),
        )
    if values.out is not None:
        estimate.save(values.out)
    if values.json:
        print(json.dumps(estimate.to_json(), indent=2))
    else:
        _print(estimate)
    return 0


def _size(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise PlanError(f"--batch_sizes must be whole numbers of at least 1. Received: --batch_sizes={text}.")
    return int(text)


def _print(estimate: MemoryEstimate) -> None:
    console = table_console()
    replicas = f", {estimate.num_replicas} replicas" if estimate.num_replicas > 1 else ""
    console.print(
        Text(f"Memory of training {estimate.workload} on {estimate.device}{replicas}, {estimate.dtype_policy}")
    )
    for name, num_bytes in (
        (f"weights ({estimate.num_parameters:,} trainable parameters)", estimate.weights_bytes),
        ("gradients, if all are in memory at once", estimate.gradients_bytes),
        (f"optimizer state ({estimate.optimizer})", estimate.optimizer_bytes),
        ("gradients exchanged between replicas", estimate.reduced_bytes),
        ("TensorFlow's graphs and kernels", estimate.runtime_bytes),
        ("the process before the model is built", estimate.process_bytes),
    ):
        if num_bytes:
            console.print(Text(f"  {name}: {mebibytes(num_bytes)}"))
    table = Table(title="By batch size; the totals include all of the above", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right", overflow="fold")
    for row in estimate.rows():
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in (*_largest(estimate), *estimate.notes):
        console.print(Text(line))


def _largest(estimate: MemoryEstimate) -> list[str]:
    if estimate.device_bytes is None:
        return [f"The memory of {estimate.device} is not known. Give --hardware=FILE with memory_bytes."]
    of = f"{mebibytes(estimate.device_bytes)} of {estimate.device}, {estimate.head_room:.0%} of it left free"
    lines = []
    for largest, how in (
        (estimate.largest_replica_batch_size, ""),
        (estimate.largest_recomputed_replica_batch_size, " with recomputed activations"),
    ):
        if largest is not None:
            text = f"At most {largest:,} examples per replica fit{how}" if largest else f"No batch fits{how}"
            lines.append(f"{text}: {of}.")
    return lines


if __name__ == "__main__":
    sys.exit(run(["estimate-memory", *sys.argv[1:]]))
