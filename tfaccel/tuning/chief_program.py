"""The chief of a search: Keras Tuner's oracle and its server, in a process of its own, made by the nursery.

It is told what to search, and says which trials have finished. The address of the server is in Keras Tuner's own
environment variables: a socket in a folder that only this user can enter.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras_tuner

from tfaccel.tuning.hparams import write_experiment, write_session
from tfaccel.tuning.messages import ParentLine
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.oracles import KeptOracle, make_oracle
from tfaccel.tuning.trial_row import TrialRow


class Chief(keras_tuner.Tuner):
    """Keras Tuner's chief: its `search` serves trials to the workers."""

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """Never called: a chief runs no trials."""
        raise RuntimeError("The chief of a search runs no trials.")


def main(folder: Path, name: str, arguments: list[str]) -> int:
    """Serves trials until the search is over; returns the exit status."""
    del arguments
    line = ParentLine(folder, name)
    task = line.received.get()
    run_dir, objective = Path(task["run_dir"]), Objective.from_json(task["objective"])
    board = run_dir / "tensorboard"

    def show(write: Callable[..., None], *content: Any) -> None:
        try:
            write(board, *content)
        except Exception:  # a full disk, say: Keras Tuner would keep the oracle's lock for ever
            traceback.print_exc()

    def on_row(row: TrialRow) -> None:
        line.send("row", row=row.to_json())
        show(write_session, row)

    oracle = make_oracle(task["space"], SearchOptions.from_json(task["options"]), objective, run_dir=run_dir,
                         epochs=task["epochs"], on_row=on_row,
                         on_end=lambda message: line.send("fatal", message=message))  # fmt: skip
    (run_dir / "tuner" / "chief.json").unlink(missing_ok=True)  # Keras Tuner's, and empty; see `go_on`
    tuner = Chief(oracle, directory=str(run_dir), project_name="tuner")
    oracle.go_on()
    if not board.exists():
        show(write_experiment, task["space"]["space"], objective)
    threading.Thread(target=_obey, args=(line, oracle), name="orders", daemon=True).start()
    tuner.search(verbose=0)
    return 0


def _obey(line: ParentLine, oracle: KeptOracle) -> None:
    while True:
        order = line.received.get()
        if "finish" in order:
            oracle.finish(order["finish"])
        elif "stop" in order:
            oracle.stop()
