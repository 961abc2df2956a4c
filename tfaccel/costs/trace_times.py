"""Times of a step's layers, from the profiler's trace of steps whose layers were marked by name scopes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from tfaccel.costs.graph_costs import row_of_name
from tfaccel.costs.graph_operations import BRANCHES, CALLS, LOOPS
from tfaccel.costs.model_cost import HOST, LOSS, OPTIMIZER, OTHER

_OPERATION = re.compile(r"([A-Za-z0-9.][\w./\\-]*):(\w+)")


def layer_seconds(
    events: Iterable[tuple[str, float, float]],
    layers: Mapping[int, str],
    *,
    optimizers: tuple[str, ...] = (),
    total_seconds: float,
) -> dict[str, float]:
    """Divides the time of some steps among the layers, the optimizer, the loss, other operations and the host.

    The host has the time in which no operation ran. The rest is divided in proportion to the times of the operations,
    since several may run at once.

    Args:
        events: names, starts and ends, in seconds; operations are named "name:type", and other events are left out.
        layers: number of each layer's name scope (`layer_scope`) -> its name.
        optimizers: names of the optimizers.
        total_seconds: the time that is divided.

    Returns:
        Row -> seconds; their sum is `total_seconds`. Empty if no operation was found.

    Example:
        >>> events = [("tfaccel_layer.1/MatMul:MatMul", 0.0, 0.3), ("adam/Mul:Mul", 0.5, 0.6), ("Start", 0.0, 1.0)]
        >>> found = layer_seconds(events, {1: "dense"}, optimizers=("adam",), total_seconds=1.0)
        >>> {name: round(seconds, 3) for name, seconds in found.items()}
        {'dense': 0.3, 'optimizer': 0.1, 'host': 0.6}
    """
    busy: dict[int | str, float] = {}
    spans = []
    for name, start, end in events:
        found = _OPERATION.fullmatch(name)
        if found and found[2] not in (*CALLS, *LOOPS, *BRANCHES):  # those last as long as the operations in them
            row = row_of_name(found[1], optimizers)
            row = OTHER if row is None else row
            busy[row] = busy.get(row, 0.0) + end - start
            spans.append((start, end))
    if not spans:
        return {}
    covered = min(_covered(spans), total_seconds)
    share = covered / sum(busy.values())
    found_rows = {layers[row] if isinstance(row, int) else row: share * busy[row] for row in _in_order(busy)}
    return {**found_rows, HOST: total_seconds - covered}


def _in_order(rows: Collection[int | str]) -> list[int | str]:
    """Layers by their number, then the other rows."""
    numbers = sorted(row for row in rows if isinstance(row, int))
    return [*numbers, *(row for row in (OPTIMIZER, LOSS, OTHER) if row in rows)]


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of some time spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
