"""The nouns `Roofline` and `LayerLimit`: how close a workload comes to the limits of the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Self

from tfaccel.costs.model_cost import HOST, LayerCost, StepCost
from tfaccel.errors import ReportError
from tfaccel.local_path import local_path
from tfaccel.planning.machine_ceilings import MachineCeilings, compute_dtype, num_limited_devices
from tfaccel.planning.plan import Plan
from tfaccel.short_repr import short_repr
from tfaccel.training.run.performance import INPUT_BOUND_FROM

EXPLAINED_FROM = 0.5  # fraction of the step time that arithmetic and memory must explain to be what bounds it
LAYER_HEADINGS = ("layer", "GFLOP", "MB", "FLOP/byte", "bound by", "least time", "time", "of the limit")
_NONE = "-"


@dataclass(frozen=True, kw_only=True)
class LayerLimit:
    """The limit of one row of a step's cost.

    Args:
        name: the layer, or "optimizer", "loss", "other".
        cost: what it computes.
        bound: "arithmetic" or "memory": what takes longer at the machine's ceilings.
        least_seconds: the longer of the two times.
        share: its fraction of the least times of all rows.
        seconds: the measured time; None if unknown, or if all its operations were fused with those of other layers.
    """

    name: str
    cost: LayerCost
    bound: str
    least_seconds: float
    share: float
    seconds: float | None = None

    @property
    def limit_share(self) -> float | None:
        """The least time divided by the measured one; above 1 if caches serve many of the bytes; None if unknown."""
        return self.least_seconds / self.seconds if self.seconds else None


@short_repr
@dataclass(frozen=True, kw_only=True)
class Roofline:
    """How close a workload's training step comes to the limits of the machine.

    The least time of a layer is that of its matrix products at the machine's speed in the compute dtype, or that of
    its least bytes at the speed of memory, whichever is longer. Least bytes are those that remain if the layer's
    forward pass is fused into one operation, and its backward pass into another. A model that is small enough for the
    processor's caches can be faster than its memory allows by this count.

    Args:
        workload: the workload's name.
        plan: the plan that was measured.
        ceilings: the limits of one device.
        cost: what a step computes.
        step_seconds: the median time of a step, the wait for its batch included.
        input_wait_share: the fraction of it spent waiting for the batch; None if unknown.
        cpu_utilization: CPU time of the process, divided by wall time and usable cores.
        gpu_utilization: the mean fraction of the time in which the GPUs computed something; None if unknown.
        layer_seconds: the step's time without the wait for input, divided among the rows of the cost and "host", which
            has the time in which no operation ran. Empty if single operations cannot be timed: with XLA, and on GPUs.

    See also: Williams, Waterman and Patterson, Roofline: an insightful visual performance model for multicore
    architectures, Communications of the ACM 52(4), 2009.

    Example:
        >>> dense = LayerCost(name="dense", matrix_flops=2 * 10**9, least_bytes=10**7)
        >>> roofline = Roofline(
        ...     workload="digits",
        ...     plan=Plan(strategy="none", devices=("CPU:0",), global_batch_size=8),
        ...     ceilings=MachineCeilings(
        ...         device="CPU", matrix_flops_per_second={"float32": 1e11}, bytes_per_second=1e10
        ...     ),
        ...     cost=StepCost(rows=(dense,)),
        ...     step_seconds=0.025,
        ...     cpu_utilization=0.9,
        ... )
        >>> roofline.mfu, roofline.bound, roofline.layers()[0].bound
        (0.8, 'arithmetic', 'arithmetic')
    """

    workload: str
    plan: Plan
    ceilings: MachineCeilings
    cost: StepCost
    step_seconds: float
    input_wait_share: float | None = None
    cpu_utilization: float
    gpu_utilization: float | None = None
    layer_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def matrix_flops_ceiling(self) -> float:
        """Floating-point operations per second of all devices, in the compute dtype."""
        return self.ceilings.matrix_flops(compute_dtype(self.plan)) * num_limited_devices(self.plan)

    @property
    def bytes_ceiling(self) -> float:
        """Bytes per second of all devices."""
        return self.ceilings.bytes_per_second * num_limited_devices(self.plan)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: the fraction of the ceiling at which the step's matrix products run on average."""
        return self.cost.matrix_flops / self.step_seconds / self.matrix_flops_ceiling

    @property
    def memory_share(self) -> float:
        """The step's least bytes per second, divided by the ceiling; above 1 if caches serve many."""
        return self.cost.least_bytes / self.step_seconds / self.bytes_ceiling

    @property
    def least_seconds(self) -> float:
        """The sum of the least times of all layers."""
        return sum(self._least(row)[1] for row in self.cost.rows)

    @property
    def limit_share(self) -> float:
        """The least time divided by the measured one, without the wait for input."""
        return self.least_seconds / (self.step_seconds * (1 - (self.input_wait_share or 0.0)))

    @property
    def bound(self) -> str:
        """What bounds the step: "input", "arithmetic", "memory" or "host"."""
        if (self.input_wait_share or 0.0) >= INPUT_BOUND_FROM:
            return "input"
        if self.limit_share < EXPLAINED_FROM:
            return "host"
        of_arithmetic = sum(one.least_seconds for one in self.layers() if one.bound == "arithmetic")
        return "arithmetic" if of_arithmetic >= self.least_seconds / 2 else "memory"

    @property
    def text(self) -> str:
        """The verdict in a sentence, or two if the limits are in doubt."""
        return f"{self._verdict} {self.ceilings.doubt}".rstrip()

    @property
    def _verdict(self) -> str:
        limits = f"MFU {self.mfu:.2f}, memory at {100 * self.memory_share:.0f} % of its speed"
        if self.bound == "input":
            return (
                f"Bound by input: {100 * (self.input_wait_share or 0):.0f} % of the step time is spent waiting for it."
            )
        if self.bound == "host":
            return (
                f"Bound by the host: arithmetic and memory explain {100 * self.limit_share:.0f} % of the step time "
                f"({limits}). The rest is spent on launching operations, and on operations too small to be fast."
            )
        return f"Bound by {self.bound}: {limits}."

    def layers(self) -> list[LayerLimit]:
        """The limit of each row of the cost."""
        total = self.least_seconds or 1.0
        found = [(row, *self._least(row)) for row in self.cost.rows]
        return [
            LayerLimit(
                name=row.name,
                cost=row,
                bound=bound,
                least_seconds=seconds,
                share=seconds / total,
                seconds=self.layer_seconds.get(row.name),
            )
            for row, bound, seconds in found
        ]

    def _least(self, row: LayerCost) -> tuple[str, float]:
        arithmetic = row.matrix_flops / self.matrix_flops_ceiling
        memory = row.least_bytes / self.bytes_ceiling
        return ("arithmetic", arithmetic) if arithmetic > memory else ("memory", memory)

    def rows(self) -> list[list[str]]:
        """A table with a row for each layer, and one for the host if layers were timed; see `LAYER_HEADINGS`."""
        layers = [
            [
                one.name,
                f"{one.cost.matrix_flops / 1e9:.4g}",
                f"{one.cost.least_bytes / 1e6:.4g}",
                f"{one.cost.intensity:.3g}",
                one.bound,
                f"{1e6 * one.least_seconds:,.0f} us",
                _NONE if one.seconds is None else f"{1e6 * one.seconds:,.0f} us",
                _NONE if one.limit_share is None else f"{100 * one.limit_share:.0f} %",
            ]
            for one in self.layers()
        ]
        host = self.layer_seconds.get(HOST)
        return layers if host is None else [*layers, [HOST, *[_NONE] * 5, f"{1e6 * host:,.0f} us", _NONE]]

    def to_json(self) -> dict[str, Any]:
        """The fields, and what follows from them, as JSON values."""
        layers = [{**asdict(one), "limit_share": one.limit_share} for one in self.layers()]
        return {
            "workload": self.workload,
            "plan": self.plan.to_json(),
            "ceilings": self.ceilings.to_json(),
            "cost": self.cost.to_json(),
            "step_seconds": self.step_seconds,
            "input_wait_share": self.input_wait_share,
            "cpu_utilization": self.cpu_utilization,
            "gpu_utilization": self.gpu_utilization,
            "layer_seconds": dict(self.layer_seconds),
            "mfu": self.mfu,
            "memory_share": self.memory_share,
            "least_seconds": self.least_seconds,
            "limit_share": self.limit_share,
            "bound": self.bound,
            "text": self.text,
            "layers": layers,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The roofline from its `to_json` data."""
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        fields["plan"] = Plan.from_json(data["plan"])
        fields["ceilings"] = MachineCeilings.from_json(data["ceilings"])
        fields["cost"] = StepCost.from_json(data["cost"])
        return cls(**fields)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the roofline as a JSON file."""
        local_path(path, ReportError).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
