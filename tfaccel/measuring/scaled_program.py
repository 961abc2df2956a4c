"""The program of a training step for any batch size, from the programs of two batch sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfaccel.measuring.step_program import Node, Shape, StepProgram, TensorSize


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
