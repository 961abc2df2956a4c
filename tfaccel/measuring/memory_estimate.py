"""The noun `MemoryEstimate`: the memory that training takes, by batch size; and `ways_to_save` some of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfaccel.errors import PlanError
from tfaccel.planning.placements import STAGES
from tfaccel.records import Record, SavedRecord
from tfaccel.short_repr import noun

HEADINGS = (
    "replica batch",
    "inputs",
    "activations",
    "temporaries",
    "total",
    "activations, recomputed",
    "total",
    "fits",
)
SAVING_HEADINGS = ("plan field", "weights", "gradients", "optimizer state", "activations", "total", "saves", "fits", "")
_AS_PLANNED = "as planned"
_FITS = {True: "yes", False: "no", None: ""}


@noun
class BatchMemory:
    """The memory that training with one batch size takes on a device.

    Args:
        replica_batch_size: examples per optimizer step and replica.
        input_bytes: batches in memory: the one in use, and those that the input pipeline prepares.
        activations_bytes: values of the forward pass that the backward pass needs, of all micro-batches that are in
            memory at once.
        temporaries_bytes: the gradients, the largest value that is soon freed, and what the backward pass recomputes of
            one block.
        recomputed_activations_bytes: the activations if the layers, in `num_segments` groups, were recomputed in the
            backward pass: the values between the groups, and those inside the largest.
        num_segments: number of groups for which this is least.
        total_bytes: everything on the device, weights, optimizer state, runtime and process included.
    """

    replica_batch_size: int
    input_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    recomputed_activations_bytes: int
    num_segments: int
    total_bytes: int

    @property
    def recomputed_total_bytes(self) -> int:
        """The total with recomputed activations."""
        return self.total_bytes - self.activations_bytes + self.recomputed_activations_bytes


@noun
class MemoryEstimate(SavedRecord):
    """The memory that training a workload with a plan takes on one device.

    On a CPU, where all replicas share the memory, everything counts for all of them.

    Args:
        workload: the workload's name.
        device: the device, such as "GPU:0", or "CPU:0" for the memory of the machine.
        num_replicas: replicas whose memory is on this device.
        dtype_policy, optimizer: which ones.
        accumulation_steps: micro-batches per optimizer step and replica; only one has activations at a time.
        num_parameters: trainable parameters.
        weights_bytes: all variables of the model; float32 under mixed policies too.
        gradients_bytes: gradients of all trainable variables, counted as if all were in memory at once.
        optimizer_bytes: all variables of the optimizer: slots, accumulated gradients, loss scale.
        embedding_bytes: the tables of embedding layers, which are among the weights.
        embedding_slots_bytes: their slots, which are among the optimizer's variables.
        reduced_bytes: the gradients that several replicas exchange.
        runtime_bytes: TensorFlow's graphs, threads and kernels in this process; 0 for accelerators.
        process_bytes: what the process takes before the model is built, libraries and data included; 0 for
            accelerators.
        device_bytes: memory of the device; None if unknown.
        head_room: the fraction of it that is to stay free.
        batches: by batch size, in ascending order.
        largest_replica_batch_size: the largest that fits; 0 if none does, None if unknown.
        largest_recomputed_replica_batch_size: the same with recomputed activations.
        notes: what the estimate does not cover.

    Raises:
        PlanError: without batches.

    Example:
        >>> batch = BatchMemory(replica_batch_size=8, input_bytes=0, activations_bytes=80, temporaries_bytes=0,
        ...     recomputed_activations_bytes=20, num_segments=4, total_bytes=100)
        >>> estimate = MemoryEstimate(workload="made_up", device="GPU:0", optimizer="sgd", num_parameters=1,
        ...     weights_bytes=4, gradients_bytes=4, optimizer_bytes=0, batches=(batch,), device_bytes=1000)
        >>> estimate.total_bytes(8), estimate.fits(8), MemoryEstimate.from_json(estimate.to_json()) == estimate
        (100, True, True)
    """

    workload: str
    device: str
    num_replicas: int = 1
    dtype_policy: str = "float32"
    optimizer: str
    accumulation_steps: int = 1
    num_parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    embedding_bytes: int = 0
    embedding_slots_bytes: int = 0
    reduced_bytes: int = 0
    runtime_bytes: int = 0
    process_bytes: int = 0
    device_bytes: int | None = None
    head_room: float = 0.1
    batches: tuple[BatchMemory, ...]
    largest_replica_batch_size: int | None = None
    largest_recomputed_replica_batch_size: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", tuple(sorted(self.batches, key=lambda one: one.replica_batch_size)))
        if not self.batches:
            raise PlanError("A memory estimate needs at least one batch size. Received: batches=().")

    @property
    def training_bytes(self) -> dict[int, int]:
        """Replica batch size -> bytes of training alone, without the process that trains."""
        return {one.replica_batch_size: one.total_bytes - self.process_bytes for one in self.batches}

    @property
    def usable_bytes(self) -> int | None:
        """Memory of the device without head-room; None if unknown."""
        return None if self.device_bytes is None else int(self.device_bytes * (1 - self.head_room))

    def total_bytes(self, replica_batch_size: int) -> int:
        """The total for a batch size: linear between the two nearest of `batches`, or beyond the last two."""
        known = {one.replica_batch_size: one.total_bytes for one in self.batches}
        if replica_batch_size in known or len(known) == 1:
            return known.get(replica_batch_size, next(iter(known.values())))
        sizes = list(known)
        above = next((index for index, size in enumerate(sizes) if size > replica_batch_size), len(sizes) - 1)
        low, high = sizes[max(0, above - 1)], sizes[max(1, above)]
        slope = (known[high] - known[low]) / (high - low)
        return max(0, round(known[low] + slope * (replica_batch_size - low)))

    def fits(self, replica_batch_size: int) -> bool | None:
        """Whether a batch size fits into the device's memory with head-room; None if that is unknown."""
        return None if self.usable_bytes is None else self.total_bytes(replica_batch_size) <= self.usable_bytes

    def rows(self) -> list[list[str]]:
        """A table with a row for each batch size; `HEADINGS` are its columns."""
        rows = []
        for one in self.batches:
            kept = (one.input_bytes, one.activations_bytes, one.temporaries_bytes, one.total_bytes)
            recomputed = (one.recomputed_activations_bytes, one.recomputed_total_bytes)
            fits = _FITS[self.fits(one.replica_batch_size)]
            rows.append([f"{one.replica_batch_size:,}", *map(mebibytes, (*kept, *recomputed)), fits])
        return rows


