"""A workload as a message to child processes: `make_task` in the parent, `load_task` in the child.

`answered` runs the child, and `get_cause` words its failure.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfaccel.data.given_batches import DATASET
from tfaccel.errors import TfaccelError, WorkloadError, is_out_of_memory
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.workload import Workload

OUT_OF_MEMORY = "Out of memory"  # how a cause begins that is a lack of memory


def make_task(
    given: Any,
    options: Mapping[str, Any],
    *,
    made: Workload | None = None,
    seed: int = 0,
    folder: Path | None = None,
) -> dict[str, Any]:
    """What a child process needs to know to make a workload.

    Args:
        given: a recipe's name or an import path, from which the child makes the workload; or what else the caller got.
        options: arguments of the recipe or the function.
        made: the workload made from `given`, which is sent if `given` has no name; None if `given` is a `Workload`.
        seed: determines weights and data.
        folder: where to keep the arrays of a `Workload`, for several children; None to send them.

    Raises:
        WorkloadError: if the workload cannot be sent to another process, such as one of a `tf.data.Dataset`.
    """
    if not isinstance(given, str):
        given, options = made or given, {}
        if isinstance(given, Workload):
            _check_data(given)
    origin, by_value = Origin.of([given])
    if isinstance(given, str) or folder is None:
        reference = Reference.of(given, "workload", plain_name="recipe", by_value=by_value)
    else:
        reference = Reference.by_file(given, "workload", by_value=by_value, file=folder / "workload.pickle")
    return {
        "origin": asdict(origin),
        "workload": {"kind": reference.kind, "text": reference.text, "name": reference.name},
        "options": dict(options),
        "seed": seed,
    }


def _check_data(workload: Workload) -> None:
    """Raises WorkloadError for a dataset: unlike the function that makes it, it exists in this process only."""
    validation = getattr(workload.validation_data, "__self__", None)
    for name, data in (("x", workload.train_data), ("validation_data", validation)):
        if getattr(data, "what", None) == DATASET:
            raise WorkloadError(
                "Models are measured in other processes, to which a tf.data.Dataset cannot be sent. Received: a "
                f"tf.data.Dataset as {name} of {workload.name!r}. Pass arrays; or the import path of a function that "
                'returns (build_model, dataset), "package.module:function"; or a tfaccel.Workload whose train_data '
                "returns a dataset."
            )


def load_task(task: Mapping[str, Any]) -> Workload:
    """The workload of a task of `make_task`, in the process that has received it."""
    Origin(**task["origin"]).prepare()
    reference, options = Reference(**task["workload"]), task["options"]
    if reference.kind in ("recipe", "import"):
        return as_workload(reference.import_path(), **options)
    return as_workload(reference.load(), **options)


def answered(connection: Connection, work: Callable[[Connection, Any], None]) -> int:
    """Does what the parent orders, and sends it the cause of a failure; returns the exit status.

    Args:
        connection: to the parent, which sends the order first.
        work: takes the connection and the order.
    """
    order = connection.recv()
    try:
        work(connection, order)
    except Exception as error:
        traceback.print_exc()
        connection.send({"event": "failed", "cause": get_cause(error), "kind": type(error).__name__})
        return 1
    return 0


def get_cause(error: Exception) -> str:
    """Why a plan could not be measured, in one line; it begins with `OUT_OF_MEMORY` if memory was short.

    Example:
        >>> get_cause(ValueError("two\\nlines")), get_cause(MemoryError())
        ('ValueError: lines', 'Out of memory: MemoryError')
    """
    if isinstance(error, TfaccelError):
        return str(error)
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300].rstrip(": ")
    return f"{OUT_OF_MEMORY}: {text}" if isinstance(error, MemoryError) or is_out_of_memory(error) else text
