"""Published throughputs on several GPUs, and what the scaling model predicts for them. Nothing is fitted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tfaccel.extras.estimates.interconnect import all_reduce_seconds, known_interconnect

_FILE = Path(__file__).with_suffix(".json")
_GRADIENT_BYTES = 4  # of a parameter: float32, under mixed precision too


@dataclass(frozen=True, kw_only=True)
class PublishedScaling:
    """A published pair of throughputs: on some replicas, and on more.

    Args:
        name: model, machine and precision.
        source: address of the table.
        interconnect: a name in `tfaccel.extras.estimates.interconnect`.
        num_parameters: of the model.
        replica_batch_size: examples of a replica between two accumulated gradients.
        base_replicas, base_examples_per_second, base_accumulation_steps: of the smaller run.
        replicas, examples_per_second, accumulation_steps: of the larger run.
        note: what is not in the source.
    """

    name: str
    source: str
    interconnect: str
    num_parameters: int
    replica_batch_size: int
    base_replicas: int
    base_examples_per_second: float
    base_accumulation_steps: int
    replicas: int
    examples_per_second: float
    accumulation_steps: int
    note: str = ""

    @property
    def published_efficiency(self) -> float:
        """Throughput per replica of the larger run / that of the smaller one."""
        return self.examples_per_second / self.replicas / (self.base_examples_per_second / self.base_replicas)

    @property
    def predicted_efficiency(self) -> float:
        """The same as the model predicts it from the smaller run, with published latencies and bandwidths."""
        base_rate = self.base_examples_per_second / self.base_replicas
        seconds_per_batch = self.replica_batch_size / base_rate
        compute = seconds_per_batch - self._all_reduce_seconds(self.base_replicas) / self.base_accumulation_steps
        step = self.accumulation_steps * compute + self._all_reduce_seconds(self.replicas)
        return self.accumulation_steps * self.replica_batch_size / step / base_rate

    def _all_reduce_seconds(self, replicas: int) -> float:
        num_bytes = _GRADIENT_BYTES * self.num_parameters
        return all_reduce_seconds(num_bytes, replicas, known_interconnect(self.interconnect))


def published_scalings() -> tuple[PublishedScaling, ...]:
    """The rows of `published_scaling.json`.

    Example:
        >>> row = published_scalings()[0]
        >>> row.name, round(row.published_efficiency, 3), round(row.predicted_efficiency, 3)
        ('ResNet-50 v1.5, DGX A100, TF32', 0.963, 0.998)
    """
    return tuple(PublishedScaling(**row) for row in json.loads(_FILE.read_text(encoding="utf-8"))["rows"])
