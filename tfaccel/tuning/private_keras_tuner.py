"""Access to private APIs of Keras Tuner: the oracle's files and retry queue, grid search and Hyperband.

Written for Keras Tuner 1.4.8, which overwrites its files in place, loses the position of a grid search on reload, and
waits for failed trials in Hyperband. Its public API (`populate_space`, `create_trial`, `end_trial` and the state) does
not cover these. Another minor version triggers one warning; a missing attribute raises `VersionError`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner import oracles

from tfaccel.tested_versions import installed_version, private_part, warn_if_untested

EXPLORES_SPACE = "_populate_initial_space"  # the Tuner method that builds models to find the hyperparameters

_part = functools.partial(private_part, package="keras-tuner")


class OpenOracle(keras_tuner.Oracle):
    """An oracle with public names for its private attributes; methods marked as hooks may be overridden."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warn_if_untested("keras-tuner", installed_version("keras-tuner"))
        for name in ("_save_trial", "_record_values"):  # without them the hooks would never be called
            _part(keras_tuner.Oracle, name)
        super().__init__(*args, **kwargs)

    @property
    def state_file(self) -> Path:
        """The file that holds its state."""
        return Path(_part(self, "_get_oracle_fname")())

    def set_project_dir(self, directory: str, project_name: str) -> None:
        """Sets the directory of its files, as a Tuner does."""
        _part(self, "_set_project_dir")(directory, project_name)

    def save_trial(self, trial: Any) -> None:
        """Hook: writes a trial's file."""
        super()._save_trial(trial)

    def record_values(self, trial: Any) -> None:
        """Hook: records the values of a trial that starts or ends."""
        super()._record_values(trial)

    def num_runs(self, trial_id: str) -> int:
        """Number of completed runs of a trial."""
        return int(_part(self, "_run_times")[trial_id])

    def set_waiting(self, trial_ids: list[str]) -> None:
        """Sets the trials to rerun; the last one runs first."""
        _part(self, "_retry_queue")[:] = trial_ids

    def _save_trial(self, trial: Any) -> None:
        self.save_trial(trial)

    def _record_values(self, trial: Any) -> None:
        self.record_values(trial)


def find_place(grid: oracles.GridSearchOracle) -> None:
    """Restores the position of a grid search: which combinations exist, in order, and where to continue."""
    ordered, compare = _part(grid, "_ordered_ids"), _part(grid, "_compare")
    _part(grid, "_populate_next")

    def order(one: str, other: str) -> int:
        return int(compare(*(grid.trials[name].hyperparameters.values for name in (one, other))))

    for trial_id in sorted(grid.trials, key=functools.cmp_to_key(order)):
        ordered.insert(trial_id)
    grid._populate_next = list(grid.start_order)


class OpenHyperband(oracles.HyperbandOracle):
    """Hyperband with public names for its private attributes."""

    def open_brackets(self) -> list[dict[str, Any]]:
        """The incomplete brackets: {"bracket_num", "rounds"}, a round being a list of {"past_id", "id"}."""
        _part(self, "_remove_completed_brackets")()
        return list(_part(self, "_brackets"))

    def round_size(self, bracket: int, place: int) -> int:
        """Number of trials in a round of a bracket."""
        return int(_part(self, "_get_size")(bracket, place))

    def round_epochs(self, bracket: int, place: int) -> int:
        """Number of epochs that the trials of a round have trained for when it ends."""
        return int(_part(self, "_get_epochs")(bracket, place))
