"""The nouns `TimedWindow`, `Performance`, `Bottleneck`, `WorkerTimes` and `Straggler`: how fast a run was, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Self

from tfaccel.records import Record
from tfaccel.short_repr import noun

INPUT_BOUND_FROM = 0.15  # fraction of the training time spent waiting for batches
BUSY_FROM = 0.7  # utilization of the processor from which it holds the run back

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
SLOW_FROM = 1.25  # times as long as the other workers
MIN_SHARE = 0.1  # of the step time that the others wait
_PHASES = {"input": "waiting for its input", "compute": "computing"}
_HELP = {
    "input": "look at its disk and network, and at what else reads or uses its CPU cores",
    "compute": "look at what else runs on it, its cores, clock and cooling",
}


@noun
class TimedWindow:
    """Some training steps in a row, timed.

    Args:
        seconds: wall time of all of them, the wait for their batches included.
        num_steps: how many.
        loss: their mean training loss.
        waited_seconds: how long the steps waited for their batches; None if unknown.
        cpu_seconds: CPU time of the process, all threads; None if unknown.
        gpu_utilization: the fraction of the time in which the GPUs computed something; None if unknown.
    """

    seconds: float
    num_steps: int
    loss: float
    waited_seconds: float | None = None
    cpu_seconds: float | None = None
    gpu_utilization: float | None = None


@noun
class Bottleneck(Record):
    """What held a run back.

    Args:
        kind: "input", "compute", "host", or "unknown".
        text: the diagnosis with its numbers, and what to try.
    """

    kind: str
    text: str


@noun
class Performance(Record):
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

    _ignores_others = True

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


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


@noun(kw_only=False)
class WorkerTimes:
    """Seconds of one worker per batch.

    Args:
        input: waiting for the next batch.
        compute: computing, with all else that is not the other two.
        reduce: in reductions over the workers, mostly waiting for slower ones.

    Example:
        >>> WorkerTimes.from_json(WorkerTimes(input=0.01, compute=0.04, reduce=0.05).to_json()).own
        0.05
    """

    input: float
    compute: float
    reduce: float

    @property
    def own(self) -> float:
        """The time that does not depend on other workers."""
        return self.input + self.compute

    def to_json(self) -> dict[str, float]:
        """The fields as JSON values, in microseconds' precision."""
        return {name: round(value, 6) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The times from their `to_json` data."""
        return cls(**{one.name: float(data[one.name]) for one in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Straggler(Record):
    """A worker that the others wait for.

    Args:
        worker: its index.
        phase: "input" or "compute": where it loses most time against the others.
        factor: its own time per batch, divided by that of the other workers (their median).
        seconds, others_seconds: its time per batch in that phase, and the others' median.
    """

    _derived = ("text",)

    worker: int
    phase: str
    factor: float
    seconds: float
    others_seconds: float

    @property
    def text(self) -> str:
        """The finding with its numbers, and what to look at."""
        return (
            f"worker {self.worker} takes {self.factor:.1f} times as long as the others, which wait for it: it spends "
            f"{1000 * self.seconds:.1f} ms per batch {_PHASES[self.phase]}, the others "
            f"{1000 * self.others_seconds:.1f} ms; {_HELP[self.phase]}"
        )


def straggler(workers: Sequence[WorkerTimes]) -> Straggler | None:
    """The worker that is clearly slower than the others; None if there is none, or only one worker.

    Example:
        >>> fast = WorkerTimes(input=0.0, compute=0.05, reduce=0.04)
        >>> slow = WorkerTimes(input=0.04, compute=0.05, reduce=0.0)
        >>> print(straggler([fast, slow]).text[:76])
        worker 1 takes 1.8 times as long as the others, which wait for it: it spends
        >>> straggler([fast, fast]) is None
        True
    """
    if len(workers) < 2:
        return None
    index = max(range(len(workers)), key=lambda number: workers[number].own)
    slow, others = workers[index], [one for number, one in enumerate(workers) if number != index]
    own = median(one.own for one in others)
    whole = slow.own + slow.reduce
    if slow.own < SLOW_FROM * own or slow.own - own < MIN_SHARE * whole:
        return None
    of_others = {phase: median(getattr(one, phase) for one in others) for phase in _PHASES}
    phase = max(_PHASES, key=lambda name: getattr(slow, name) - of_others[name])
    return Straggler(
        worker=index,
        phase=phase,
        factor=slow.own / max(own, 1e-9),
        seconds=getattr(slow, phase),
        others_seconds=of_others[phase],
    )
