"""Starts, monitors and stops the chief and the workers of a search, and passes trials between them.

If a worker dies, its trial counts as failed. A worker for which there is no trial trains folds of the others' trials.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.training.run.run_dir import RunIdentity
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search_processes import FOLD, START_ANEW, SearchProcesses
from tfaccel.tuning.search_result import (
    OnRow,
    TrialRow,
    fold_file,
    read_hyperparameters,
    read_outcome,
    read_rows,
    write_outcome,
)
from tfaccel.tuning.source import SearchSource

_MAX_FAILED_STARTS = 3
_MIN_START_SECONDS = 300.0

logger = logging.getLogger("tfaccel")


Fold = tuple[str, int]  # of a trial


@dataclass
class _Slot:
    """A worker slot and the state of its current worker."""

    index: int
    child: Any
    asks: bool = False
    has_asked: bool = False
    trial_id: str | None = None
    fold: Fold | None = None  # of another slot's trial
    began: float = 0.0
    last_heartbeat: float = 0.0
    ended_because: str | None = None
    failed_starts: int = 0
    done: bool = False


class Supervisor:
    """Context manager for the processes of one search; calls `on_row` with each finished trial."""

    def __init__(self, source: SearchSource, options: SearchOptions, processes: SearchProcesses, on_row: OnRow) -> None:
        self._options = options
        self._on_row = on_row
        self._task = {"source": source, "options": options}
        self._processes = processes
        self._order: dict[str, Any] = {}
        self._slots: list[_Slot] = []
        self._identity = RunIdentity(Path())
        self._stopped = False
        self._all_given = False  # the chief has no more trials
        self._announced: set[str] = set()
        self._claims: dict[Fold, _Slot] = {}  # folds that were begun, and by which worker
        self._unaided: set[str] = set()  # trials of which a fold has failed elsewhere

    def __enter__(self) -> Self:
        self._processes.open()
        try:
            self._chief = self._processes.start_chief()
            workers = [self._worker(index, discovers=index == 0) for index in range(len(self._processes.groups))]
        except BaseException:  # Ctrl-C, while the server loads and a large task waits to be sent
            self.__exit__()
            raise
        self._slots = [_Slot(index, worker) for index, worker in enumerate(workers)]
        return self

    def __exit__(self, *error: object) -> None:
        self._processes.close(self._run_dir / "logs" if self._order and self._identity.holds() else None)

    @property
    def _run_dir(self) -> Path:
        return self._identity.path

    def discovered(self) -> dict[str, Any]:
        """Waits for the first worker to discover the space; see `tfaccel.tuning.trial_maker.discover`."""
        limit_seconds = max(self._options.stall_seconds, _MIN_START_SECONDS)
        deadline = time.monotonic() + limit_seconds
        while True:
            child, message = self._next()
            if message is not None and message["event"] == "discovered":
                return dict(message["found"])
            if message is not None and message["event"] == "refused":
                raise SearchError(message["message"])
            if message is None and child is not None:
                words = self._processes.end_of_log(child)
                raise SearchError(f"A process of the search {child.how_it_ended()}. {words}")
            if time.monotonic() > deadline:
                raise SearchError(
                    f"The space was not built within {limit_seconds:g} seconds. If it needs more time, increase "
                    "stall_seconds."
                )

    def run(self, identity: RunIdentity, objective: Objective, found: dict[str, Any]) -> None:
        """Runs all trials.

        Raises:
            RunDirError: if the directory has been moved away, and may hold another search by now.
            SearchError: if the chief dies, workers die before they start a trial, a trial stops the search, or too many
                trials fail.
        """
        self._identity = identity
        self._order = {"identity": identity, "objective": objective, "builds_models": found["builds_models"]}
        self._chief.send({**self._order, "options": self._options, "space": found["space"], "epochs": found["epochs"]})
        for slot in self._slots:
            slot.child.send(self._order)
        rows = self._run_dir / "trials.jsonl"
        self._announced = {row.trial_id for row in read_rows(rows)}
        started = time.monotonic()
        while not all(slot.done or (self._all_given and not slot.has_asked) for slot in self._slots):
            child, message = self._next()
            if child is not None:  # before anything is written on its behalf
                identity.check()
            if child is self._chief:
                self._handle_chief(message)
            elif child is not None:
                for slot in self._slots:
                    if slot.child is child:
                        self._handle_worker(slot, message)
            self._watch(started)
        for slot in self._slots:  # workers that have not asked for a trial yet
            if not slot.done:
                slot.done = True
                self._processes.kill(slot.child)
        for row in read_rows(rows):
            self._announce(row)

    def retrain(self, config: dict[str, Any]) -> dict[str, Any]:
        """Trains with these hyperparameters in a fresh worker; returns fields of the `SearchResult`."""
        self._identity.check()
        slot = _Slot(0, self._worker(0))
        self._slots.append(slot)
        slot.child.send({**self._order, "retrain": config})
        while True:
            child, message = self._next()
            if child is slot.child and message is None:
                words = self._processes.end_of_log(slot.child)
                raise SearchError(f"Retraining the best trial failed: its process {slot.child.how_it_ended()}. {words}")
            if message is not None and message["event"] == "retrained":
                return dict(message["best"])

    def _worker(self, index: int, *, discovers: bool = False) -> Any:
        child = self._processes.start_worker(index)
        child.send({**self._task, "devices": self._processes.groups[index], "discovers": discovers})
        return child

    def _next(self) -> tuple[Any, dict[str, Any] | None]:
        self._give_up_places()
        return self._processes.next_message()

    def _give_up_places(self) -> None:
        """Goes on with fewer workers if Ray finds no place for one, such as after a node was lost."""
        limit_seconds = self._processes.wait_seconds
        for slot in self._slots:
            if slot.done or self._processes.waiting_seconds(slot.child) <= limit_seconds:
                continue
            others = [one for one in self._slots if not one.done and not self._processes.waiting_seconds(one.child)]
            if (slot.index == 0 and not self._order) or not others:
                raise SearchError(
                    f"Ray has found no place for a worker of the search within {limit_seconds:g} seconds. "
                    "Use fewer cores or GPUs for each (cores_per_worker, gpus_per_worker), or a larger wait_seconds."
                )
            logger.warning(f"Ray has found no place for worker {slot.index}: the search goes on with {len(others)}.")
            self._retire(slot)

    def _handle_chief(self, message: dict[str, Any] | None) -> None:
        if message is None:
            raise SearchError(
                f"The chief of the search {self._chief.how_it_ended()}; finished trials are kept. Continue with "
                f"resume='auto' (--resume=auto). {self._processes.end_of_log(self._chief)}"
            )
        if message["event"] == "trial":
            self._all_given |= message["status"] == "STOPPED"
            slot = self._slots[message["worker"]]
            # If the worker that asked has died, its successor gets the same trial.
            if slot.asks and slot.child.name == message["child"]:
                slot.asks = False
                if message["status"] == "RUNNING":
                    slot.trial_id, slot.began, slot.failed_starts = message["trial_id"], time.monotonic(), 0
                elif (fold := self._free_fold()) is not None:
                    self._claims[fold] = slot
                    slot.fold, slot.began, slot.failed_starts = fold, time.monotonic(), 0
                    message = {"status": FOLD, "fold": fold}
                slot.child.send(message)
        elif message["event"] == "row":
            self._announce(message["row"])
        elif message["event"] == "fatal":
            self._end(message["message"])

    def _announce(self, row: TrialRow) -> None:
        if row.trial_id not in self._announced:
            self._announced.add(row.trial_id)
            self._on_row(row)

    def _handle_worker(self, slot: _Slot, message: dict[str, Any] | None) -> None:
        slot.last_heartbeat = time.monotonic()
        if message is None:
            self._worker_ended(slot)
        elif message["event"] == "ask" and slot.ended_because is None:  # else it is being killed
            slot.asks = slot.has_asked = True
            self._chief.send({"create": slot.index, "child": slot.child.name})
        elif message["event"] == "end":
            slot.trial_id = None
            self._chief.send({"end": message["trial_id"], "hyperparameters": message["hyperparameters"]})
            self._release(slot)
            self._end_folds(message["trial_id"])
        elif message["event"] == "claim":
            is_free = self._claims.setdefault(tuple(message["fold"]), slot) is slot
            slot.child.send({"is_free": is_free})
        elif message["event"] == "fold":
            self._release(slot, failed=not message["is_done"])
        elif message["event"] == "fatal":
            self._end(message["message"])

    def _free_fold(self) -> Fold | None:
        """A fold of a running trial that no worker has begun."""
        if self._options.folds is None or self._stopped:
            return None
        running = [slot.trial_id for slot in self._slots if slot.trial_id is not None]
        folds = [
            (trial, fold) for trial in running if trial not in self._unaided for fold in range(self._options.folds)
        ]
        is_free = (one for one in folds if one not in self._claims and not fold_file(self._run_dir, *one).exists())
        return next(is_free, None)

    def _release(self, slot: _Slot, *, failed: bool = False) -> None:
        """Gives up the folds of a slot; of a trial of which one failed here, its own worker trains all."""
        if slot.fold is not None and failed:
            self._unaided.add(slot.fold[0])
        self._claims = {fold: one for fold, one in self._claims.items() if one is not slot}
        slot.fold = None

    def _end_folds(self, trial_id: str) -> None:
        """Ends workers that train folds of a trial that needs them no more, where there is no other trial for them."""
        for slot in self._slots:
            if self._all_given and slot.fold is not None and slot.fold[0] == trial_id:
                slot.ended_because = "Its trial had ended."
                self._processes.kill(slot.child)

    def _end(self, message: str) -> None:
        raise SearchError(f"{message} Finished trials are kept; continue with resume='auto' (--resume=auto).")

    def _worker_ended(self, slot: _Slot) -> None:
        """Records the worker's trial as failed and starts a replacement."""
        status = slot.child.status
        how = slot.ended_because or f"Its process {slot.child.how_it_ended()}."
        fold, trial_id = slot.fold, slot.trial_id
        self._release(slot, failed=status != START_ANEW)
        if trial_id is not None:
            self._finish_failed(slot, how)
            self._end_folds(trial_id)
        elif status == 0 and not slot.asks:
            self._retire(slot)
            return
        elif status != START_ANEW and slot.ended_because is None and fold is None:
            slot.failed_starts += 1
            if slot.failed_starts >= _MAX_FAILED_STARTS:
                raise SearchError(f"A worker cannot start: {how} {self._processes.end_of_log(slot.child)}")
        slot.trial_id, slot.ended_because, slot.asks = None, None, False
        if self._all_given and not self._options.max_retries_per_trial:
            self._retire(slot)
            return
        slot.child = self._worker(slot.index)
        slot.child.send(self._order)

    def _retire(self, slot: _Slot) -> None:
        """Leaves a slot without a worker; what it held may go to another one."""
        slot.done = True
        self._processes.release(slot.child)

    def _finish_failed(self, slot: _Slot, how: str) -> None:
        trial_id = slot.trial_id or ""
        if read_outcome(self._run_dir, trial_id) is None:
            values = read_hyperparameters(self._run_dir, trial_id)["values"]
            seconds = round(time.monotonic() - slot.began, 3)
            row = {"trial_id": trial_id, "hyperparameters": values, "status": "failed", "score": None, "cause": how}
            write_outcome(self._run_dir, TrialRow(**row, seconds=seconds))
        self._chief.send({"end": trial_id, "hyperparameters": None})

    def _watch(self, started: float) -> None:
        """Stops trials that exceed the time limit or hang; starts none after `search_seconds`."""
        now, options = time.monotonic(), self._options
        if options.search_seconds is not None and now - started > options.search_seconds and not self._stopped:
            self._stopped = True
            self._chief.send({"stop": True})
        for slot in self._slots:
            if (slot.trial_id is None and slot.fold is None) or slot.ended_because is not None:
                continue
            is_late = options.trial_seconds is not None and now - slot.began > options.trial_seconds
            if is_late and slot.trial_id is not None:
                slot.ended_because = f"It took longer than {options.trial_seconds:g} seconds (trial_seconds)."
            elif now - max(slot.last_heartbeat, slot.began) > options.stall_seconds:
                slot.ended_because = f"It sent no heartbeat for {options.stall_seconds:g} seconds (stall_seconds)."
            if slot.ended_because is not None:
                self._processes.kill(slot.child)
