"""Logs a search for TensorBoard's HParams dashboard: one session per trial."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.summary import session_end_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tfaccel.tuning.objective import Objective
from tfaccel.tuning.trial_row import TrialRow

_SCORE = "score"


def write_experiment(folder: Path, space: Sequence[Mapping[str, Any]], objective: Objective) -> None:
    """Writes the search space and the objective, for `tensorboard --logdir FOLDER`.

    Args:
        folder: directory of the event files.
        space: Keras Tuner's configs of the hyperparameters.
        objective: the objective of the search.
    """
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
