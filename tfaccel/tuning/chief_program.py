"""The chief of a search: a process that runs only Keras Tuner's oracle; the supervisor asks it for trials."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from keras_tuner.engine.base_tuner import BaseTuner

from tfaccel.training.run.run_dir import RunIdentity
from tfaccel.tuning.hparams import write_experiment, write_session
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.oracles import KeptOracle, make_oracle
from tfaccel.tuning.trial_row import TrialRow


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
    run_dir, objective = Path(task["run_dir"]), Objective.from_json(task["objective"])
    board, identity = run_dir / "tensorboard", RunIdentity(run_dir, task["run_id"])

    def show(write: Callable[..., None], *content: Any) -> None:
        try:
            write(board, *content)
        except Exception:  # such as a full disk: the search continues without TensorBoard files
            traceback.print_exc()

    def on_row(row: TrialRow) -> None:
        parent.send({"event": "row", "row": row.to_json()})
        identity.check()
        show(write_session, row)

    oracle = make_oracle(
        task["space"],
        SearchOptions.from_json(task["options"]),
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
