"""A worker of a search: runs trials on its device group; started by the search's fork server.

It receives the search's task and its devices, reports the search space if the task says so, then requests trials one at
a time; it may get a fold of another worker's trial instead. It exits with status 75 to be restarted: after a trial that
ran out of memory, or when its memory has grown.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras_tuner
import psutil
from keras_tuner.errors import FatalError

from tfaccel.errors import TfaccelError, in_one_line
from tfaccel.training.run.run_dir import RunIdentity
from tfaccel.tuning.search_processes import FOLD, START_ANEW, DeviceGroup
from tfaccel.tuning.search_result import TrialRow, read_hyperparameters, read_outcome, write_outcome
from tfaccel.tuning.source import SearchSource
from tfaccel.tuning.trial_maker import TrialMaker, discover
from tfaccel.tuning.trial_run import OUT_OF_MEMORY, TrialRunner, get_cause, retrain

_MAX_GROWTH_BYTES = 512 * 2**20  # above the memory used after the first two trials
_SETTLED_AFTER = 2
_IDLE_SECONDS = 0.2


class _Parent:
    """The connection to the search; several threads may send, since a custom `fit` may leave one running."""

    def __init__(self, connection: Connection) -> None:
        self._lock = threading.Lock()
        self._connection = connection
        self.recv = connection.recv

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._connection.send(message)


def main(connection: Connection, arguments: list[str]) -> int:
    """Runs the worker; returns the exit status."""
    del arguments
    parent = _Parent(connection)
    task = parent.recv()
    devices: DeviceGroup = task["devices"]
    if devices.cores:
        os.sched_setaffinity(0, devices.cores)
    try:
        source: SearchSource = task["source"]
        source.origin.prepare()
        maker = TrialMaker.of(source, task["options"], devices.plan_fields)
        if task["discovers"]:
            parent.send({"event": "discovered", "found": {**discover(maker), "epochs": maker.epochs}})
    except Exception as error:
        traceback.print_exc()
        words = f"{type(error).__name__}: {in_one_line(error)}"
        message = str(error) if isinstance(error, TfaccelError) else f"The search cannot start: {words}"
        parent.send({"event": "refused", "message": message})
        return 1
    _work(parent, parent.recv(), maker)
    return 0


def _work(parent: _Parent, order: dict[str, Any], maker: TrialMaker) -> None:
    """Runs trials until there are no more, or retrains the best one."""
    identity: RunIdentity = order["identity"]
    run_dir = identity.path

    def sign() -> None:
        identity.check()
        parent.send({"event": "alive"})

    def claim(trial_id: str, fold: int) -> bool:
        parent.send({"event": "claim", "fold": (trial_id, fold)})
        return bool(parent.recv()["is_free"])

    how = {"objective": order["objective"], "builds_models": order["builds_models"], "identity": identity}
    runner = TrialRunner(maker=maker, sign=sign, claim=claim, **how)
    if "retrain" in order:
        parent.send({"event": "retrained", "best": retrain(runner, order["retrain"])})
        return
    finished, settled_bytes = 0, 0
    while (task := _next_task(parent)) is not None:
        trial_id, fold = task
        if fold is not None:
            cause = _cause_of_fold(runner, trial_id, _hyperparameters(run_dir, trial_id), fold)
            parent.send({"event": "fold", "is_done": not cause})
        else:
            row, hyperparameters = read_outcome(run_dir, trial_id), None
            if row is None:
                hp = _hyperparameters(run_dir, trial_id)
                row = _get_row(parent, runner, trial_id, hp)
                hyperparameters = hp.get_config()
                identity.check()
                write_outcome(run_dir, row)
            cause = row.cause or ""
            parent.send({"event": "end", "trial_id": trial_id, "hyperparameters": hyperparameters})
        finished += 1
        used = psutil.Process().memory_info().rss
        if finished <= _SETTLED_AFTER:
            settled_bytes = used
        if cause.startswith(OUT_OF_MEMORY) or used > settled_bytes + _MAX_GROWTH_BYTES:
            os._exit(START_ANEW)


def _next_task(parent: _Parent) -> tuple[str, int | None] | None:
    """The trial to run, or a fold of one that another worker runs; None when there are no more."""
    while True:
        parent.send({"event": "ask"})
        answer = parent.recv()
        if answer["status"] == FOLD:
            trial_id, fold = answer["fold"]
            return trial_id, fold
        if answer["status"] != "IDLE":
            return (answer["trial_id"], None) if answer["status"] == "RUNNING" else None
        time.sleep(_IDLE_SECONDS)  # the next trial depends on running ones


def _hyperparameters(run_dir: Path, trial_id: str) -> Any:
    return keras_tuner.HyperParameters.from_config(read_hyperparameters(run_dir, trial_id))


def _cause_of_fold(runner: TrialRunner, trial_id: str, hp: Any, fold: int) -> str:
    """Trains a fold of another worker's trial; returns why it failed, which that worker then finds itself."""
    try:
        runner.train_fold(trial_id, hp, fold)
    except Exception as error:
        traceback.print_exc()
        return get_cause(error)
    return ""


def _get_row(parent: _Parent, runner: TrialRunner, trial_id: str, hp: Any) -> TrialRow:
    """Runs a trial; a `FatalError` stops the search."""
    known = {entry.name for entry in hp.space}
    try:
        row = runner.run(trial_id, hp)
        new = [entry.name for entry in hp.space if entry.name not in known]
        if new and not runner.maker.options.allow_new_entries:
            raise FatalError(
                f"The trial added the hyperparameters {', '.join(map(repr, new))}, but allow_new_entries is False."
            )
        return row
    except FatalError as error:
        parent.send({"event": "fatal", "message": f"Trial {trial_id} ended the search: {get_cause(error)}"})
        parent.recv()  # blocks until the search kills this process
        raise
