"""The nouns `LayerCost`, `StepCost` and `ModelCost`: what a model computes, overall and by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from tfaccel.records import Record
from tfaccel.short_repr import noun

OPTIMIZER, LOSS, OTHER = "optimizer", "loss", "other"  # rows that are no layers
HOST = "host"  # the time in which no operation runs


@noun
class LayerCost:
    """What one layer computes, forward and (in a training step) backward.

    Args:
        name: the layer's path in the model; or "optimizer", "loss", or "other" for what belongs to none of these.
        matrix_flops: floating-point operations of matrix products and convolutions; a multiply-add counts as two.
        other_flops: one for each element that any other arithmetic operation computes.
        num_bytes: dtype -> bytes that the operations read and write, each counted as if it were run on its own. Fusion
            and caches save some of them.
        least_bytes: those that remain if all operations of the layer's forward pass are fused into one, and all of its
            backward pass: what it takes from other layers, its weights, and what others take from it, once each; in a
            loop, once per iteration.
        num_kernels: operations that a device launches, each counted as if none were fused with another; without those
            on shapes, counters and conditions.

    Example:
        >>> LayerCost(name="dense", matrix_flops=600, num_bytes={"float32": 330}, least_bytes=300).intensity
        2.0
    """

    name: str
    matrix_flops: int = 0
    other_flops: int = 0
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    least_bytes: int = 0
    num_kernels: int = 0

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return self.matrix_flops + self.other_flops

    @property
    def bytes_accessed(self) -> int:
        """Bytes of all dtypes."""
        return sum(self.num_bytes.values())

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations of matrix products per least byte; 0 if no bytes are accessed."""
        return self.matrix_flops / self.least_bytes if self.least_bytes else 0.0

    def plus(self, other: LayerCost, times: int = 1) -> LayerCost:
        """The cost of this and of another one, which may run several times; the name is this one's."""
        names = {**self.num_bytes, **other.num_bytes}
        return LayerCost(
            name=self.name,
            matrix_flops=self.matrix_flops + times * other.matrix_flops,
            other_flops=self.other_flops + times * other.other_flops,
            num_bytes={name: self.num_bytes.get(name, 0) + times * other.num_bytes.get(name, 0) for name in names},
            least_bytes=self.least_bytes + times * other.least_bytes,
            num_kernels=self.num_kernels + times * other.num_kernels,
        )


@noun
class StepCost(Record):
    """What one step, or one forward pass, computes.

    Args:
        rows: one for each layer that computes something, in the order in which the model holds them; then the rows that
            are no layers.
        num_unsized: tensors whose size depends on the data. Their bytes are not counted.

    Example:
        >>> rows = (LayerCost(name="dense", matrix_flops=600), LayerCost(name="optimizer", other_flops=50))
        >>> StepCost(rows=rows).flops
        650
    """

    _ignores_others = True

    rows: tuple[LayerCost, ...]
    num_unsized: int = 0

    @property
    def matrix_flops(self) -> int:
        """Floating-point operations of all matrix products and convolutions."""
        return sum(row.matrix_flops for row in self.rows)

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return sum(row.flops for row in self.rows)

    @property
    def num_bytes(self) -> dict[str, int]:
        """dtype -> bytes."""
        names = sorted({name for row in self.rows for name in row.num_bytes})
        return {name: sum(row.num_bytes.get(name, 0) for row in self.rows) for name in names}

    @property
    def bytes_accessed(self) -> int:
        """Bytes of all dtypes."""
        return sum(row.bytes_accessed for row in self.rows)

    @property
    def least_bytes(self) -> int:
        """Bytes that remain if each layer is fused; see `LayerCost`."""
        return sum(row.least_bytes for row in self.rows)

    @property
    def num_kernels(self) -> int:
        """Operations that a device launches; see `LayerCost`."""
        return sum(row.num_kernels for row in self.rows)

    def repeated(self, times: int) -> StepCost:
        """The cost of several of these."""
        rows = tuple(LayerCost(name=row.name).plus(row, times) for row in self.rows)
        return StepCost(rows=rows, num_unsized=self.num_unsized)

    def __add__(self, other: StepCost) -> StepCost:
        """The cost of this and another one, row by row."""
        theirs = {row.name: row for row in other.rows}
        rows = [row.plus(theirs.pop(row.name)) if row.name in theirs else row for row in self.rows]
        return StepCost(rows=(*rows, *theirs.values()), num_unsized=max(self.num_unsized, other.num_unsized))

    def to_json(self) -> dict[str, Any]:
        """The fields and totals as JSON values."""
        totals: dict[str, Any] = {"matrix_flops": self.matrix_flops, "flops": self.flops, "num_bytes": self.num_bytes}
        totals["least_bytes"] = self.least_bytes
        return {**totals, "rows": [asdict(row) for row in self.rows], "num_unsized": self.num_unsized}


@noun
class ModelCost(Record):
    """What a model computes for one batch.

    Args:
        replica_batch_size: number of examples in the batch.
        num_parameters: number of trainable parameters.
        forward: a forward pass in inference mode.
        step: a training step: forward and backward pass, and the optimizer's update; None if the model was given
            without a loss or data.

    Example:
        >>> ModelCost(replica_batch_size=8, num_parameters=10, forward=StepCost(rows=())).step is None
        True
    """

    replica_batch_size: int
    num_parameters: int
    forward: StepCost
    step: StepCost | None = None
