"""What tfaccel needs of the private parts of Keras Tuner: an oracle's files, its queue, and its two special searches.

Made for Keras Tuner 1.4.8, whose own files are written in place, whose grid search forgets where it was, and whose
Hyperband waits for trials that have failed. Its public API has `populate_space`, `create_trial`, `end_trial` and the
state, and none of these. Another minor version is warned of once; a part that is gone raises `VersionError`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner import oracles

from tfaccel.tested_versions import installed_version, private_part, warn_if_untested

EXPLORES_SPACE = "_populate_initial_space"  # a Tuner's method, which builds models to find out what there is to search

_part = functools.partial(private_part, package="keras-tuner")


class OpenOracle(keras_tuner.Oracle):
    """An oracle with names for its private parts; those methods that are hooks may be overridden."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warn_if_untested("keras-tuner", installed_version("keras-tuner"))
        for name in ("_save_trial", "_record_values"):  # without these, the hooks would never be called
            _part(keras_tuner.Oracle, name)
        super().__init__(*args, **kwargs)

    @property
    def state_file(self) -> Path:
        """Where its state is kept."""
        return Path(_part(self, "_get_oracle_fname")())

    def set_project_dir(self, directory: str, project_name: str) -> None:
        """Says where files are kept, as the Tuner of an oracle does."""
        _part(self, "_set_project_dir")(directory, project_name)

    def save_trial(self, trial: Any) -> None:
        """Hook: writes a trial's file."""
        super()._save_trial(trial)

    def record_values(self, trial: Any) -> None:
        """Hook: keeps the values of a trial that begins or ends."""
        super()._record_values(trial)

    def num_runs(self, trial_id: str) -> int:
        """How often a trial has been run to its end."""
        return int(_part(self, "_run_times")[trial_id])

    def set_waiting(self, trial_ids: list[str]) -> None:
        """Says which trials are to begin anew; the last one is the first to do so."""
        _part(self, "_retry_queue")[:] = trial_ids

    def _save_trial(self, trial: Any) -> None:
        self.save_trial(trial)

    def _record_values(self, trial: Any) -> None:
        self.record_values(trial)


def find_place(grid: oracles.GridSearchOracle) -> None:
    """Tells a grid search which combinations there are already, in their order, and to look beside each."""
    ordered, compare = _part(grid, "_ordered_ids"), _part(grid, "_compare")
    _part(grid, "_populate_next")

    def order(one: str, other: str) -> int:
        return int(compare(*(grid.trials[name].hyperparameters.values for name in (one, other))))

    for trial_id in sorted(grid.trials, key=functools.cmp_to_key(order)):
        ordered.insert(trial_id)
    grid._populate_next = list(grid.start_order)


class OpenHyperband(oracles.HyperbandOracle):
    """Hyperband with names for its private parts."""

    def open_brackets(self) -> list[dict[str, Any]]:
        """The brackets that are not complete: {"bracket_num", "rounds"}, a round being a list of {"past_id", "id"}."""
        _part(self, "_remove_completed_brackets")()
        return list(_part(self, "_brackets"))

    def round_size(self, bracket: int, place: int) -> int:
        """How many trials a round of a bracket has."""
        return int(_part(self, "_get_size")(bracket, place))

    def round_epochs(self, bracket: int, place: int) -> int:
        """How many epochs the trials of a round have been trained for at its end."""
        return int(_part(self, "_get_epochs")(bracket, place))
