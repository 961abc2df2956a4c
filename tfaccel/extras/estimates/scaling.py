"""`ScalingEstimate`: the predicted speed, efficiency and cost of training on more devices, and its plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from tfaccel.errors import DataError, PlanError
from tfaccel.extras.estimates.interconnect import (
    ALGORITHMS,
    Algorithm,
    Interconnect,
    all_reduce_seconds,
    num_machines,
    num_packs,
)
from tfaccel.known_names import did_you_mean
from tfaccel.planning.option_checks import listed
from tfaccel.planning.step_of_one_device import StepOfOneDevice
from tfaccel.records import SavedRecord
from tfaccel.reporting.figures import BLUE, GREY, LIGHT, ORANGE, new_figure, saved, shown
from tfaccel.short_repr import noun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_REPLICAS = 1_000_000
_BACKWARD_SHARE = 2 / 3  # of a step's operations: the backward pass has twice those of the forward pass
_MILLION = 1_000_000
_SECONDS_PER_HOUR = 3600


@noun(error=PlanError)
class ScalingOptions:
    """What `estimate_scaling` assumes.

    Args:
        scaling: "weak" keeps the batch of each replica, "strong" the global batch.
        algorithm: of the all-reduce: "ring", "hierarchical", or "auto" for the faster of the two.
        bytes_per_pack: gradients are summed in packs of about this many bytes; 0 for one pack, TensorFlow's default.
        overlap: fraction of the communication that can run during the backward pass. TensorFlow's default is 0: it
            packs all gradients into one message, which waits for the last of them.
        price_per_device_hour: in any currency; None to leave costs out.
        fixed_step_seconds: the part of a step's time that does not shrink with the batch; None to find it from the
            times with two batch sizes, or 0 if the time of a step is given.

    Raises:
        PlanError: if an option is invalid.
    """

    scaling: Literal["weak", "strong"] = field(
        default="weak", metadata={"help": "weak: keep the batch of each replica; strong: keep the global batch"}
    )
    algorithm: Algorithm = field(
        default="auto", metadata={"help": "of the all-reduce: ring, hierarchical, or auto for the faster of the two"}
    )
    bytes_per_pack: int = field(
        default=0, metadata={"help": "sum gradients in packs of about this many bytes; 0: in one, as TensorFlow does"}
    )
    overlap: float = field(
        default=0.0, metadata={"help": "fraction of the communication that can run during the backward pass"}
    )
    price_per_device_hour: float | None = field(
        default=None, metadata={"help": "price of a device, in any currency, to predict costs"}
    )
    fixed_step_seconds: float | None = field(
        default=None,
        metadata={"help": "part of the time of a step that does not shrink with the batch (default: measured)"},
    )

    def __post_init__(self) -> None:
        _check_choice("scaling", self.scaling, ("weak", "strong"))
        _check_choice("algorithm", self.algorithm, ALGORITHMS)
        if type(self.bytes_per_pack) is not int or self.bytes_per_pack < 0:
            raise PlanError(
                f"bytes_per_pack must be a whole number of at least 0. Received: bytes_per_pack={self.bytes_per_pack}."
            )
        if not 0 <= self.overlap <= 1:
            raise PlanError(f"overlap must be a fraction from 0 to 1. Received: overlap={self.overlap}.")
        for name in ("price_per_device_hour", "fixed_step_seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise PlanError(f"{name} must be a number of at least 0. Received: {name}={value}.")


@noun
class ScalingRow:
    """Predictions for one number of replicas.

    Args:
        num_replicas, num_machines: devices, and the machines that hold them.
        replica_batch_size: examples per step of the replica with the most.
        global_batch_size: examples per step of all.
        compute_seconds: time of a step's computation.
        communication_seconds: time of the all-reduce of the gradients.
        step_seconds: both, less what overlaps.
        examples_per_second: of all replicas.
        efficiency: examples per second, divided by those of one replica times the number of replicas.
        epoch_seconds: None if the number of examples is unknown.
        cost_per_epoch, cost_per_million_examples: None without a price; the first also without a number of examples.
    """

    num_replicas: int
    num_machines: int
    replica_batch_size: int
    global_batch_size: int
    compute_seconds: float
    communication_seconds: float
    step_seconds: float
    examples_per_second: float
    efficiency: float
    epoch_seconds: float | None = None
    cost_per_epoch: float | None = None
    cost_per_million_examples: float | None = None


@noun
class ScalingEstimate(SavedRecord):
    """Predictions of the speed of data-parallel training.

    Args:
        workload: the workload's name.
        options: what was assumed.
        step: the step of one device.
        interconnect: what connects the devices.
        rows: one for each number of replicas.
    """

    _derived = ("assumptions",)
    _ignores_others = True

    workload: str
    options: ScalingOptions
    step: StepOfOneDevice
    interconnect: Interconnect
    rows: tuple[ScalingRow, ...]

    @property
    def assumptions(self) -> list[str]:
        """What the predictions rest on, and what they leave out."""
        step, options, kept = self.step, self.options, "batch of each replica is kept"
        if options.scaling == "strong":
            kept = f"global batch is kept; {step.fixed_seconds:.3g} s of a step do not shrink with a replica's batch"
        overlap = (
            "Communication does not overlap with computation: the gradients form one message, as TensorFlow sums them."
            if not options.overlap
            else f"{options.overlap:.0%} of the communication can run during the backward pass (2/3 of a step)."
        )
        messages = num_packs(step.gradient_bytes, options.bytes_per_pack)
        too_large = [row for row in self.rows if row.global_batch_size > (step.num_train_examples or math.inf)]
        return [
            f"{options.scaling} scaling: the {kept}",
            f"step of one device: {step.step_seconds:.3g} s ({step.origin}), {step.batch_size} examples",
            f"gradients: {sum(step.gradient_bytes):,} bytes in {messages} message(s), in the dtype of the weights; "
            "those of embeddings count as dense",
            f"interconnect: {_described(self.interconnect)}",
            overlap,
            "Not modelled: stragglers, slow input, synchronized BatchNormalization, congestion, trees.",
            *(
                f"From {row.num_replicas} replicas on, a global batch has more examples than the data."
                for row in too_large[:1]
            ),
            *self._warnings_of_devices(),
        ]

    def _warnings_of_devices(self) -> list[str]:
        """Why the step is not that of the devices that the interconnect connects."""
        wanted, found = self.interconnect.device_kind, self.step.device_kind
        if wanted is None or not found or found == wanted:
            return []
        return [
            f"Warning: the step is that of a {found}, but {self.interconnect.name} connects {wanted}s. Measure on a "
            f"machine with such a {wanted}, or give the time of its step (--step_seconds)."
        ]


def scaling_rows(
    step: StepOfOneDevice, interconnect: Interconnect, replicas: Iterable[int], options: ScalingOptions
) -> tuple[ScalingRow, ...]:
    """Predicts each number of replicas.

    Raises:
        PlanError: for a number of replicas below 1, or above the global batch if that is kept.

    Example:
        >>> step = StepOfOneDevice(step_seconds=1.0, batch_size=10, gradient_bytes=(100,))
        >>> link = Interconnect(name="slow", machine_latency_seconds=0.05, machine_bytes_per_second=1000.0)
        >>> [round(row.efficiency, 3) for row in scaling_rows(step, link, [1, 2], ScalingOptions())]
        [1.0, 0.833]
    """
    return tuple(_row(step, interconnect, number, options) for number in checked_replicas(replicas))


def checked_replicas(replicas: Iterable[int]) -> Sequence[int]:
    """The numbers of replicas, in order, each once."""
    numbers = listed("replicas", replicas)
    if not numbers or not all(type(number) is int and 1 <= number <= MAX_REPLICAS for number in numbers):
        raise PlanError(
            f"replicas must be whole numbers from 1 to {MAX_REPLICAS:,}, such as 1, 2, 4. Received: {numbers}."
        )
    return sorted(set(numbers))


def _row(step: StepOfOneDevice, interconnect: Interconnect, number: int, options: ScalingOptions) -> ScalingRow:
    if options.scaling == "weak":
        replica_batch_size, global_batch_size = step.batch_size, step.batch_size * number
    else:
        if number > step.batch_size:
            raise PlanError(
                f"The global batch of {step.batch_size} examples has too few for {number} replicas. With "
                f"scaling='strong', use at most {step.batch_size} replicas, or a larger global_batch_size."
            )
        replica_batch_size, global_batch_size = math.ceil(step.batch_size / number), step.batch_size
    compute = step.seconds_for(replica_batch_size)
    communication = all_reduce_seconds(
        sum(step.gradient_bytes),
        number,
        interconnect,
        algorithm=options.algorithm,
        num_messages=num_packs(step.gradient_bytes, options.bytes_per_pack),
    )
    hidden = min(options.overlap * communication, _BACKWARD_SHARE * compute)
    seconds = compute + communication - hidden
    rate = global_batch_size / seconds
    examples = step.num_train_examples
    cost = None
    if options.price_per_device_hour is not None:
        cost = options.price_per_device_hour * number / _SECONDS_PER_HOUR / rate  # of one example
    return ScalingRow(
        num_replicas=number,
        num_machines=num_machines(number, interconnect),
        replica_batch_size=replica_batch_size,
        global_batch_size=global_batch_size,
        compute_seconds=compute,
        communication_seconds=communication,
        step_seconds=seconds,
        examples_per_second=rate,
        efficiency=rate / (number * step.batch_size / step.step_seconds),
        epoch_seconds=None if examples is None else examples / rate,
        cost_per_epoch=None if cost is None or examples is None else cost * examples,
        cost_per_million_examples=None if cost is None else cost * _MILLION,
    )


def _described(link: Interconnect) -> str:
    parts = [f"{link.name}, {link.devices_per_machine} device(s) per machine"]
    if link.device_bytes_per_second is not None:
        parts.append(
            f"within: {1e6 * link.device_latency_seconds:.3g} us, {link.device_bytes_per_second / 1e9:.4g} GB/s"
        )
    parts.append(
        f"between machines: {1e6 * link.machine_latency_seconds:.3g} us, {link.machine_bytes_per_second / 1e9:.4g} GB/s"
    )
    return "; ".join([*parts, *([link.source] if link.source else [])])


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise PlanError(f"{name} must be one of {', '.join(allowed)}. Received: {name}={value!r}.{hint}")


def scaling_figure(estimate: ScalingEstimate, *, measured: Mapping[int, Sequence[float]] | None = None) -> Figure:
    """Plots the predicted throughput beside that without communication, and the efficiency.

    Args:
        estimate: the prediction.
        measured: number of replicas -> measured examples per second, to draw beside it; None for none.

    Example:
        >>> from tfaccel.extras.estimates.interconnect import Interconnect
        >>> from tfaccel.extras.estimates.scaling import ScalingOptions, scaling_rows
        >>> from tfaccel.planning.step_of_one_device import StepOfOneDevice
        >>> step = StepOfOneDevice(step_seconds=1.0, batch_size=10, gradient_bytes=(100,))
        >>> link = Interconnect(name="slow", machine_latency_seconds=0.05, machine_bytes_per_second=1000.0)
        >>> options = ScalingOptions()
        >>> rows = scaling_rows(step, link, [1, 2, 4], options)
        >>> estimate = ScalingEstimate(workload="digits", options=options, step=step, interconnect=link, rows=rows)
        >>> [axes.get_ylabel() for axes in scaling_figure(estimate).axes]
        ['examples per second', 'efficiency in %']
    """
    if not estimate.rows:
        raise DataError("A plot of scaling needs at least one number of replicas. Received none.")
    numbers = [row.num_replicas for row in estimate.rows]
    first = estimate.step.batch_size / estimate.step.step_seconds
    figure = new_figure(800, 420)
    rates, shares = figure.subplots(1, 2)
    rates.plot(numbers, [first * number for number in numbers], color=GREY, linestyle="--", label="linear")
    predicted = [row.examples_per_second for row in estimate.rows]
    rates.plot(numbers, predicted, color=BLUE, marker="o", markersize=4, label="predicted")
    for number, found in (measured or {}).items():
        rates.plot([number] * len(found), found, "x", color=ORANGE, label="measured")
    shares.plot(numbers, [100 * row.efficiency for row in estimate.rows], color=BLUE, marker="o", markersize=4)
    title = f"{estimate.workload}, {estimate.options.scaling} scaling, {estimate.interconnect.name}"
    figure.suptitle(shown(title, 80), fontsize=10)
    rates.set(ylabel="examples per second", yscale="log")
    shares.set(ylabel="efficiency in %", ylim=(0, 105))
    for axes in (rates, shares):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("replicas")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(color=LIGHT)
    handles, labels = rates.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(by_label.values(), by_label, loc="outside lower center", ncols=3, frameon=False)
    return figure


save_scaling_picture = saved(scaling_figure)
