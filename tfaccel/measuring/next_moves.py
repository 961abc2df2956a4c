"""Which moves a search tries next: two at once where time is short, and some once more after a gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfaccel.planning.moves import Move, both, get_fields
from tfaccel.planning.plan import Plan

# A gain on one axis may change what another is worth.
_COUPLED = {"precision": "XLA", "XLA": "precision", "threads": "Grappler", "kernels": "oneDNN"}
_SMALL_GAIN = 1.2  # after which the reverse is worth a try
_SAFE = ("precision", "oneDNN", "kernels")  # axes that seldom lose


def at_once(plan: Plan, first_two: Sequence[Move]) -> tuple[Move, Plan] | None:
    """Two moves as one, with its plan, if both are likely to pay; else None.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> onednn, kernels = Move("oneDNN", (("onednn", True),)), Move("kernels", (("fused_kernels", True),))
        >>> at_once(plan, [onednn, kernels])[0].axis, at_once(plan, [kernels, Move("XLA", (("jit_compile", True),))])
        ('oneDNN and kernels', None)
    """
    moved = [one.applied_to(plan) for one in first_two]
    if len(moved) < 2 or None in moved or any(one.axis not in _SAFE for one in first_two):
        return None
    combined = both(*first_two)
    changed = combined.applied_to(plan)
    return None if changed is None else (combined, changed)


def tried_again(axis: str, lost: Sequence[Move], gains: Mapping[str, float], first: Plan) -> list[Move]:
    """Moves to try again after a gain, along the coupled axis: those that lost, and the reverse of a small gain.

    Args:
        axis: of the move that won.
        lost: the moves that lost before.
        gains: axis -> its gain so far.
        first: the plan that the search began with.

    Example:
        >>> first = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> tried_again("kernels", [Move("oneDNN", (("onednn", True),))], {}, first)
        [Move(axis='oneDNN', changes=(('onednn', True),))]
        >>> tried_again("kernels", [], {"oneDNN": 1.1}, first), tried_again("kernels", [], {"oneDNN": 1.6}, first)
        ([Move(axis='oneDNN', changes=(('onednn', None),))], [])
    """
    coupled = _COUPLED.get(axis, "")
    again = [one for one in lost if one.axis == coupled]
    if gains.get(coupled, _SMALL_GAIN) < _SMALL_GAIN:
        again.append(Move(coupled, tuple((name, getattr(first, name)) for name in get_fields(coupled))))
    return again
