"""`train` as each of several workers that it starts itself: what is sent to them, and what comes back."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfaccel.errors import ClusterError, LaunchError, PlanError, RunDirError
from tfaccel.files import write_json
from tfaccel.launching.worker_group import WorkerGroup
from tfaccel.local_path import local_path
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.own_model import DeferredItems
from tfaccel.planning.plan import Plan
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.workload import Workload
from tfaccel.processes.launched import DONE, INTERRUPTED, RETRY
from tfaccel.training.run.result import TrainResult
from tfaccel.training.run.run_place import checked_place

logger = logging.getLogger("tfaccel")

_PROGRAM = "tfaccel.training.train_program"
_RESUME = 'resume="auto" continues from the newest checkpoint.'


def train_on_workers(
    group: WorkerGroup,
    given: Any,
    workload: Workload,
    of: Mapping[str, Any],
    *,
    run_dir: str | os.PathLike[str],
    callbacks: Sequence[Any],
    arguments: Mapping[str, Any],
) -> TrainResult:
    """Trains a workload on workers, and waits for the result.

    Args:
        group: how many workers, and what starts them.
        given: what `train` was called with. A name is sent as such, for the workers to make the workload.
        workload: made from it.
        of: arguments for that.
        run_dir: the run directory, which this process must see.
        callbacks: Keras callbacks, which the workers get copies of.
        arguments: others of `train`.

    Raises:
        LaunchError: if the workers cannot be started, or one fails; the message has its last words.
        ClusterError: if they ended before they were done, and may continue.
        KeyboardInterrupt: after Ctrl-C, when they have saved a checkpoint.
        PlanError: for a plan for another number of workers.
        WorkloadError: for something that cannot be sent to another process.
    """
    plan: Plan | None = arguments["plan"]
    if plan is not None and plan.num_workers != group.num_workers:
        raise PlanError(
            f"The plan is for {plan.num_workers} workers. Received: num_workers={group.num_workers}. Leave out the "
            "plan, for one that suits each worker's machine."
        )
    checked_place(run_dir, arguments["resume"])
    path = local_path(run_dir, RunDirError).absolute()
    folder = path.with_name(f"{path.name}-logs")
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The folder for logs {folder} cannot be created: {error.strerror}.") from error
    task = folder / "task.json"
    content = _task(given, workload, of, callbacks, folder=folder)
    write_json(task, {**content, "arguments": {**arguments, "plan": None if plan is None else plan.to_json()}})
    events: list[str] = []

    def on_event(text: str) -> None:
        events.append(text)
        logger.info(text)

    command = [sys.executable, "-m", _PROGRAM, str(task), f"--run_dir={path}"]
    try:
        status = group.run(command, folder=folder, on_event=on_event, shows_output=bool(arguments["verbose"]))
    except LaunchError:
        if is_new and not any(folder.glob("*.log")):  # no worker has started
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if status == INTERRUPTED:
        raise KeyboardInterrupt(_RESUME)
    if status != DONE:
        last = "\n".join(events[-2:])
        if status == RETRY:
            raise ClusterError(f"{last} {_RESUME} Logs: {folder}")
        raise LaunchError(f"Training on {group.num_workers} workers failed; logs are in {folder}. {last}")
    return _result(path)


def _task(
    given: Any, workload: Workload, of: Mapping[str, Any], callbacks: Sequence[Any], *, folder: Path
) -> dict[str, Any]:
    """What a worker needs to know to train, as JSON; arrays are in a file beside it."""
    sent, options = (given, dict(of)) if isinstance(given, str) else (workload, {})
    origin, by_value = Origin.of((given, sent, *callbacks))
    how: dict[str, Any] = {"by_value": by_value}
    if isinstance(sent, str):
        reference = Reference.of(sent, "workload", plain_name="recipe", **how)
    else:
        reference = Reference.by_file(sent, "workload", file=folder / "workload.pickle", **how)
    none = Reference(kind="none")
    return {
        "origin": asdict(origin),
        "workload": asdict(reference),
        "options": options,
        "callbacks": asdict(Reference.by_pickle(list(callbacks), "callbacks", **how) if callbacks else none),
    }


def arguments_of_task(file: Path) -> tuple[Workload, dict[str, Any]]:
    """The workload, and the other arguments of `train`, that a worker was sent.

    Args:
        file: the task.
    """
    task = json.loads(file.read_text())
    origin = {**task["origin"], "import_paths": tuple(task["origin"]["import_paths"])}
    Origin(**origin).prepare()
    reference = Reference(**task["workload"])
    named = reference.kind in ("recipe", "import")
    workload = as_workload(reference.import_path() if named else reference.load(), **task["options"])
    arguments = task["arguments"]
    plan = arguments.pop("plan")
    callbacks = DeferredItems(lambda: Reference(**task["callbacks"]).load() or ())
    return workload, {**arguments, "plan": None if plan is None else Plan.from_json(plan), "callbacks": callbacks}


def _result(run_dir: Path) -> TrainResult:
    file = run_dir / "result.json"
    try:
        return TrainResult.from_json({**json.loads(file.read_text()), "run_dir": str(run_dir)})
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"The workers are done, but {file} cannot be read here ({error}). The run directory must be on a disk that "
            "this machine and all workers share."
        ) from error
