"""Runs models of the table under every placement, in processes of their own, and counts the outcomes.

    python tests/world/outcomes.py [NAME ...]     # prints a row for each model, then the counts

One process trains without a strategy and with two replicas, then a pair of processes trains as two workers. What a
process leaves undone, because a model broke it, a new one goes on with.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfaccel.processes.local_cluster import WorkerError, cluster_environments, run_workers

HERE = Path(__file__).parent
PLACEMENTS = ("no strategy", "two replicas", "two workers")
START_SECONDS, MODEL_SECONDS = 120.0, 120.0  # of a process, and of one model in it, at most
# The quick way through XLA, and no log of TensorFlow's between the rows.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}

Outcome = tuple[str, str]  # what it is called, and a remark
OnOutcome = Callable[[str, str, Outcome], None]
SEVERITY = ("bit-equal", "not built", "refused", "equal", "wrong")


def run_models(
    names: Sequence[str], *, workers: bool, interpreter_options: Sequence[str] = (), on_outcome: OnOutcome | None = None
) -> dict[tuple[str, str], Outcome]:
    """(name, placement) -> outcome, for each of the models."""
    found: dict[tuple[str, str], Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="tfaccel-world-") as folder:
        command = [sys.executable, *interpreter_options, str(HERE / "comparison.py"), folder]
        for placements in (PLACEMENTS[:2], PLACEMENTS[2:]) if workers else (PLACEMENTS[:2],):
            left = list(names)
            while left:
                environments: list[Mapping[str, str | None]] = [{**ENVIRONMENT, "TF_CONFIG": None}]
                if placements == PLACEMENTS[2:]:
                    environments = [{**ENVIRONMENT, **place} for place in cluster_environments(2)]
                rows, problem = run_process([*command, *left], environments, len(left))
                done = [name for name in left if all((name, one) in rows for one in placements)]
                if len(done) < len(left) and not any(rows[name, placements[-1]][0] == "wrong" for name in done[-1:]):
                    broken = next(name for name in left if name not in done)
                    rows |= {(broken, one): rows.get((broken, one), ("wrong", problem)) for one in placements}
                    done.append(broken)
                left = [name for name in left if name not in done]
                for (name, placement), outcome in rows.items():
                    if name in done and on_outcome is not None:
                        on_outcome(name, placement, outcome)
                found |= {key: outcome for key, outcome in rows.items() if key[0] in done}
    return found


def run_process(
    command: Sequence[str], environments: Sequence[Mapping[str, str | None]], num_models: int
) -> tuple[dict[tuple[str, str], Outcome], str]:
    """Rows that all processes have written, the worst of them for each, and why they stopped."""
    written: list[dict[tuple[str, str], Outcome]] = [{} for _ in environments]

    def take(worker: int, line: str) -> None:
        if line.startswith('["'):
            name, placement, outcome, remark, _ = json.loads(line)
            written[worker][name, placement] = outcome, remark

    problem = "The process ended without a row for this model."
    try:
        limit = START_SECONDS + MODEL_SECONDS * num_models
        run_workers(command, environments=environments, time_limit_seconds=limit, on_line=take)
    except WorkerError as error:
        problem = str(error)[-1500:]
    common = [key for key in written[0] if all(key in rows for rows in written)]
    # A model that went wrong in one worker need not have got anywhere in the other.
    common += [key for rows in written for key, outcome in rows.items() if outcome[0] == "wrong" and key not in common]
    worst = {key: max((rows[key] for rows in written if key in rows), key=severity) for key in common}
    return worst, problem


def severity(outcome: Outcome) -> int:
    return SEVERITY.index(outcome[0])


def counts(found: Mapping[tuple[str, str], Outcome]) -> str:
    """How often each outcome came, for each placement."""
    lines = []
    for placement in PLACEMENTS:
        counted = Counter(outcome for (_, one), (outcome, _) in found.items() if one == placement)
        if counted:
            text = ", ".join(f"{counted[one]} {one}" for one in SEVERITY if counted[one])
            lines.append(f"{placement}: {counted.total()} models: {text}")
    return "\n".join(lines)


def all_names(*, quick: bool = False) -> list[str]:
    """The names of the models, in the order of the table; only the quick ones, on demand. Imports TensorFlow."""
    import comparison

    models = comparison.all_models()
    return [name for name, model in models.items() if model.quick or not quick]


def main(names: Sequence[str]) -> int:
    def show(name: str, placement: str, outcome: Outcome) -> None:
        print(f"{name:34} {placement:13} {outcome[0]:10} {outcome[1][:300]}", flush=True)

    found = run_models(names or all_names(), workers=True, on_outcome=show)
    print(counts(found))
    return int(any(outcome == "wrong" for outcome, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
