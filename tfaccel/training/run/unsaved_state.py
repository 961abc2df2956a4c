"""Steps that keep a state which no checkpoint holds: refused, or warned of, before the first one runs."""

from __future__ import annotations

import logging

import keras

from tfaccel.errors import WorkloadError
from tfaccel.training.run.resume import EXACT
from tfaccel.training.steps.step_graphs import OnUnsavedState

logger = logging.getLogger("tfaccel")

_CHOICE = (
    "The training cannot be resumed exactly. {}. Or choose: tfaccel.Resume(..., state='restart') to begin that state "
    "anew when training is resumed."
)
_WARNING = "If this run is stopped and resumed, its results will differ from those without the stop. {}."
_EAGER = (
    "The model was compiled with run_eagerly=True, so its steps are not examined for a state that no checkpoint holds, "
    "such as that of `tf.random.normal`."
)


def refused_unsaved_state(model: keras.Model, mode: str) -> OnUnsavedState | None:
    """What the engine of `fit` calls with a `Resume` whose `state` is `mode`; None if nothing needs to be known.

    It raises WorkloadError for a training step, and warns once of an evaluation step, which changes no weight.
    """
    if mode != EXACT:
        return None
    if model.run_eagerly:
        logger.warning(_EAGER)
    warns = warned_unsaved_state()

    def refuse(kind: str, reason: str) -> None:
        if reason and kind == "train":
            raise WorkloadError(_CHOICE.format(reason))
        warns(kind, reason)

    return refuse


def warned_unsaved_state() -> OnUnsavedState:
    """What the engine of `train` calls: it warns once of each reason."""
    warned: set[str] = set()

    def warn(kind: str, reason: str) -> None:
        del kind
        if reason and reason not in warned:
            warned.add(reason)
            logger.warning(_WARNING.format(reason))

    return warn
