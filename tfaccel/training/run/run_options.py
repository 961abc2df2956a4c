"""`RunOptions`: what a run was asked for, besides its workload and plan; and `StepRange`, the steps to profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from tfaccel.errors import WorkloadError
from tfaccel.planning.learning_rate_scaling import LearningRateScaling
from tfaccel.planning.non_finite_policy import STOP


@dataclass(frozen=True)
class StepRange:
    """Some consecutive optimizer steps of a run, counted from 1.

    Args:
        first, last: both are included.

    Raises:
        WorkloadError: if they are not whole numbers with 1 <= first <= last.

    Example:
        >>> StepRange.of("10:12")
        StepRange(first=10, last=12)
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if type(self.first) is not int or type(self.last) is not int or not 1 <= self.first <= self.last:
            raise WorkloadError(
                "profile must be two optimizer steps, counted from 1, with the first one not after the last one, such "
                f"as 10:12. Received: {self.first}:{self.last}."
            )

    @classmethod
    def of(cls, text: str) -> Self:
        """The steps from a text such as "10:12".

        Raises:
            WorkloadError: for another text.
        """
        found = re.fullmatch(r"(\d{1,12}):(\d{1,12})", text) if isinstance(text, str) else None
        if found is None:
            raise WorkloadError(f"profile must be two optimizer steps, such as 10:12. Received: {text!r:.80}.")
        return cls(int(found[1]), int(found[2]))

    def check_length(self, num_steps: int | None) -> None:
        """Raises WorkloadError if a run of so many optimizer steps (None: unknown) does not have these steps."""
        if num_steps is not None and self.last > num_steps:
            raise WorkloadError(
                f"profile must be within the run, which has {num_steps} optimizer steps. Received: "
                f"{self.first}:{self.last}."
            )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `train` was asked for, besides workload and plan.

    Args:
        epochs, seed, checkpoint_interval, keep_checkpoints, callbacks, verbose: as in `train`.
        scaling: how to scale the learning rate; None to leave it as it is.
        profile: the optimizer steps to profile; None for none.
        on_nonfinite: what to do when the loss or gradients become NaN or infinite; see `train`.
        until: only repeat the steps up to this position (epoch and step, from 1) to find out why they did.
    """

    epochs: int
    seed: int
    checkpoint_interval: int | None = None
    keep_checkpoints: int = 2
    callbacks: Sequence[Any] = ()
    verbose: int | str = 1
    scaling: LearningRateScaling | None = None
    profile: StepRange | None = None
    on_nonfinite: str = STOP
    until: tuple[int, int] | None = None
