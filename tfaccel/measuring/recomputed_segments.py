"""What recomputing activations would leave of them: layers in groups, of which each keeps only what goes in."""

from __future__ import annotations

from dataclasses import dataclass

from tfaccel.measuring.ready_operations import SHARE_INPUT
from tfaccel.measuring.step_program import StepProgram
from tfaccel.measuring.step_simulation import StepMemoryUse


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
