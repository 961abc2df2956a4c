"""Keras Tuner's Hyperband, in which trials that fail do not keep those that are left from going on.

Keras Tuner waits until more trials of a round have a score than are thrown out: where some fail, that may never be.
"""

from __future__ import annotations

from typing import Any

from tfaccel.tuning.private_keras_tuner import OpenHyperband


class HyperbandOracle(OpenHyperband):
    """Hyperband; a failed trial counts as one that is thrown out."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of the next trial, and whether there is one."""
        for bracket in self.open_brackets():
            if len(bracket["rounds"][0]) < self.round_size(bracket["bracket_num"], 0):
                break
            values = self._promoted(bracket, trial_id)
            if values is not None:
                return {"status": "RUNNING", "values": values}
        found: dict[str, Any] = super().populate_space(trial_id)
        return found

    def _promoted(self, bracket: dict[str, Any], trial_id: str) -> dict[str, Any] | None:
        """The best trial of a round that goes on into the next one; None while it is not certain which one does."""
        number, rounds = bracket["bracket_num"], bracket["rounds"]
        for place in range(1, len(rounds)):
            going_on = {info["past_id"] for info in rounds[place]}
            before = [self.trials[info["id"]] for info in rounds[place - 1]]
            ready = [trial for trial in before if trial.status == "COMPLETED" and trial.trial_id not in going_on]
            num_failed = sum(trial.status in ("FAILED", "INVALID") for trial in before)
            thrown_out = self.round_size(number, place - 1) - self.round_size(number, place) - num_failed
            if len(ready) > max(0, thrown_out):
                best = sorted(ready, key=lambda trial: trial.score, reverse=self.objective.direction == "max")[0]
                rounds[place].append({"past_id": best.trial_id, "id": trial_id})
                return {
                    **best.hyperparameters.values,
                    "tuner/trial_id": best.trial_id,
                    "tuner/epochs": self.round_epochs(number, place),
                    "tuner/initial_epoch": self.round_epochs(number, place - 1),
                    "tuner/bracket": number,
                    "tuner/round": place,
                }
        return None
