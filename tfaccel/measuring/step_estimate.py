"""The memory estimate of a workload under a plan, in the process that traces its training step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfaccel.errors import PlanError
from tfaccel.measuring.candidate_program import resident_bytes
from tfaccel.measuring.memory_estimate import BatchMemory, MemoryEstimate
from tfaccel.measuring.step_program import Node, StepProgram
from tfaccel.measuring.step_simulation import SHARE_INPUT, StepMemoryUse, simulate
from tfaccel.measuring.traced_step import TracedStep, traced_step
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import Runtime

# Of TensorFlow itself in a CPU process, whatever the batch size: measured on models of 300 to 4,000 operations.
_RUNTIME_BYTES, _RUNTIME_BYTES_PER_OPERATION = 45_000_000, 25_000
# A matrix product copies blocks of its operands; threads keep the memory for them.
_BLOCK_BYTES, _NUM_BLOCKS = 8 << 20, 8
_MAX_REPLICA_BATCH_SIZE, _MAX_TRIES = 1 << 24, 16


def estimate_here(
    workload: Workload,
    plan: Plan,
    *,
    batch_sizes: Sequence[int] = (),
    device_bytes: int | None = None,
    head_room: float = 0.1,
) -> MemoryEstimate:
    """Estimates in this process, whose TensorFlow then runs on the CPU only.

    Args:
        workload, plan: what is trained, and how; the devices need not be there.
        batch_sizes: replica batch sizes; empty for the plan's, half of it, and twice it.
        device_bytes: memory of a device; None if unknown.
        head_room: the fraction of it that is to stay free.

    Raises:
        PlanError: for a batch size that the micro-batches do not divide, or that the model does not accept.
        WorkloadError: if the model does not accept the data.
    """
    alone = Plan(
        strategy="none",
        devices=("CPU:0",),
        dtype_policy=plan.dtype_policy,
        global_batch_size=plan.replica_batch_size,
        accumulation_steps=plan.accumulation_steps,
        sum_duplicate_indices=plan.sum_duplicate_indices,
        embedding_updates=plan.embedding_updates,
        fused_kernels=plan.fused_kernels,
        rematerialization=plan.rematerialization,
    )
    with Runtime(alone, seed=0):
        next(iter(workload.train_data(workload.global_batch_size, seed=0, epoch=0)))
        process_bytes = resident_bytes()
        step = traced_step(workload, alone)
    sizes = _Sizes(plan, step, process_bytes if plan.devices[0].startswith("CPU") else 0)
    return sizes.estimate(workload.name, batch_sizes, device_bytes, head_room)


class _Sizes:
    """The memory of a traced step, by batch size."""

    def __init__(self, plan: Plan, step: TracedStep, process_bytes: int) -> None:
        self._plan, self._step, self._process_bytes = plan, step, process_bytes
        self._on_cpu = plan.devices[0].startswith("CPU")
        self._num_replicas = plan.num_local_replicas if self._on_cpu else 1
        self._program = step.sizes.of(plan.micro_batch_size)
        self._num_unknown = 0
        self._known: list[int] = []
        self._recomputed: dict[int, int] = {}

    @property
    def _reduced_bytes(self) -> int:
        return self._step.gradients_bytes * self._num_replicas if self._plan.num_replicas > 1 else 0

    @property
    def _optimizer_bytes(self) -> int:
        """What the optimizer takes on the device for each replica; accumulated gradients are never elsewhere."""
        plan = self._plan
        accumulated = self._step.gradients_bytes if plan.accumulation_steps > 1 else 0
        slots = max(0, self._step.optimizer_bytes - accumulated)
        if plan.optimizer_state == "sharded":
            slots //= plan.num_replicas
        elif plan.optimizer_state == "host":
            slots = slots // plan.num_local_replicas if self._on_cpu else 0
        return min(self._step.optimizer_bytes, accumulated + slots)

    @functools.cached_property
    def _runtime_bytes(self) -> int:
        if not self._on_cpu:
            return 0
        operands = (node.given[1].num_bytes or 0 for node in _products(self._program))
        blocks = _NUM_BLOCKS * min(_BLOCK_BYTES, max(operands, default=0))
        return _RUNTIME_BYTES + _RUNTIME_BYTES_PER_OPERATION * self._program.num_operations + blocks

    @functools.lru_cache  # noqa: B019
    def batch(self, replica_batch_size: int) -> BatchMemory:
        """The memory for a batch size."""
        self._known.append(replica_batch_size)
        micro_batch_size = replica_batch_size // self._plan.accumulation_steps
        program = self._step.sizes.of(micro_batch_size)
        use = simulate(program)
        self._num_unknown = max(self._num_unknown, use.num_unknown)
        recomputed = recomputation(program, use)
        num, step = self._num_replicas, self._step
        activations = num * sum(num_bytes for _, num_bytes in use.activations)
        variables = num * (step.weights_bytes + self._optimizer_bytes)
        in_tensors = num * (use.resident_bytes if self._on_cpu else use.peak_bytes)
        in_tensors -= num * (step.optimizer_bytes - self._optimizer_bytes)
        in_tensors = max(in_tensors, variables + activations)
        # The pipeline prepares one batch more than it prefetches; on an accelerator, only batches in use count.
        num_batches = self._plan.prefetch_batches + 2 if self._on_cpu else 1 + self._plan.prefetch_to_device
        inputs = round(num_batches * num * micro_batch_size * step.example_bytes)
        return BatchMemory(
            replica_batch_size=replica_batch_size,
            input_bytes=inputs,
            activations_bytes=activations,
            temporaries_bytes=in_tensors - variables - activations,
            recomputed_activations_bytes=num * recomputed.activations_bytes,
            num_segments=recomputed.num_segments,
            total_bytes=in_tensors + inputs + self._reduced_bytes + self._runtime_bytes + self._process_bytes,
        )

    def estimate(
        self, name: str, batch_sizes: Sequence[int], device_bytes: int | None, head_room: float
    ) -> MemoryEstimate:
        """The estimate for these batch sizes, and for the largest that fits."""
        plan, step = self._plan, self._step
        sizes = [plan.replica_batch_size, *(batch_sizes or self._nearby())]
        batches = [self.batch(self._checked(size)) for size in dict.fromkeys(sizes)]
        usable = None if device_bytes is None else int(device_bytes * (1 - head_room))
        largest = [self._largest(usable, recomputed=recomputed) for recomputed in (False, True)]
        batches += [self.batch(largest[0])] if largest[0] and largest[0] not in sizes else []
        return MemoryEstimate(
            workload=name,
            device=plan.devices[0],
            num_replicas=self._num_replicas,
            dtype_policy=plan.dtype_policy,
            optimizer=step.optimizer,
            accumulation_steps=plan.accumulation_steps,
            num_parameters=step.num_parameters,
            weights_bytes=self._num_replicas * step.weights_bytes,
            gradients_bytes=self._num_replicas * step.gradients_bytes,
            optimizer_bytes=self._num_replicas * self._optimizer_bytes,
            embedding_bytes=self._num_replicas * step.embedding_bytes,
            embedding_slots_bytes=self._num_replicas * step.embedding_slots_bytes,
            reduced_bytes=self._reduced_bytes,
            runtime_bytes=self._runtime_bytes,
            process_bytes=self._process_bytes,
            device_bytes=device_bytes,
            head_room=head_room,
            batches=tuple(batches),
            largest_replica_batch_size=largest[0],
            largest_recomputed_replica_batch_size=largest[1],
            notes=tuple(self._notes()),
        )

    def _nearby(self) -> list[int]:
        if not self._step.sizes.has_any_size:
            return []
        size, steps = self._plan.replica_batch_size, self._plan.accumulation_steps
        return [*([size // 2] if size // 2 % steps == 0 and size >= 2 * steps else []), 2 * size]

    def _checked(self, size: int) -> int:
        steps = self._plan.accumulation_steps
        if size < 1 or size % steps:
            raise PlanError(
                f"A replica batch size must be at least 1, and divisible by accumulation_steps. Received: {size}, "
                f"accumulation_steps={steps}."
            )
        if not self._step.sizes.has_any_size and size // steps not in self._step.sizes.programs:
            raise PlanError(
                f"The training step cannot be traced for batches of {2 * self._plan.micro_batch_size} rows, or is "
                f"another one then: only {self._plan.replica_batch_size} rows can be estimated. Received: {size}."
            )
        return size

    def _largest(self, usable: int | None, *, recomputed: bool) -> int | None:
        """The largest batch size that fits; 0 if none does, None if unknown."""
        if usable is None or not self._step.sizes.has_any_size:
            return None

        steps = self._plan.accumulation_steps

        def needed(size: int) -> int:
            if not recomputed:
                return self.batch(size * steps).total_bytes
            return _on_line(self._recomputed, size * steps)

        self._recomputed = {size: self.batch(size).recomputed_total_bytes for size in (steps, *self._known)}
        if needed(1) > usable:
            return 0
        largest = largest_within(needed, usable, first=max(2, self._plan.micro_batch_size))
        return largest * steps

    def _notes(self) -> list[str]:
        notes = []
        if self._plan.devices_per_replica > 1:
            notes.append(
                f"This is for the whole model on one device; its {self._plan.devices_per_replica} stages share it."
            )
        if self._plan.jit_compile:
            notes.append("XLA fuses operations: with it, training takes less memory than this estimate.")
        if not self._on_cpu:
            notes.append("The step is traced on the CPU; memory that cuDNN's kernels take for themselves is not known.")
        if self._num_unknown:
            notes.append(f"The shapes of {self._num_unknown} operations depend on data; their inputs' size is assumed.")
        if not self._step.sizes.has_any_size:
            notes.append("The model takes no other batch size, so the largest that fits is not known.")
        return notes


def largest_within(needed: Callable[[int], int], usable: int, *, first: int) -> int:
    """The largest number, to within 1 %, for which not more than the usable bytes are needed; it grows with the number.

    Args:
        needed: bytes for a number; few calls are made, since each may take seconds.
        usable: the limit, which 1 meets.
        first: the number to begin with.

    Example:
        >>> largest_within(lambda number: 50 + 3 * number, 350, first=8)
        100
    """
    low, high, guess = 1, _MAX_REPLICA_BATCH_SIZE, first
    for turn in range(_MAX_TRIES):
        if needed(guess) <= usable:
            low = guess
        else:
            high = guess
        if high - low <= max(1, low // 100):
            break
        # A line through two known numbers, aimed a little beyond the limit, or a little below, in turn.
        other = max(1, low // 2) if low > 1 else 2
        slope = (needed(low) - needed(other)) / (low - other)
        room = usable - needed(low)
        aim = low + int(room / slope * (1.004 if turn % 2 == 0 else 0.998)) if slope > 0 else 8 * low
        aimed = low < aim < high and turn % 4 < 3
        guess = aim if aimed else min((low + high) // 2, 8 * low + 1, high - 1)
    return low


def _on_line(known: dict[int, int], size: int) -> int:
    """A number on the line through those of the plan's size and of the largest; sizes that are near would mislead."""
    low, high = sorted(known)[len(known) > 2], max(known)  # the very smallest has another slope
    return round(known[low] + (known[high] - known[low]) * (size - low) / max(1, high - low))


