"""The chief of a search: a process that runs only Keras Tuner's oracle; the supervisor asks it for trials.

It also logs the search for TensorBoard's HParams dashboard: one session per trial.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from keras_tuner.engine.base_tuner import BaseTuner
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.summary import session_end_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tfaccel.training.run.run_dir import RunIdentity
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.oracles import KeptOracle, make_oracle
from tfaccel.tuning.search_result import TrialRow

_SCORE = "score"


def main(parent: Connection, arguments: list[str]) -> int:
    """Creates and ends trials on request until the parent process exits."""
    del arguments
    oracle = _opened(parent, parent.recv())
    while True:
        order = parent.recv()
        if "create" in order:
            trial = oracle.create_trial(f"worker-{order['create']}")
            answer = {"worker": order["create"], "child": order["child"], "status": trial.status}
            parent.send({"event": "trial", "trial_id": trial.trial_id, **answer})
        elif "end" in order:
            oracle.finish(order["end"], order["hyperparameters"])
        elif "stop" in order:
            oracle.stop()


def _opened(parent: Connection, task: dict[str, Any]) -> KeptOracle:
    """Returns the oracle of a search, restored from the state on disk."""
    identity: RunIdentity = task["identity"]
    run_dir, objective = identity.path, task["objective"]
    board = run_dir / "tensorboard"

    def show(write: Callable[..., None], *content: Any) -> None:
        try:
            write(board, *content)
        except Exception:  # such as a full disk: the search continues without TensorBoard files
            traceback.print_exc()

    def on_row(row: TrialRow) -> None:
        parent.send({"event": "row", "row": row})
        identity.check()
        show(write_session, row)

    oracle = make_oracle(
        task["space"],
        task["options"],
        objective,
        run_dir=run_dir,
        epochs=task["epochs"],
        on_row=on_row,
        on_end=lambda message: parent.send({"event": "fatal", "message": message}),
    )
    oracle.identity = identity
    BaseTuner(oracle, directory=str(run_dir), project_name="tuner")  # tells the oracle where its files are
    oracle.go_on()
    if not board.exists():
        show(write_experiment, task["space"]["space"], objective)
    return oracle


def write_experiment(folder: Path, space: Sequence[Mapping[str, Any]], objective: Objective) -> None:
    """Writes Keras Tuner's configs of the hyperparameters and the objective, for `tensorboard --logdir FOLDER`."""
    shown = [_SCORE, *(name for name in objective.names if len(objective.names) > 1)]
    metrics = [api.Metric(name, display_name=objective.name if name == _SCORE else name) for name in shown]
    domains = {entry["config"]["name"]: _domain(entry["class_name"], entry["config"]) for entry in space}
    _write(folder, [api.hparams_config_pb([api.HParam(name, domain) for name, domain in domains.items()], metrics)])


def _domain(kind: str, config: Mapping[str, Any]) -> Any:
    """The values that a hyperparameter may have."""
    if kind == "Int":
        return api.IntInterval(config["min_value"], config["max_value"])
    if kind == "Float":
        return api.RealInterval(float(config["min_value"]), float(config["max_value"]))
    if kind == "Boolean":
        return api.Discrete([False, True])
    return api.Discrete(list(dict.fromkeys(config["values"] if kind == "Choice" else [config["value"]])))


def write_session(folder: Path, row: TrialRow) -> None:
    """Writes a finished trial: its hyperparameters, its score and metrics, and whether it failed."""
    values = {name: value for name, value in row.hyperparameters.items() if isinstance(value, bool | int | float | str)}
    ended = time.time()
    found = row.finite_metrics if row.score is None else {_SCORE: row.score, **row.finite_metrics}
    scalars = Summary(value=[Summary.Value(tag=tag, simple_value=float(value)) for tag, value in found.items()])
    status = STATUS_FAILURE if row.status == "failed" else STATUS_SUCCESS
    summaries = [
        api.hparams_pb(values, trial_id=row.trial_id, start_time_secs=ended - row.seconds),
        scalars,
        session_end_pb(status, ended),
    ]
    _write(folder / row.trial_id, summaries)


def _write(folder: Path, summaries: Sequence[Any]) -> None:
    writer = EventFileWriter(str(folder))
    for summary in summaries:  # some are TensorFlow's Summary message, not TensorBoard's
        own = Summary.FromString(summary.SerializeToString())
        writer.add_event(Event(wall_time=time.time(), step=0, summary=own))
    writer.close()
