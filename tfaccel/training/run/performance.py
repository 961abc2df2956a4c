"""The nouns `Performance` and `Bottleneck`: how fast a run trained, and what held it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from tfaccel.short_repr import short_repr

INPUT_BOUND_FROM = 0.15  # fraction of the training time spent waiting for batches
BUSY_FROM = 0.7  # utilization of the processor from which it holds the run back


@short_repr
@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """What held a run back.

    Args:
        kind: "input", "compute", "host", or "unknown".
        text: the diagnosis with its numbers, and what to try.
    """

    kind: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


@short_repr
@dataclass(frozen=True, kw_only=True)
class Performance:
    """How fast some steps trained, without the graph calls that trace and compile.

    Args:
        examples_per_second: training examples per second, the wait for their batches included.
        step_seconds: mean seconds per optimizer step, the wait included.
        input_wait_share: the fraction of the training time spent waiting for batches; None if unknown. On a GPU it
            needs `nvidia-ml-py`: a GPU does not wait while it computes.
        mfu: model FLOPs utilization: operations of the step's matrix products and convolutions per second, divided by
            the speed that this machine reaches in one large matrix product. None before `tfaccel roofline` has measured
            that, or if the operations cannot be counted.
        cpu_utilization: CPU time of the process, divided by wall time and usable cores.
        gpu_utilization: the mean fraction of the time in which the GPUs computed something; None without
            `nvidia-ml-py`.
        peak_memory_bytes: peak resident memory of the process so far.
        gpu_peak_memory_bytes: TensorFlow's peak memory on the GPU that used most so far; None without GPUs.

    See also: Chowdhery et al., PaLM, 2022, appendix B, for MFU.

    Example:
        >>> slow = Performance(
        ...     examples_per_second=640.0,
        ...     step_seconds=0.05,
        ...     input_wait_share=0.62,
        ...     cpu_utilization=0.3,
        ...     peak_memory_bytes=10**9,
        ... )
        >>> slow.bottleneck.text[:66]
        'input-bound: 62 % of the step time is spent waiting for input. Try'
    """

    examples_per_second: float
    step_seconds: float
    input_wait_share: float | None = None
    mfu: float | None = None
    cpu_utilization: float
    gpu_utilization: float | None = None
    peak_memory_bytes: int
    gpu_peak_memory_bytes: int | None = None

    @property
    def bottleneck(self) -> Bottleneck:
        """What held the steps back: input, computation, or the host that launches it."""
        share = self.input_wait_share
        if share is not None and share >= INPUT_BOUND_FROM:
            return Bottleneck(kind="input", text=_INPUT.format(100 * share))
        on_gpu = self.gpu_peak_memory_bytes is not None
        busy = self.gpu_utilization if on_gpu else self.cpu_utilization
        if busy is None:
            return Bottleneck(kind="unknown", text=_NO_GPU_UTILIZATION)
        if busy >= BUSY_FROM:
            limit = "MFU unknown" if self.mfu is None else f"MFU {self.mfu:.2f}"
            return Bottleneck(kind="compute", text=_COMPUTE.format(limit, "GPUs" if on_gpu else "CPU", 100 * busy))
        text = _GPU_HOST if on_gpu else _CPU_HOST
        return Bottleneck(kind="host", text=text.format(100 * (1 - busy)))

    def scalars(self) -> dict[str, float]:
        """What is known, by name."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, rounded to six significant digits."""
        return {name: _rounded(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The performance from its `to_json` data; other keys are ignored."""
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


_INPUT = (
    "input-bound: {:.0f} % of the step time is spent waiting for input. Try more --set=data_threads, a larger "
    "--set=prefetch_batches, --set=cache_data=true if the workload can, or cheaper preprocessing"
)
_COMPUTE = (
    "compute-bound: {}, {} busy {:.0f} % of the time. `tfaccel roofline` tells arithmetic from memory; `tfaccel "
    "find-fastest` looks for a faster plan"
)
_CPU_HOST = (
    "host-bound: the CPU cores are idle {:.0f} % of the time though batches are ready, or other programs use them. The "
    "operations are too small to share: try a larger --global_batch_size, or `tfaccel find-fastest`"
)
_GPU_HOST = (
    "host-bound: the GPUs are idle {:.0f} % of the time though batches are ready. Operations are launched too slowly: "
    "try --xla=on, a larger --global_batch_size, or `tfaccel find-fastest`"
)
_NO_GPU_UTILIZATION = "unknown: install nvidia-ml-py, so that the utilization of GPUs can be measured"