def _products(program: StepProgram) -> list[Node]:
    """The matrix products of a program, those in loops included."""
    found = [node for node in program.nodes if node.multiplications and "MatMul" in node.kind]
    return found + [one for node in program.nodes if node.body is not None for one in _products(node.body)]


@dataclass(frozen=True)
class Recomputation:
    """Layers in groups that are recomputed in the backward pass, as with `keras.RematScope` or `tf.recompute_grad`.

    Args:
        activations_bytes: the values between the groups, and those inside the largest group.
        num_segments: number of groups.
    """

    activations_bytes: int
    num_segments: int


def recomputation(program: StepProgram, use: StepMemoryUse) -> Recomputation:
    """The division of consecutive layers into groups that leaves the fewest bytes of activations.

    Reference: Chen et al., "Training Deep Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174

    Args:
        program: the training step.
        use: what it takes, simulated.
    """
    order = _layers(program)
    inside = [0] * len(order)
    for maker, num_bytes in use.activations:
        inside[order.get(get_layer(maker), 0)] += num_bytes
    between = _bytes_between(program, order)
    total = sum(inside)
    best = Recomputation(total, 1)
    for number in range(1, len(inside) + 1):
        cuts, largest, current = [], 0, 0
        for index, num_bytes in enumerate(inside):
            if current and current + num_bytes > total / number:
                cuts.append(index - 1)
                current = 0
            current += num_bytes
            largest = max(largest, current)
        left = sum(between[cut] for cut in cuts) + largest
        if left < best.activations_bytes:
            best = Recomputation(left, len(cuts) + 1)
    return best


