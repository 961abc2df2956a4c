"""The training step of a workload, traced for two batch sizes without training; its program for any batch size."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfaccel.measuring.step_program import Node, Shape, StepProgram, TensorSize, make_program
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.kernels.fused_kernels import fused_kernels
from tfaccel.training.private.private_slots import get_slots, knows
from tfaccel.training.run.session import built_model
from tfaccel.training.steps.embeddings import get_embeddings
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.rematerialized import recomputed_blocks


@dataclass(frozen=True)
class TracedStep:
    """A training step on one replica.

    Args:
        sizes: its program, by micro-batch size.
        optimizer: the name of the optimizer's class.
        num_parameters: trainable parameters.
        weights_bytes, gradients_bytes, optimizer_bytes, embedding_bytes, embedding_slots_bytes: as in `MemoryEstimate`.
        example_bytes: input of one example: x, y and sample weights.
    """

    sizes: TracedSizes
    optimizer: str
    num_parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    embedding_bytes: int
    embedding_slots_bytes: int
    example_bytes: float


def traced_step(workload: Workload, plan: Plan) -> TracedStep:
    """Builds the model and traces its training step, for the plan's micro-batch size and for larger ones.

    One batch of the data is read. A model that accepts no other batch size is traced for the plan's alone.

    Args:
        workload: the workload.
        plan: a plan for one replica on the CPU, whose runtime has been entered.

    Raises:
        WorkloadError: if the model does not accept the data.
    """
    batch = next(iter(workload.train_data(workload.global_batch_size, seed=0, epoch=0)))
    model = built_model(workload, plan, _spec(batch, plan.micro_batch_size))
    step = tf.function(model.train_step, autograph=False)
    programs = {}
    with contextlib.ExitStack() as stack:  # as in `Engine`
        if plan.fused_kernels:
            stack.enter_context(fused_kernels(model))
        if plan.rematerialization:
            stack.enter_context(recomputed_blocks(model))
        programs[plan.micro_batch_size] = _program(step, batch, plan.micro_batch_size)
        with contextlib.suppress(Exception):  # whatever a model with a fixed batch size raises
            for factor in (2, 4):  # small tensors may be made in another way
                if not TracedSizes(programs).has_any_size:
                    size = factor * plan.micro_batch_size
                    programs[size] = _program(step, batch, size)
    optimizers = list(get_optimizers(model).values())
    tables = [layer.embeddings for layer in get_embeddings(model) if layer.trainable]
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    return TracedStep(
        sizes=TracedSizes(programs),
        optimizer=", ".join(type(getattr(one, "inner_optimizer", one)).__name__ for one in optimizers) or "none",
        num_parameters=sum(math.prod(variable.shape) for variable in model.trainable_variables),
        weights_bytes=_count_bytes(model.variables),
        gradients_bytes=_count_bytes(model.trainable_variables),
        optimizer_bytes=_count_bytes(variable for one in optimizers for variable in one.variables),
        embedding_bytes=_count_bytes(tables),
        embedding_slots_bytes=_count_bytes(slot for one in optimizers for slot in _get_slots(one, tables)),
        example_bytes=sum(_bytes_of_tensor(leaf) / max(1, leaf.shape[0] or 1) for leaf in leaves),
    )


def _program(step: Any, batch: Any, batch_size: int) -> StepProgram:
    return make_program(step.get_concrete_function(_spec(batch, batch_size)).graph)


def _get_slots(optimizer: keras.optimizers.Optimizer, tables: Iterable[Any]) -> list[keras.Variable]:
    inner = inner_optimizer(optimizer)
    return [slot for table in tables if knows(inner, table) for slot in get_slots(inner, table)]


def _spec(batch: Any, batch_size: int) -> Any:
    return keras.tree.map_structure(
        lambda one: None if one is None else tf.TensorSpec((batch_size, *one.shape[1:]), one.dtype), batch
    )


def _count_bytes(variables: Iterable[Any]) -> int:
    each = {id(one): math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in variables}
    return sum(each.values())


def _bytes_of_tensor(tensor: Any) -> int:
    size = tensor.dtype.size or 24  # a string
    return int(math.prod(tensor.shape) * size)


@dataclass(frozen=True)
class TracedSizes:
    """The same step, traced for one or more batch sizes.

    Args:
        programs: batch size -> program.
    """

    programs: dict[int, StepProgram]

    @property
    def has_any_size(self) -> bool:
        """Whether the program of any batch size can be derived: the last two differ only in their shapes."""
        if len(self.programs) < 2:
            return False
        small, large = list(self.programs.values())[-2:]
        return are_alike(small, large)

    def of(self, batch_size: int) -> StepProgram:
        """The program for a batch size.

        Raises:
            KeyError: for a size that was not traced, unless `has_any_size`.
        """
        if batch_size in self.programs:
            return self.programs[batch_size]
        if not self.has_any_size:
            raise KeyError(batch_size)
        (first, small), (second, large) = list(self.programs.items())[-2:]
        return _between(small, large, (batch_size - first) / (second - first))


def are_alike(some: StepProgram, others: StepProgram) -> bool:
    """Whether two programs have the same operations, with shapes of the same ranks."""
    return some.followers == others.followers and all(
        a.kind == b.kind
        and [_rank(size) for size in a.made] == [_rank(size) for size in b.made]
        and (a.body is None or b.body is None or are_alike(a.body, b.body))
        for a, b in zip(some.nodes, others.nodes, strict=True)
    )


def _rank(size: TensorSize) -> int:
    return -1 if size.shape is None else len(size.shape)


def _between(small: StepProgram, large: StepProgram, part: float) -> StepProgram:
    sizes = zip(small.argument_sizes, large.argument_sizes, strict=True)
    captured = {index: _size(size, large.captured[index], part) for index, size in small.captured.items()}
    return replace(
        small,
        nodes=tuple(_node(a, b, part) for a, b in zip(small.nodes, large.nodes, strict=True)),
        argument_sizes=tuple(_size(a, b, part) for a, b in sizes),
        captured=captured,
    )


def _node(small: Node, large: Node, part: float) -> Node:
    if small == large:
        return small
    known = small.body is not None and large.body is not None
    return replace(
        small,
        given=tuple(_size(a, b, part) for a, b in zip(small.given, large.given, strict=True)),
        made=tuple(_size(a, b, part) for a, b in zip(small.made, large.made, strict=True)),
        multiplications=max(0, _number(small.multiplications, large.multiplications, part)),
        body=_between(small.body, large.body, part) if known else None,  # type: ignore[arg-type]
        turns=None if small.turns is None or large.turns is None else _number(small.turns, large.turns, part),
        length=_number(small.length, large.length, part),
    )


def _size(small: TensorSize, large: TensorSize, part: float) -> TensorSize:
    return small if small.shape == large.shape else replace(small, shape=_shape(small.shape, large.shape, part))


def _shape(small: Shape, large: Shape, part: float) -> Shape:
    """Each dimension on its own, since a tensor may have the batch in two of them."""
    if small is None or large is None:
        return None
    return tuple(
        None if a is None or b is None else max(0, _number(a, b, part)) for a, b in zip(small, large, strict=True)
    )


def _number(small: int, large: int, part: float) -> int:
    return small if small == large else round(small + (large - small) * part)
