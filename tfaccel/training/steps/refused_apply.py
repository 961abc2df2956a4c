"""Optimizers whose `apply` is refused outside of tfaccel's steps, for one or several reasons."""

from __future__ import annotations

from typing import Any, NoReturn

import keras

from tfaccel.errors import PlanError
from tfaccel.training.steps.overrides import SetByTfaccel


class _RefusedApply(SetByTfaccel):
    """Stands for an optimizer's `apply`; raises PlanError with the first of the reasons."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise PlanError(self.reasons[0])


def refuse_apply(optimizer: keras.optimizers.Optimizer, reason: str) -> None:
    """Lets `optimizer.apply` raise PlanError with a reason, until `allow_apply` is called with the same one."""
    refused = vars(optimizer).get("apply")
    if not isinstance(refused, _RefusedApply):
        refused = vars(optimizer)["apply"] = _RefusedApply()
    if reason not in refused.reasons:
        refused.reasons.append(reason)


def allow_apply(optimizer: keras.optimizers.Optimizer, reason: str) -> None:
    """Takes back one reason; the class's own `apply` is back after the last."""
    refused = vars(optimizer).get("apply")
    if isinstance(refused, _RefusedApply) and reason in refused.reasons:
        refused.reasons.remove(reason)
        if not refused.reasons:
            del vars(optimizer)["apply"]
