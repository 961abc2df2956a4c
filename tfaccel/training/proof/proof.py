"""The noun `Proof`: what running a step on several replicas and on one device has shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What running one step both ways has shown.

    Attributes:
        kind: "train", "test" or "predict".
        num_replicas: how many replicas there are.
        num_rows: rows that were compared of the first batch.
        num_batch_rows: rows of the first batch; 0 if all were compared.
        num_steps: how many steps were compared so far.
        num_variables: how many variables were compared.
        largest: the largest relative difference.
        differing: what differs, the largest difference first: a variable's path, "log NAME" or "output PLACE".
        draws: whether the step draws random numbers outside of layers, which were constants.
        failure: why the step could not be run both ways; empty if it could.
    """

    kind: str
    num_replicas: int
    num_rows: int = 0
    num_batch_rows: int = 0
    num_steps: int = 1
    num_variables: int = 0
    largest: float = 0.0
    differing: tuple[str, ...] = ()
    draws: bool = False
    failure: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not self.failure and not self.differing

    @property
    def loss_differs(self) -> bool:
        """Whether the loss, or that of an output, is among what differs."""
        return any(
            name == "log loss" or (name.startswith("log ") and name.endswith("_loss")) for name in self.differing
        )

    def __str__(self) -> str:
        what = {"train": "training", "test": "evaluation", "predict": "prediction"}[self.kind]
        if self.failure:
            return f"{what}: one step could not be compared with one device: {self.failure}"
        equal = "=" if self.holds else "differ from"
        found = f": {', '.join(self.differing[:3])}" if self.differing else ""
        rows = f"{self.num_rows} rows"
        if self.num_batch_rows:
            rows += f" (one device has no memory for all {self.num_batch_rows} of a batch)"
        return (
            f"{what}: {self.num_replicas} replicas {equal} 1 device on a step of {rows}: "
            f"{self.num_variables} variables, largest difference {self.largest:.0e}{found}"
        )
