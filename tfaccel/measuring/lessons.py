"""What earlier searches on this machine teach a new one: which moves paid, and so come first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.report import Candidate, Report
from tfaccel.planning.moves import Move, axes_of
from tfaccel.planning.plan_cache import read_kept

_PAYS = 1.1  # a gain that is likely for other models as well
_EXPECTED = 0.2  # logarithm of the first move's gain, of the second's half of it, of the third's a third, unless known


class Lessons:
    """The gains of moves in other searches on this machine with these versions.

    Args:
        candidates: what they measured.
        num_searches: how many there were.

    Example:
        >>> from tfaccel.planning.plan import Plan
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, fused_kernels=True)
        >>> lessons = Lessons([Candidate(plan=plan, axis="kernels", speedup=1.5)], 1)
        >>> compiled, fused = Move("XLA", (("jit_compile", True),)), Move("kernels", (("fused_kernels", True),))
        >>> [move.axis for move in lessons.ordered([compiled, fused])], lessons.pays(fused), lessons.pays(compiled)
        (['kernels', 'XLA'], True, False)
    """

    def __init__(self, candidates: Sequence[Candidate], num_searches: int) -> None:
        self.num_searches = num_searches
        self._candidates = [one for one in candidates if one.speedup]

    @classmethod
    def of(cls, hardware: Hardware) -> Self:
        """Those of the plans that are kept for this machine and these versions; damaged files are left out."""
        reports = read_kept(hardware, lambda entry: Report.from_json(entry["report"]))
        return cls([one for report in reports for one in report.candidates], len(reports))

    def _logs(self, move: Move) -> list[float]:
        """The logarithms of its gains; two moves at once have half of theirs each."""
        found = []
        for one in self._candidates:
            axes = axes_of(one.axis)
            if move.axis in axes and all(getattr(one.plan, name) == value for name, value in move.changes):
                found.append(math.log(one.speedup or 1.0) / len(axes))
        return found

    def pays(self, move: Move) -> bool:
        """Whether the move has made other models clearly faster."""
        logs = self._logs(move)
        return bool(logs) and sum(logs) / len(logs) > math.log(_PAYS)

    def ordered(self, moves: Sequence[Move]) -> list[Move]:
        """The moves, those first whose gain is expected to be largest, by the rules' guess and the gains.

        Moves that are doubtful for this model come last, whatever they gained for others.
        """

        def expected(place: int) -> float:
            logs = self._logs(moves[place])
            return (_EXPECTED / (1 + place) + sum(logs)) / (1 + len(logs))

        places = sorted(range(len(moves)), key=lambda place: (moves[place].is_doubtful, -expected(place)))
        return [moves[place] for place in places]
