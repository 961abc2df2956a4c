"""A worker of a search: runs the trials that the chief gives it, on its device group; made by the nursery.

Its arguments are the number of its device group and, for the worker that first says what there is to search,
"discover". It ends with status 75 where it should be started anew: after a trial that ran out of memory, or when it has
grown.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

from tfaccel.errors import TfaccelError
from tfaccel.tuning.device_groups import DeviceGroup
from tfaccel.tuning.messages import ParentLine
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.source import SearchSource
from tfaccel.tuning.trial_row import TrialRow, read_hyperparameters, read_outcome, write_outcome

START_ANEW = 75
_MOST_GROWTH_BYTES = 512 * 2**20  # beyond what the first two trials have taken
_SETTLED_AFTER = 2
_IDLE_SECONDS = 0.2


def main(folder: Path, name: str, arguments: list[str]) -> int:
    """Runs the worker; returns the exit status."""
    line = ParentLine(folder, name)
    task, group = json.loads((folder / "task.json").read_text(encoding="utf-8")), int(arguments[0])
    devices = DeviceGroup.from_json(task["groups"][group])
    if devices.cores:
        os.sched_setaffinity(0, devices.cores)
    try:
        source = SearchSource.from_json(task["source"])
        source.prepare()
        from tfaccel.tuning.trial_maker import TrialMaker

        maker = TrialMaker.of(source, SearchOptions.from_json(task["options"]), dict(devices.plan_fields))
        if "discover" in arguments:
            from tfaccel.tuning.discovery import discover

            line.send("discovered", found={**discover(maker), "epochs": maker.epochs})
    except Exception as error:
        traceback.print_exc()
        line.send("refused", message=str(error) if isinstance(error, TfaccelError) else _described(error))
        return 1
    _work(line, line.received.get(), maker)
    return 0


def _described(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"The search cannot begin: {type(error).__name__}: {text}"


def _work(line: ParentLine, order: dict[str, Any], maker: Any) -> None:
    """Runs the chief's trials, or trains the best one again."""
    import keras_tuner

    from tfaccel.tuning.oracles import FOR_GOOD
    from tfaccel.tuning.retrain import retrain
    from tfaccel.tuning.trial_run import OUT_OF_MEMORY, TrialRunner

    run_dir, objective = Path(order["run_dir"]), Objective.from_json(order["objective"])
    runner = TrialRunner(maker=maker, objective=objective, builds_models=order["builds_models"], run_dir=run_dir,
                         sign=lambda: line.send("alive"))  # fmt: skip
    if "retrain" in order:
        line.send("retrained", **retrain(runner, order["retrain"]))
        return

    class Worker(keras_tuner.Tuner):
        """Keras Tuner's worker: its `search` asks the chief for trials."""

        asked, finished, settled_bytes, start_anew = 0, 0, 0, False

        def pre_create_trial(self) -> None:
            """Waits a little where the chief had no trial; Keras Tuner would ask without a pause."""
            if self.asked:
                time.sleep(_IDLE_SECONDS)
            self.asked += 1

        def on_trial_begin(self, trial: Any) -> None:
            """Says which trial begins."""
            self.asked = 0
            line.send("begin", trial_id=trial.trial_id)

        def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
            """Runs a trial, and writes down how it ended before the chief is told."""
            row = read_outcome(run_dir, trial.trial_id)
            if row is None:
                # The chief's own words: on the wire, truth values become numbers and the order is lost.
                hp = keras_tuner.HyperParameters.from_config(read_hyperparameters(run_dir, trial.trial_id))
                row = _row_of(line, runner, trial.trial_id, hp)
                trial.hyperparameters = hp
                write_outcome(run_dir, row)
            self.start_anew = row.status == "failed" and (row.cause or "").startswith(OUT_OF_MEMORY)
            if not row.has_score:  # Keras Tuner begins a trial anew that ended in another error than this one
                for_good = (row.cause or "").startswith(FOR_GOOD)
                raise keras_tuner.errors.FailedTrialError(row.cause) if for_good else RuntimeError(row.cause)
            return {**row.finite_metrics, objective.name: float(row.score or 0.0)}

        def on_trial_end(self, trial: Any) -> None:
            """Tells the chief; ends the process where memory has grown."""
            self.oracle.end_trial(trial)
            line.send("end", trial_id=trial.trial_id)
            self.finished += 1
            used = psutil.Process().memory_info().rss
            if self.finished <= _SETTLED_AFTER:
                self.settled_bytes = used
            if self.start_anew or used > self.settled_bytes + _MOST_GROWTH_BYTES:
                os._exit(START_ANEW)

    local = keras_tuner.Oracle(objective=keras_tuner.Objective(objective.name, objective.direction))
    Worker(local, directory=str(run_dir), project_name="tuner").search()


def _row_of(line: ParentLine, runner: Any, trial_id: str, hp: Any) -> TrialRow:
    """Runs a trial; an error that all trials would have ends the search."""
    from keras_tuner.errors import FatalError

    from tfaccel.tuning.trial_run import cause_of

    known = {entry.name for entry in hp.space}
    try:
        row: TrialRow = runner.run(trial_id, hp)
        new = [entry.name for entry in hp.space if entry.name not in known]
        if new and not runner.maker.options.allow_new_entries:
            raise FatalError(f"hp was asked for {', '.join(map(repr, new))}, and allow_new_entries is False.")
        return row
    except FatalError as error:
        line.send("fatal", message=f"Trial {trial_id} ended the search: {cause_of(error)}")
        line.received.get()  # nothing comes: the search ends this process
        raise
