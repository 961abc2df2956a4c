"""The memory of the plans that a search measures: how much each may take, and which need too much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.hardware.cpu import free_memory_bytes
from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.measuring.candidate_servers import CandidateServers
from tfaccel.measuring.estimate_memory import estimated_memory
from tfaccel.measuring.memory_estimate import MemoryEstimate, mebibytes
from tfaccel.measuring.timed_child import CandidateFailed
from tfaccel.planning.plan import Plan

_USABLE = 0.9  # of the free memory, so that the system never has to end a process, perhaps another one


class SearchMemory:
    """What a search knows of memory.

    Args:
        servers, task: what processes of the workload need.
        hardware: the machine.
        limit_seconds: time limit of an estimate.
    """

    def __init__(
        self, servers: CandidateServers, task: dict[str, Any], hardware: Hardware, *, limit_seconds: float
    ) -> None:
        self._servers, self._task, self._hardware = servers, task, hardware
        self._limit_seconds = limit_seconds
        self._estimates: dict[bool, MemoryEstimate] = {}
        self._short: set[Plan] = set()

    def limit_bytes(self, plan: Plan) -> int | None:
        """What a process that starts now may take; None on GPUs and TPUs, where TensorFlow says when it is spent."""
        if not plan.devices[0].startswith("CPU"):
            return None
        free = free_memory_bytes(Machine.here())
        return None if free is None else int(_USABLE * free)

    def note(self, plan: Plan, error: CandidateFailed) -> None:
        """Notes that a plan failed."""
        if error.kind == "memory":
            self._short.add(plan)

    def would_fit_recomputed(self, plan: Plan) -> bool:
        """Whether a plan ran out of memory, and may recompute activations instead of keeping them."""
        return plan in self._short and not plan.rematerialization

    def why_not(self, plan: Plan, known: Iterable[Plan]) -> str:
        """Why a plan with a larger batch than any known one would run out of memory, by the estimate; empty if not."""
        size = plan.micro_batch_size
        if size <= max(one.micro_batch_size for one in known):
            return ""
        if plan.rematerialization not in self._estimates:
            try:
                found = estimated_memory(
                    self._servers, self._task, plan, self._hardware, limit_seconds=self._limit_seconds
                )
            except TfaccelError:  # then it is measured
                return ""
            self._estimates[plan.rematerialization] = found
        memory = self._estimates[plan.rematerialization]
        if memory.fits(size) is not False:
            return ""
        needed, usable = memory.total_bytes(size), memory.usable_bytes or 0
        return f"It would need an estimated {mebibytes(needed)} of {mebibytes(usable)}."
