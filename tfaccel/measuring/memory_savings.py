"""The memory of each device under the plan fields that save some: a calculation from an estimate for one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfaccel.measuring.memory_estimate import MemoryEstimate, mebibytes
from tfaccel.planning.placements import STAGES
from tfaccel.records import Record

HEADINGS = ("plan field", "weights", "gradients", "optimizer state", "activations", "total", "saves", "fits", "")
_AS_PLANNED = "as planned"


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
        """The cells of a table whose columns are `HEADINGS`."""
        numbers = (self.weights_bytes, self.gradients_bytes, self.optimizer_bytes, self.activations_bytes)
        saved = "" if self.field == _AS_PLANNED else mebibytes(self.saved_bytes)
        fits = {True: "yes", False: "no", None: ""}[self.fits]
        return [self.field, *map(mebibytes, numbers), mebibytes(self.total_bytes), saved, fits, self.remark]


def ways_to_save(
    estimate: MemoryEstimate, *, replica_batch_size: int, num_devices: int, stages: Sequence[int] = ()
) -> tuple[WayToSave, ...]:
    """What each plan field that saves memory leaves on each of several accelerators.

    Gradients are counted as if all were in memory at once, which they need not be: the total has those that are.

    Args:
        estimate: the estimate for one replica on one device.
        replica_batch_size: one of the estimate's batch sizes.
        num_devices: how many devices there are.
        stages: numbers of pipeline stages; empty for one on each device.

    Example:
        >>> from tfaccel.measuring.memory_estimate import BatchMemory
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
