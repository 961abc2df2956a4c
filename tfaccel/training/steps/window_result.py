"""The noun `WindowResult`: what one graph call did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WindowResult:
    """Result of one graph call.

    Attributes:
        num_steps: number of steps, those whose batches were left out included.
        logs: the final logs.
        loss_is_finite: whether the last loss was finite, if that is watched.
        traced: whether the call traced its graph.
        left_out: which of the steps left out their batches, from 0.
    """

    num_steps: int
    logs: dict[str, Any]
    loss_is_finite: bool = True
    traced: bool = False
    left_out: tuple[int, ...] = ()
