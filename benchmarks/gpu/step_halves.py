"""Steps of the GPU suite about models that are too large for a part of a card: state, stages, tables on the host.

Two logical GPUs are made of one, each with a few GiB. Models of several sizes are trained, each in a process of its
own, to find the largest that does not fail for lack of memory. On CPUs, where logical devices share the memory, they
are tiny, and none fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.trial import TrialFailed, in_new_process
from tfaccel.planning.placements import STAGES
from tfaccel.planning.plan import Plan

PART_BYTES = 4 << 30
MAX_LOSS_DIFFERENCE = 0.01  # after three steps; TF32 rounds micro-batches and halves of a batch in another way
_TRIAL_SECONDS = 60.0
_TRAINED = "tfaccel.benchmarks.gpu.halves:trained"
# Layers of 4,096 x 4,096 weights: 64 MiB each, 256 MiB with gradients and Adam's slots, of which 4 GiB hold fewer
# than 16.
_LAYERS = (8, 10, 12, 14, 16, 18, 20, 22, 24, 28)
# Rows of 64 values with Adagrad's slots: 512 bytes each, of which 4 GiB hold fewer than 8.4 million.
_MILLION_ROWS = (4, 6, 8, 12)


def optimizer_state(run: StepRun) -> None:
    """Mirrored on both halves: the optimizer's slots on both, and divided between them."""
    if _has_field(run, "optimizer_state"):
        sizes = _largest(run, _LAYERS, ("one", "replicated", "sharded"))
        _ratio(run, "sharded optimizer state", sizes, "sharded", "replicated", at_least=1.1)
        _trains_on_both(run, "sharded optimizer state", sizes, "sharded")


def host_state(run: StepRun) -> None:
    """Mirrored on both halves: the optimizer's slots on both, and on the host."""
    if _has_field(run, "optimizer_state"):
        sizes = _largest(run, _LAYERS, ("replicated", "host"))
        _ratio(run, "optimizer state on the host", sizes, "host", "replicated", at_least=1.3)


def stages_on_halves(run: StepRun) -> None:
    """A model in two stages, one on each half; on one half it fails."""
    if _has_field(run, STAGES):
        sizes = _largest(run, _LAYERS, ("one", "stages"))
        _ratio(run, "pipeline stages", sizes, "stages", "one", at_least=1.4)
        _trains_on_both(run, "pipeline stages", sizes, "stages")


def host_embeddings(run: StepRun) -> None:
    """A table of embeddings in the memory of one half, and on the host."""
    if _has_field(run, "embeddings_on"):
        sizes = _largest(run, _MILLION_ROWS, ("table on the device", "table on the host"))
        _ratio(run, "embeddings on the host", sizes, "table on the host", "table on the device", at_least=1.2)


def _has_field(run: StepRun, name: str) -> bool:
    """Whether plans have this field; if not, a note says so."""
    there = any(field.name == name for field in fields(Plan))
    if not there:
        run.note(f"this version of tfaccel has no Plan.{name}")
    return there


def _largest(run: StepRun, sizes: Sequence[int], ways: Sequence[str]) -> dict[str, int]:
    """The largest size that trains in each way, found by bisection after the smallest; 0 if none does.

    All attempts are recorded. A failure for another reason than memory ends those in its way, with a note.
    """
    attempts: dict[str, dict[str, Any]] = {way: {} for way in ways}
    found = dict.fromkeys(ways, 0)
    for way in ways:
        untried = list(sizes[:1] if run.is_rehearsal else sizes)
        middle = 0
        while untried:
            size = untried[middle]
            run.progress(f"{way}: size {size}")
            attempt = attempts[way][str(size)] = _attempt(run, way, size)
            run.record("attempts", attempts)
            if "failure" not in attempt:
                found[way], untried = size, untried[middle + 1 :]
            elif attempt["memory"]:
                untried = untried[:middle]
            else:
                run.note(f"{way}: size {size} failed, and not for lack of memory: {attempt['failure']}")
                break
            middle = len(untried) // 2
    run.record("largest", found)
    _compare_losses(run, {way: tried.get(str(sizes[0]), {}) for way, tried in attempts.items()})
    return found


def _compare_losses(run: StepRun, smallest: Mapping[str, Mapping[str, Any]]) -> None:
    """A figure of how far the losses of the smallest model differ: all ways compute the same."""
    losses = [attempt["loss"][-1] for attempt in smallest.values() if "loss" in attempt]
    if len(losses) > 1:
        difference = (max(losses) - min(losses)) / max(abs(loss) for loss in losses)
        text = f"relative difference of the losses of the smallest model: {', '.join(smallest)}"
        run.figure(run.result.step, text, [difference], at_most=MAX_LOSS_DIFFERENCE)


def _attempt(run: StepRun, way: str, size: int) -> dict[str, Any]:
    arguments = {"way": way, "size": size, "kind": run.kind, "part_bytes": PART_BYTES}
    try:
        return dict(in_new_process(_TRAINED, arguments, limit_seconds=_TRIAL_SECONDS))
    except TrialFailed as error:
        return {"failure": str(error), "memory": error.ran_out_of_memory}


def _ratio(run: StepRun, name: str, sizes: dict[str, int], of: str, to: str, *, at_least: float) -> None:
    if sizes[to]:
        run.figure(name, f"largest model that trains: {of} / {to}", [sizes[of] / sizes[to]], at_least=at_least)
    else:
        run.note(f"nothing trained: {to}")


def _trains_on_both(run: StepRun, name: str, sizes: dict[str, int], way: str) -> None:
    """Whether a model that fails on one half trains on both."""
    run.figure(name, "a model that fails on one half trains on both", [float(sizes[way] > sizes["one"])], at_least=1.0)