def get_layer(name: str) -> str:
    """The layer whose scope an operation is in: that of the outermost model.

    Example:
        >>> get_layer("sequential_1/dense_2_1/MatMul"), get_layer("Square")
        ('sequential_1/dense_2_1', '')
    """
    parts = name.split("/")
    return "/".join(parts[: min(2, len(parts) - 1)])


def _layers(program: StepProgram) -> dict[str, int]:
    """Layer -> position, in the order of the forward pass."""
    names = dict.fromkeys(get_layer(node.name) for node in program.nodes if not node.in_backward)
    return {name: index for index, name in enumerate(names or {"": None})}


def _bytes_between(program: StepProgram, order: dict[str, int]) -> list[int]:
    """For each layer, the bytes of values of it and earlier layers that later ones need in the forward pass."""
    made_in: dict[int, tuple[int, int]] = {}  # tensor -> (layer, bytes)
    shared: dict[int, int] = {}  # tensor -> the one whose memory it shares
    last: dict[int, int] = {}
    for node in program.nodes:
        if node.in_backward:
            continue
        place = order.get(get_layer(node.name), 0)
        for tensor in node.inputs:
            root = shared.get(tensor, tensor)
            last[root] = max(last.get(root, place), place)
        if node.kind in SHARE_INPUT and node.inputs:
            shared[node.outputs[0]] = shared.get(node.inputs[0], node.inputs[0])
        elif node.kind not in ("ReadVariableOp", "Const"):
            made_in |= {t: (place, size.num_bytes or 0) for t, size in zip(node.outputs, node.made, strict=True)}
    between = [0] * len(order)
    for tensor, (place, num_bytes) in made_in.items():
        for index in range(place, last.get(tensor, place)):
            between[index] += num_bytes
    return between