def mebibytes(num_bytes: int) -> str:
    """A number of bytes as text.

    Example:
        >>> mebibytes(3 * 2**20)
        '3.0 MiB'
    """
    number = num_bytes / 2**20
    return f"{number:,.1f} MiB" if number < 100 else f"{number:,.0f} MiB"


@dataclass(frozen=True, kw_only=True)
class WayToSave(Record):
    """The bytes of a device under one plan field.

    Args:
        field: the plan field and its value, such as "optimizer_state=sharded"; "as planned" for none.
        weights_bytes, gradients_bytes, optimizer_bytes, activations_bytes: what it has of each.
        total_bytes: everything on the device.
        saved_bytes: what that is below the plan's.
        fits: whether it fits, with head-room; None if the device's memory is unknown.
        remark: what it needs or costs.
    """

    field: str
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    total_bytes: int
    saved_bytes: int
    fits: bool | None
    remark: str = ""

    def row(self) -> list[str]:
        """The cells of a table whose columns are `SAVING_HEADINGS`."""
        numbers = (self.weights_bytes, self.gradients_bytes, self.optimizer_bytes, self.activations_bytes)
        saved = "" if self.field == _AS_PLANNED else mebibytes(self.saved_bytes)
        return [self.field, *map(mebibytes, numbers), mebibytes(self.total_bytes), saved, _FITS[self.fits], self.remark]


def ways_to_save(
    estimate: MemoryEstimate, *, replica_batch_size: int, num_devices: int, stages: Sequence[int] = ()
) -> tuple[WayToSave, ...]:
    """What each plan field that saves memory leaves on each of several accelerators.

    Gradients are counted as if all were in memory at once, which they need not be.

    Args:
        estimate: the estimate for one replica on one device.
        replica_batch_size: one of the estimate's batch sizes.
        num_devices: how many devices there are.
        stages: numbers of pipeline stages; empty for one on each device.

    Example:
        >>> batch = BatchMemory(replica_batch_size=8, input_bytes=0, activations_bytes=80, temporaries_bytes=0,
        ...     recomputed_activations_bytes=20, num_segments=4, total_bytes=200)
        >>> estimate = MemoryEstimate(workload="made_up", device="GPU:0", optimizer="adam", num_parameters=10,
        ...     weights_bytes=40, gradients_bytes=40, optimizer_bytes=80, batches=(batch,))
        >>> ways = ways_to_save(estimate, replica_batch_size=8, num_devices=8)
        >>> [(way.field, way.saved_bytes) for way in ways][1:3]
        [('optimizer_state=sharded', 70), ('optimizer_state=host', 80)]
    """
    batch = next(one for one in estimate.batches if one.replica_batch_size == replica_batch_size)
    weights, gradients = estimate.weights_bytes, estimate.gradients_bytes
    slots, activations = estimate.optimizer_bytes, batch.activations_bytes

    def way(field: str, kept: tuple[float, float, float, float], remark: str = "") -> WayToSave:
        parts = [round(part) for part in kept]
        freed = batch.temporaries_bytes - round(batch.temporaries_bytes * (parts[1] / gradients if gradients else 1))
        saved = weights - parts[0] + slots - parts[2] + activations - parts[3] + freed
        total = batch.total_bytes - saved
        usable = estimate.usable_bytes
        return WayToSave(
            field=field,
            weights_bytes=parts[0],
            gradients_bytes=parts[1],
            optimizer_bytes=parts[2],
            activations_bytes=parts[3],
            total_bytes=total,
            saved_bytes=saved,
            fits=None if usable is None else total <= usable,
            remark=remark,
        )

    ways = [way(_AS_PLANNED, (weights, gradients, slots, activations))]
    kept: tuple[float, float, float, float]
    if num_devices > 1:
        kept = (weights, gradients, slots / num_devices, activations)
        ways.append(way("optimizer_state=sharded", kept, f"{num_devices} replicas"))
    ways.append(way("optimizer_state=host", (weights, gradients, 0, activations), "gradients and weights are copied"))
    for number in stages or ((num_devices,) if num_devices > 1 else ()):
        kept = (weights / number, gradients / number, slots / number, activations / number)
        ways.append(way(f"{STAGES}={number}", kept, "if all stages are of one size"))
    if estimate.embedding_bytes:
        tables, own_slots = estimate.embedding_bytes, estimate.embedding_slots_bytes
        kept = (weights - tables, gradients - tables, slots - own_slots, activations)
        ways.append(way("embeddings_on=host", kept, "with embedding_updates=rows"))
    kept = (weights, gradients, slots, batch.recomputed_activations_bytes)
    ways.append(way("rematerialization=true", kept, "computes the forward pass twice"))
    return tuple(ways)
