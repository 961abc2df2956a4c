"""Whether a run that goes on for more epochs than it was begun with equals one that had them from the start."""

from __future__ import annotations

import inspect
from typing import Any

from tfaccel.errors import RunDirError
from tfaccel.planning.learning_rate_scaling import LearningRateScaling
from tfaccel.planning.own_model import CompiledByModel, described
from tfaccel.planning.run_length import compile_arguments
from tfaccel.planning.workload import Workload

_ANEW = "Train the longer run in a new directory, from its start"


def check_same_when_longer(
    workload: Workload, scaling: LearningRateScaling | None, *, num_steps: int | None, more_steps: int | None
) -> None:
    """Checks that nothing of a run depends on its number of optimizer steps.

    Args:
        workload, scaling: what is trained, and how its learning rate is scaled.
        num_steps: the number that the run was begun with.
        more_steps: the number that it shall have.

    Raises:
        RunDirError: if a compile argument differs, which is named, or the warm-up of a scaled rate does.
    """
    if scaling is not None and scaling.warm_up:
        raise RunDirError(
            f"scaling_warm_up={scaling.warm_up} is a fraction of all steps, so a longer run warms up longer. {_ANEW}."
        )
    if isinstance(workload.compile_args, CompiledByModel):
        return
    before, after = (_deep(compile_arguments(workload, num_steps=steps)) for steps in (num_steps, more_steps))
    place = _first_difference(before, after, "")
    if place is not None:
        name, was, would_be = place
        raise RunDirError(
            f"This run depends on its number of steps: {name} is {was!r:.80} for the {num_steps} steps that it was "
            f"begun with, and {would_be!r:.80} for {more_steps}. {_ANEW}. Runs can go on whose rates do not depend "
            "on it; in recipes: --schedule=constant --warm_up=0 --weight_decay=NUMBER."
        )


def _deep(value: Any) -> Any:
    """A compile argument as JSON values, functions with the values that they have kept."""
    if isinstance(value, dict):
        return {str(name): _deep(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_deep(part) for part in value]
    if inspect.isfunction(value):
        kept = [cell.cell_contents for cell in value.__closure__ or ()]
        return {"function": value.__qualname__, "keeps": described([*kept, *(value.__defaults__ or ())])}
    try:
        return described(value)
    except RuntimeError as error:  # Keras's base classes of schedules and optimizers
        raise RunDirError(
            f"Whether {type(value).__name__} depends on the number of steps is not known, because what it holds has no "
            f"`get_config`. Write it, or train the longer run in a new directory."
        ) from error


def _first_difference(one: Any, other: Any, name: str) -> tuple[str, Any, Any] | None:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [_first_difference(one[key], other[key], _joined(name, key)) for key in one]
        return next(filter(None, pairs), None)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [
            _first_difference(a, b, _joined(name, str(place)))
            for place, (a, b) in enumerate(zip(one, other, strict=True))
        ]
        return next(filter(None, pairs), None)
    return None if one == other else (name, one, other)


def _joined(name: str, key: str) -> str:
    """The name of a part, without the levels that only this description has."""
    return name if name and key in ("config", "keeps") else f"{name}.{key}" if name else key
