"""`roofline` and its nouns: how close a training step and its layers come to the limits of this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tfaccel.costs.model_cost import HOST, LayerCost, StepCost
from tfaccel.errors import PlanError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed, CandidateServers
from tfaccel.measuring.ceilings import known_or_measured
from tfaccel.measuring.duel import CHECKED_STEPS, WINDOW_SECONDS
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.cache import keep_roofline
from tfaccel.planning.candidates import taken_fields
from tfaccel.planning.compile_arguments import data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.machine_ceilings import MachineCeilings, compute_dtype, num_limited_devices
from tfaccel.planning.option_checks import check_seconds
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import chosen_plan, plan_key
from tfaccel.planning.workload import Workload
from tfaccel.records import SavedRecord
from tfaccel.short_repr import noun
from tfaccel.training.run.performance import INPUT_BOUND_FROM, TimedWindow

EXPLAINED_FROM = 0.5  # fraction of the step time that arithmetic and memory must explain to be what bounds it
LAYER_HEADINGS = ("layer", "GFLOP", "MB", "FLOP/byte", "bound by", "least time", "time", "of the limit")
_NONE = "-"
_NUM_WINDOWS = 5


@data_after_model
def roofline(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    measure_again: bool = False,
    limit_seconds: float = 300.0,
    on_progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Roofline:
    """Measures how close a workload's training step comes to the limits of this machine.

    Three measurements in processes of their own: the machine's limits, which are large matrix products in each dtype
    and copies of memory (once for a machine, kept in `TFACCEL_CACHE`, or else ~/.cache/tfaccel); the operations and
    bytes of a step, counted from its graph; and the time of a step, on CPUs without XLA also of its layers. The plan is
    the one that `tfaccel.train` would use. Nothing that is passed in is trained or changed. The result is kept there as
    well: `tfaccel report` shows it for runs of the same workload and plan.

    Args:
        workload: what to train: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        x, y: data, if `workload` is a model or a function that builds one.
        measure_again: measure the machine's limits even if they are known.
        limit_seconds: time limit for measuring the limits, for building the model, and for each timed window.
        on_progress: called with a line of text for each result.
        **options: plan fields; and whatever `tfaccel.train` takes to make a workload from `workload`, `x` and `y`.

    Returns:
        A `Roofline`.

    Raises:
        PlanError: if the plan cannot run here, several workers would train, or a process fails; the message says why.
        WorkloadError: if the workload cannot be made, or cannot be sent to another process.

    Example:
        >>> import keras, numpy as np, tfaccel
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> found = roofline(build_model, x, x[:, :1], loss="mse", batch_size=32)
        >>> found.cost.matrix_flops, 0 < found.mfu < 1
        (512, True)
    """
    check_seconds(limit_seconds=limit_seconds)
    fixed = taken_fields(options)
    made = given_workload(workload, x, y, **options)
    hardware = detect_hardware()
    plan = chosen_plan(hardware, made, **fixed)
    if plan.num_workers > 1 or plan.strategy == "tpu":
        raise PlanError(
            "A roofline is measured on a single machine, with CPUs or GPUs. Received: a plan with "
            f"strategy={plan.strategy!r}, num_workers={plan.num_workers}. Unset TF_CONFIG, or choose --devices."
        )
    task, workload_key = make_task(workload, options, made=made), plan_key(hardware, made, {})
    with CandidateServers() as servers:
        ceilings = known_or_measured(
            servers, hardware, plan, again=measure_again, limit_seconds=limit_seconds, on_progress=on_progress
        )
        child = CandidateChild(servers.of(plan), task, plan, "roofline", limit_seconds=limit_seconds, marks_layers=True)
        try:
            found = _measured(child, made, hardware, ceilings, on_progress)
            keep_roofline(workload_key, plan, found.to_json())
            return found
        except CandidateFailed as error:
            raise PlanError(f"The step of {made.name!r} could not be measured. {error}") from error
        finally:
            child.end()


def _measured(
    child: CandidateChild, workload: Workload, hardware: Hardware, ceilings: MachineCeilings, on_progress: Any
) -> Roofline:
    child.build(CHECKED_STEPS)
    cost = child.step_cost()
    on_progress(f"a step computes {cost.matrix_flops / 1e9:,.3g} GFLOP in matrix products and convolutions")
    probe = child.warm_up(CHECKED_STEPS)
    times = child.layer_seconds()  # now: after some 90 steps, TensorFlow no longer traces cheap operations
    num_steps = max(2, round(WINDOW_SECONDS * probe.num_steps / probe.seconds))
    windows = [child.window(num_steps) for _ in range(_NUM_WINDOWS)]
    step_seconds = statistics.median(window.seconds / window.num_steps for window in windows)
    on_progress(f"a step takes {1e3 * step_seconds:,.3g} ms")
    busy = _mean(windows, lambda one: one.gpu_utilization)
    cores = _mean(windows, lambda one: (one.cpu_seconds or 0.0) / one.seconds) or 0.0
    waits = _mean(windows, lambda one: None if one.waited_seconds is None else one.waited_seconds / one.seconds)
    plan = child.candidate.plan
    if plan.devices[0].startswith("GPU") and waits is not None:  # an upper bound: a GPU that computes does not wait
        waits = None if busy is None else min(waits, 1 - busy)
    computed = step_seconds * (1 - min(1.0, max(0.0, waits or 0.0)))
    traced = sum(times.values())  # the profiler makes steps slower
    return Roofline(
        workload=workload.name,
        plan=plan,
        ceilings=ceilings,
        cost=cost,
        step_seconds=step_seconds,
        layer_seconds={name: seconds * computed / traced for name, seconds in times.items()},
        input_wait_share=None if waits is None else min(1.0, max(0.0, waits)),
        cpu_utilization=cores / hardware.num_usable_cores,
        gpu_utilization=busy,
    )


def _mean(windows: list[TimedWindow], value: Callable[[TimedWindow], float | None]) -> float | None:
    """The mean over the windows, weighted by their time; None if it is unknown for one."""
    found = [(value(window), window.seconds) for window in windows]
    if any(one is None for one, _ in found):
        return None
    return sum((one or 0.0) * seconds for one, seconds in found) / sum(seconds for _, seconds in found)


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
    def flops_per_second(self) -> float:
        """Of its matrix products: as measured, or at the limit if the time is unknown."""
        return self.cost.matrix_flops / (self.seconds or self.least_seconds)

    @property
    def limit_share(self) -> float | None:
        """The least time divided by the measured one; above 1 if caches serve many of the bytes; None if unknown."""
        return self.least_seconds / self.seconds if self.seconds else None


@noun
class Roofline(SavedRecord):
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

    _derived = ("mfu", "memory_share", "least_seconds", "limit_share", "bound", "text")
    _ignores_others = True

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
    def matrix_flops_ceilings(self) -> dict[str, float]:
        """Dtype -> floating-point operations per second of all devices."""
        count = num_limited_devices(self.plan)
        return {name: count * speed for name, speed in self.ceilings.matrix_flops_per_second.items()}

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
        limits = f"MFU {self.mfu:.2f}, memory at {100 * self.memory_share:.0f} % of its speed"
        verdict = f"Bound by {self.bound}: {limits}."
        if self.bound == "input":
            share = self.input_wait_share or 0
            verdict = f"Bound by input: {100 * share:.0f} % of the step time is spent waiting for it."
        elif self.bound == "host":
            verdict = (
                f"Bound by the host: arithmetic and memory explain {100 * self.limit_share:.0f} % of the step time "
                f"({limits}). The rest is spent on launching operations, and on operations too small to be fast."
            )
        return f"{verdict} {self.ceilings.doubt}".rstrip()

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
        return {**super().to_json(), "layers": layers}
