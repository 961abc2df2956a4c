"""The memory estimate of a workload under a plan: a static sum, in the process that traces the training step.

At the peak, a step has its variables, the gradients, the values of the forward pass that the backward pass reads, one
value more, the largest, and those that the backward pass recomputes of one block. Nothing is simulated: when a tensor
is freed, and where the allocator puts it, is not known.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.hardware.cpu import resident_bytes
from tfaccel.measuring.memory_estimate import BatchMemory, MemoryEstimate
from tfaccel.measuring.step_values import STRING_BYTES, StepValue, StepValues, read_values
from tfaccel.measuring.workload_task import answered, load_task
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.kernels.fused_kernels import fused_kernels
from tfaccel.training.private.private_slots import get_slots, knows
from tfaccel.training.run.session import built_model
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.chunked_logits import logits_in_chunks
from tfaccel.training.steps.embeddings import get_embeddings
from tfaccel.training.steps.marked_layers import with_rows
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.rematerialized import recomputed_blocks

# Of TensorFlow itself in a CPU process, whatever the batch size: measured on models of 300 to 4,000 operations.
_RUNTIME_BYTES, _RUNTIME_BYTES_PER_OPERATION = 45_000_000, 25_000
# A matrix product copies blocks of its operands; threads keep the memory for them.
_BLOCK_BYTES, _NUM_BLOCKS = 8 << 20, 8
_MAX_MICRO_BATCH_SIZE = 1 << 24


def main(connection: Connection, arguments: list[str]) -> int:
    """Estimates once, and sends the estimate to the parent; returns the exit status."""
    return answered(connection, _estimate)


def _estimate(connection: Connection, task: dict[str, Any]) -> None:
    estimate = estimate_here(load_task(task), Plan.from_json(task["plan"]), **task["estimate"])
    connection.send({"event": "estimated", "estimate": estimate.to_json()})


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
        fused_kernels=plan.fused_kernels and not plan.jit_compile,
        rematerialization=plan.rematerialization,
        logit_chunks=plan.logit_chunks,
    )
    with Runtime(alone, seed=0):
        batch = next(iter(workload.train_data(workload.global_batch_size, seed=0, epoch=0)))
        process_bytes = resident_bytes()
        step = _TracedStep(workload, alone, batch)
    sizes = _Sizes(plan, step, process_bytes if plan.devices[0].startswith("CPU") else 0)
    return sizes.estimate(workload.name, batch_sizes, device_bytes, head_room)


class _TracedStep:
    """A training step on one replica, traced for the plan's micro-batch size and for larger ones, without training.

    A model that accepts no other batch size is traced for the plan's alone.

    Attributes:
        traces: batch size -> the values of the step that was traced for it.
        optimizer: the name of the optimizer's class.
        num_parameters: trainable parameters.
        weights_bytes, gradients_bytes, optimizer_bytes, embedding_bytes, embedding_slots_bytes: as in `MemoryEstimate`.
        example_bytes: input of one example: x, y and sample weights.
    """

    def __init__(self, workload: Workload, plan: Plan, batch: Any) -> None:
        model = built_model(workload, plan, with_rows(batch, plan.micro_batch_size))
        step = tf.function(model.train_step, autograph=False)

        def read(size: int) -> StepValues:
            return read_values(step.get_concrete_function(with_rows(batch, size)).graph)

        with contextlib.ExitStack() as stack:  # as in `Engine`
            if plan.fused_kernels:
                stack.enter_context(fused_kernels(model))
            if plan.rematerialization:
                stack.enter_context(recomputed_blocks(model))
            if plan.logit_chunks > 1:
                stack.enter_context(logits_in_chunks(model, num_chunks=plan.logit_chunks, trains=False))
            self.traces = {plan.micro_batch_size: read(plan.micro_batch_size)}
            with contextlib.suppress(Exception):  # whatever a model with a fixed batch size raises
                for factor in (2, 4):  # small tensors may be made in another way
                    if not self.has_any_size:
                        self.traces[factor * plan.micro_batch_size] = read(factor * plan.micro_batch_size)
        optimizers = list(get_optimizers(model).values())
        tables = [layer.embeddings for layer in get_embeddings(model) if layer.trainable]
        inner = list(map(inner_optimizer, optimizers))
        slots = [get_slots(one, table) for one in inner for table in tables if knows(one, table)]
        leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
        self.optimizer = ", ".join(type(one).__name__ for one in inner) or "none"
        self.num_parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        self.weights_bytes = _count_bytes(model.variables)
        self.gradients_bytes = _count_bytes(model.trainable_variables)
        self.optimizer_bytes = _count_bytes(variable for one in optimizers for variable in one.variables)
        self.embedding_bytes = _count_bytes(tables)
        self.embedding_slots_bytes = _count_bytes(itertools.chain(*slots))
        self.example_bytes = sum(
            math.prod(leaf.shape) * (leaf.dtype.size or STRING_BYTES) / max(1, leaf.shape[0] or 1) for leaf in leaves
        )

    @property
    def has_any_size(self) -> bool:
        """Whether the values for any batch size can be derived: those of the last two differ only in their shapes."""
        last = list(self.traces.values())[-2:]
        return len(last) == 2 and last[0].is_like(last[1])

    def values(self, batch_size: int) -> StepValues:
        """The values for a batch size: one that was traced, or any, if `has_any_size`."""
        if batch_size in self.traces:
            return self.traces[batch_size]
        (first, small), (second, large) = list(self.traces.items())[-2:]
        return small.toward(large, (batch_size - first) / (second - first))


def _count_bytes(variables: Iterable[Any]) -> int:
    each = {id(one): math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in variables}
    return sum(each.values())


class _Sizes:
    """The memory of a traced step, by batch size."""

    def __init__(self, plan: Plan, step: _TracedStep, process_bytes: int) -> None:
        self._plan, self._step, self._process_bytes = plan, step, process_bytes
        self._on_cpu = plan.devices[0].startswith("CPU")
        self._num_replicas = plan.num_local_replicas if self._on_cpu else 1
        self._slots_divisor = 2 if plan.optimizer_slots_dtype == "bfloat16" else 1  # they are traced in float32
        self._reduced_bytes = step.gradients_bytes * self._num_replicas if plan.num_replicas > 1 else 0
        self._runtime_bytes = 0
        if self._on_cpu:
            values = step.values(plan.micro_batch_size)
            blocks = _NUM_BLOCKS * min(_BLOCK_BYTES, values.operand_bytes)
            self._runtime_bytes = _RUNTIME_BYTES + _RUNTIME_BYTES_PER_OPERATION * values.num_operations + blocks

    @property
    def _optimizer_bytes(self) -> int:
        """What the optimizer takes on the device for each replica; accumulated gradients are never elsewhere."""
        plan = self._plan
        accumulated = self._step.gradients_bytes if plan.accumulation_steps > 1 else 0
        slots = max(0, self._step.optimizer_bytes - accumulated) // self._slots_divisor
        if plan.optimizer_state == "sharded":
            slots //= plan.num_replicas
        elif plan.optimizer_state == "host":
            slots = slots // plan.num_local_replicas if self._on_cpu else 0
        return min(self._step.optimizer_bytes, accumulated + slots)

    @functools.lru_cache  # noqa: B019
    def batch(self, replica_batch_size: int) -> BatchMemory:
        """The memory for a batch size."""
        plan, step, num = self._plan, self._step, self._num_replicas
        micro_batch_size = replica_batch_size // plan.accumulation_steps
        values = step.values(micro_batch_size).values
        activations = num * sum(one.num_bytes for one in values if one.is_kept)
        temporaries = num * (step.gradients_bytes + temporary_bytes(values))
        recomputed, num_segments = recomputation(values)
        # The pipeline prepares one batch more than it prefetches; on an accelerator, only batches in use count.
        num_batches = plan.prefetch_batches + 2 if self._on_cpu else 1 + plan.prefetch_to_device
        inputs = round(num_batches * num * micro_batch_size * step.example_bytes)
        variables = num * (step.weights_bytes + self._optimizer_bytes)
        others = self._reduced_bytes + self._runtime_bytes + self._process_bytes
        return BatchMemory(
            replica_batch_size=replica_batch_size,
            input_bytes=inputs,
            activations_bytes=activations,
            temporaries_bytes=temporaries,
            recomputed_activations_bytes=num * recomputed,
            num_segments=num_segments,
            total_bytes=variables + activations + temporaries + inputs + others,
        )

    def estimate(
        self, name: str, batch_sizes: Sequence[int], device_bytes: int | None, head_room: float
    ) -> MemoryEstimate:
        """The estimate for these batch sizes, and for the largest that fits."""
        plan, step = self._plan, self._step
        sizes = [plan.replica_batch_size, *(batch_sizes or self._nearby())]
        batches = [self.batch(self._checked(size)) for size in dict.fromkeys(sizes)]
        usable = None if device_bytes is None else int(device_bytes * (1 - head_room))
        largest = [self._largest(usable, field) for field in ("total_bytes", "recomputed_total_bytes")]
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
            embedding_slots_bytes=self._num_replicas * step.embedding_slots_bytes // self._slots_divisor,
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
        if not self._step.has_any_size:
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
        if not self._step.has_any_size and size // steps not in self._step.traces:
            raise PlanError(
                f"The training step cannot be traced for batches of {2 * self._plan.micro_batch_size} rows, or is "
                f"another one then: only {self._plan.replica_batch_size} rows can be estimated. Received: {size}."
            )
        return size

    def _largest(self, usable: int | None, field: str) -> int | None:
        """The largest batch size that fits, by a field of `BatchMemory`; 0 if none does, None if unknown."""
        if usable is None or not self._step.has_any_size:
            return None
        steps = self._plan.accumulation_steps
        sizes = range(steps, steps * _MAX_MICRO_BATCH_SIZE, steps)
        return steps * bisect.bisect_right(sizes, usable, key=lambda size: getattr(self.batch(size), field))

    def _notes(self) -> list[str]:
        notes = []
        num_unknown = max(values.num_unknown for values in self._step.traces.values())
        if self._plan.devices_per_replica > 1:
            notes.append(
                f"This is for the whole model on one device; its {self._plan.devices_per_replica} stages share it."
            )
        if self._plan.jit_compile:
            notes.append("XLA fuses operations: with it, training takes less memory than this estimate.")
        if not self._on_cpu:
            notes.append("The step is traced on the CPU; memory that cuDNN's kernels take for themselves is not known.")
        if num_unknown:
            notes.append(f"The shapes of {num_unknown} operations depend on data; their inputs' size is assumed.")
        if not self._step.has_any_size:
            notes.append("The model takes no other batch size, so the largest that fits is not known.")
        return notes


def temporary_bytes(values: Iterable[StepValue]) -> int:
    """What a step has beside activations and gradients: its largest other value, and what one block recomputes."""
    largest, by_block = 0, collections.Counter[int]()
    for one in values:
        if one.block is not None:
            by_block[one.block] += one.num_bytes
        elif not one.is_kept:
            largest = max(largest, one.num_bytes)
    return largest + max(by_block.values(), default=0)


def recomputation(values: Sequence[StepValue]) -> tuple[int, int]:
    """The division of consecutive layers into groups that leaves the fewest bytes of activations, and their number.

    The groups are recomputed in the backward pass, as with `keras.RematScope` or `tf.recompute_grad`: the values
    between them stay, and those inside the largest.

    Reference: Chen et al., "Training Deep Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174
    """
    num_layers = 1 + max((one.last_layer for one in values), default=0)
    inside, between = [0] * num_layers, [0] * num_layers
    for one in values:
        inside[one.layer] += one.num_bytes * one.is_kept
        for layer in range(one.layer, one.last_layer):
            between[layer] += one.num_bytes
    total = sum(inside)
    best, num_segments = total, 1
    for number in range(1, num_layers + 1):
        cuts, largest, current = [], 0, 0
        for layer, num_bytes in enumerate(inside):
            if current and current + num_bytes > total / number:
                cuts.append(layer - 1)
                current = 0
            current += num_bytes
            largest = max(largest, current)
        left = sum(between[cut] for cut in cuts) + largest
        if left < best:
            best, num_segments = left, len(cuts) + 1
    return best, num_segments
