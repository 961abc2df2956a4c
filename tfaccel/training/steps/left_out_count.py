"""Counts the batches that training leaves out, and stops it if there are too many."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tfaccel.errors import NonFiniteLossError

logger = logging.getLogger("tfaccel")

MAX_IN_A_ROW = 10


class LeftOutCount:
    """The batches of an epoch that were left out, because their loss or gradients were not finite.

    Attributes:
        of_epoch: how many.
    """

    def __init__(self) -> None:
        self.of_epoch = 0
        self._first: int | None = None
        self._in_a_row = 0

    def begin_epoch(self, of_epoch: int = 0) -> None:
        """Starts an epoch, of which `of_epoch` batches have been left out before training was interrupted."""
        self.of_epoch, self._first = of_epoch, None

    def add(self, epoch: int, window: range, steps: Sequence[int]) -> None:
        """Adds the steps of a window whose batches were left out.

        Args:
            epoch: the epoch, from 0.
            window: the steps of the window, counted from 0 in the epoch.
            steps: which of them left out their batches.

        Raises:
            NonFiniteLossError: if ten or more batches in a row were left out.
        """
        if not steps:
            self._in_a_row = 0
            return
        self._note(steps[0], len(steps))
        chosen = set(steps)
        for step in window:
            self._in_a_row = self._in_a_row + 1 if step in chosen else 0
            if self._in_a_row == MAX_IN_A_ROW:
                raise NonFiniteLossError(
                    f"{MAX_IN_A_ROW} batches in a row were left out, up to step {step + 1} of epoch {epoch + 1}: their "
                    "loss or gradients became NaN or infinite. That is no fault of single examples. Try a lower "
                    "learning rate, gradient clipping, or float32, and inspect the data."
                )

    def drop(self, step: int) -> None:
        """Adds a step whose batch is dropped, because an earlier attempt to train on it failed."""
        self._note(step, 1)

    def _note(self, first: int, number: int) -> None:
        if not self.of_epoch:
            self._first = first + 1
        self.of_epoch += number

    def end_epoch(self, epoch: int, num_steps: int, *, logs: bool) -> None:
        """Ends an epoch with one line, if batches were left out.

        Args:
            epoch, num_steps: the epoch, from 0, and its number of steps.
            logs: whether this process logs the line.

        Raises:
            NonFiniteLossError: if no batch was left in.
        """
        if not self.of_epoch:
            return
        if self.of_epoch == num_steps:
            raise NonFiniteLossError(
                f"All {num_steps} batches of epoch {epoch + 1} were left out: their loss or gradients became NaN or "
                "infinite. Try a lower learning rate, gradient clipping, or float32, and inspect the data."
            )
        if logs:
            which = "" if self._first is None else f" (the first one at step {self._first})"
            logger.warning(
                f"Epoch {epoch + 1}: {self.of_epoch} of {num_steps} batches were left out{which}, because their loss "
                "or gradients became NaN or infinite."
            )
