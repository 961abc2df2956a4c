"""A Keras Tuner oracle backed by an Optuna study, through ask and tell."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import keras_tuner
import optuna
from optuna.trial import TrialState

from tfaccel.tuning.objective import Objective
from tfaccel.tuning.optuna_study import TRIAL_ID, get_number
from tfaccel.tuning.trial_row import TrialRow


class OptunaOracle(keras_tuner.Oracle):
    """An oracle whose trials come from Optuna; `study` and `metrics` are set before the first one.

    The hyperparameters of a trial are suggested one by one, in the order of the space, and only if their conditions
    hold, as in an Optuna objective function with the same `if` statements.

    Attributes:
        study: the Optuna study.
        metrics: the objective of the search.
    """

    study: optuna.Study
    metrics: Objective

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of the next trial."""
        asked = self.study.ask()
        asked.set_user_attr(TRIAL_ID, trial_id)
        space = self.hyperparameters.space
        counts = Counter(entry.name for entry in space)
        chosen = keras_tuner.HyperParameters()
        for entry in space:
            chosen.merge([entry])
            if chosen.is_active(entry):
                name = entry.name if counts[entry.name] == 1 else _under_conditions(entry)
                chosen.values[entry.name] = suggest(asked, name, entry)
        return {"status": "RUNNING", "values": chosen.values}

    def told(self, row: TrialRow) -> None:
        """Reports the outcome of a trial to Optuna."""
        number = get_number(self.study, row.trial_id)
        if row.status == "pruned":
            self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
            return
        one = len(self.metrics.parts) == 1
        values = [row.score] if one else [row.metrics.get(name) for name in self.metrics.names]
        if row.has_score and all(value is not None and math.isfinite(value) for value in values):
            self.study.tell(number, [float(value or 0.0) for value in values], skip_if_finished=True)
        else:
            self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def forget_others(self) -> None:
        """Marks Optuna trials as failed if the search was killed before it created a trial for them."""
        known = {get_number(self.study, trial_id) for trial_id in self.trials}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in known:
                self.study.tell(trial.number, state=TrialState.FAIL)


def suggest(trial: optuna.Trial, name: str, entry: Any) -> Any:
    """Suggests a value for one Keras Tuner hyperparameter with Optuna.

    Optuna has no equivalent of "log" sampling with a `step`, or of "reverse_log" sampling. For the former, it chooses
    the index of the value; for the latter, the cumulative probability.

    Args:
        trial: the Optuna trial.
        name: its name in Optuna.
        entry: Keras Tuner's `Int`, `Float`, `Choice`, `Boolean` or `Fixed`.
    """
    kind = type(entry).__name__
    if kind == "Fixed":
        return entry.value
    if kind == "Boolean":
        return trial.suggest_categorical(name, [False, True])
    if kind == "Choice":
        return trial.suggest_categorical(name, list(dict.fromkeys(entry.values)))
    low, high, step, sampling = entry.min_value, entry.max_value, entry.step, entry.sampling
    if sampling == "linear" and step is not None:
        high = low + int((high - low) / step + 1e-9) * step  # Optuna's highest value is one that can be chosen
    elif step is not None:
        values = list(entry.values)
        value = values[trial.suggest_int(name, 0, len(values) - 1)]
        return round(value) if kind == "Int" else value
    elif sampling == "reverse_log":
        return min(high, entry.prob_to_value(trial.suggest_float(name, 0.0, 1.0)))
    if kind == "Int":
        return trial.suggest_int(name, low, high, step=step or 1, log=sampling == "log")
    return trial.suggest_float(name, low, high, step=step, log=sampling == "log")


def _under_conditions(entry: Any) -> str:
    """A unique name for a hyperparameter that is defined several times under different conditions."""
    conditions = [f"{condition.name} in {condition.values}" for condition in entry.conditions]
    return f"{entry.name} where {' and '.join(conditions)}" if conditions else entry.name
