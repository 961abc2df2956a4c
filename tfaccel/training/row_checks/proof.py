"""The noun `Proof`: what running a step on several replicas and on one device has shown."""

from __future__ import annotations

from dataclasses import dataclass

import keras


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What running one step both ways has shown.

    Attributes:
        kind: "train" or "test".
        num_replicas: how many replicas there are.
        num_rows: rows of the batch.
        num_variables: how many variables were compared.
        largest: the largest relative difference.
        differing: what differs, the largest difference first: a variable's path, or "log NAME".
        failure: why the step could not be run both ways; empty if it could.
    """

    kind: str
    num_replicas: int
    num_rows: int = 0
    num_variables: int = 0
    largest: float = 0.0
    differing: tuple[str, ...] = ()
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
        what = "training" if self.kind == "train" else "evaluation"
        if self.failure:
            return f"{what}: one step could not be compared with one device: {self.failure}"
        equal = "=" if self.holds else "differ from"
        found = f": {', '.join(self.differing[:3])}" if self.differing else ""
        return (
            f"{what}: {self.num_replicas} replicas {equal} 1 device on a step of {self.num_rows} rows: "
            f"{self.num_variables} variables, largest difference {self.largest:.0e}{found}"
        )


def refusal_of(model: keras.Model, proof: Proof) -> str:
    """The message for a step that differs from one device's: what differs, and what can be done."""
    logs = [name for name in proof.differing if name.startswith("log ")]
    variables = [name for name in proof.differing if not name.startswith("log ")]
    many = "s" if len(variables) > 1 else ""
    named = [f"{len(variables)} variable{many} ({', '.join(variables[:3])})"] if variables else []
    named += [f"logs ({', '.join(name[4:] for name in logs[:3])})"] if logs else []
    step = f"{type(model).__name__}.{proof.kind}_step"
    whose = "their" if len(proof.differing) > 1 else "its"
    return (
        f"After one {step} on {proof.num_rows} rows, {proof.num_replicas} replicas, each of which sees only its own "
        f"rows of the batch, differ from one device: {' and '.join(named)}, by up to {proof.largest:.1g} of {whose} "
        "size. What the step makes of the rows is not a mean over them, or it assigns a variable from its own rows. "
        "Return one value per row, use tfaccel.ops.all_gather_rows for rows that are compared or counted together, "
        "clip gradients by the optimizer's `global_clipnorm`; or build the model outside the strategy to train on one "
        "replica. check_rows=False skips this check."
    )
