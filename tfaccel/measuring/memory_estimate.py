"""The noun `MemoryEstimate`: the memory that training takes, by batch size, without training."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfaccel.errors import PlanError
from tfaccel.records import SavedRecord
from tfaccel.short_repr import short_repr

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


@short_repr
@dataclass(frozen=True, kw_only=True)
class BatchMemory:
    """The memory that training with one batch size takes on a device.

    Args:
        replica_batch_size: examples per optimizer step and replica.
        input_bytes: batches in memory: the one in use, and those that the input pipeline prepares.
        activations_bytes: values of the forward pass that the backward pass needs, of all micro-batches that are in
            memory at once.
        temporaries_bytes: everything else at the peak: gradients, values that are soon freed, and holes between
            tensors.
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


@short_repr
@dataclass(frozen=True, kw_only=True)
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
        gradients_bytes: gradients of all trainable variables. They need not all be in memory at once.
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
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", tuple(sorted(self.batches, key=lambda one: one.replica_batch_size)))
        object.__setattr__(self, "notes", tuple(self.notes))
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
        return [
            [
                f"{one.replica_batch_size:,}",
                *(
                    mebibytes(number)
                    for number in (
                        one.input_bytes,
                        one.activations_bytes,
                        one.temporaries_bytes,
                        one.total_bytes,
                        one.recomputed_activations_bytes,
                        one.recomputed_total_bytes,
                    )
                ),
                {True: "yes", False: "no", None: ""}[self.fits(one.replica_batch_size)],
            ]
            for one in self.batches
        ]


def mebibytes(num_bytes: int) -> str:
    """A number of bytes as text.

    Example:
        >>> mebibytes(3 * 2**20)
        '3.0 MiB'
    """
    number = num_bytes / 2**20
    return f"{number:,.1f} MiB" if number < 100 else f"{number:,.0f} MiB"
