"""Goodput: the time of a job without faults, divided by its time with three kills at random moments."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.fault_launch import Launch, Running, launch, read_lines
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError

GOODPUT = "goodput"
_SECONDS = 600.0  # of the job without faults
_CHECKPOINT_SECONDS = 5.0
_NUM_KILLS, _NUM_WORKERS = 3, 2
_AT_LEAST = 0.85
_OPTIONS = {"width": 1024, "depth": 4, "batch_size": 64}
_STEPS_PER_EPOCH = 9


def goodput_figures(options: SuiteOptions) -> tuple[list[Figure], dict[str, Any]]:
    """The figures of one job of ten minutes, times `scale`, and what they are made of."""
    chance = random.Random(1)
    options.progress(f"{GOODPUT}: how long an epoch takes")
    epoch_seconds = _epoch_seconds()
    epochs = max(6, round(_SECONDS * options.scale / epoch_seconds))
    interval = max(1, round(_CHECKPOINT_SECONDS / epoch_seconds * _STEPS_PER_EPOCH))
    job = {**_OPTIONS, "epochs": epochs, "checkpoint_interval": interval}
    options.progress(f"{GOODPUT}: {epochs} epochs without faults")
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as name:
        usual = launch(Path(name), _NUM_WORKERS, job)
    moments = sorted(chance.uniform(0.1, 0.9) * usual.seconds for _ in range(_NUM_KILLS))
    options.progress(f"{GOODPUT}: {epochs} epochs with {_NUM_KILLS} kills")
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as name:
        kills = _Kills(Path(name), moments, chance)
        found = launch(Path(name), _NUM_WORKERS, job, inject=kills.run)
    return _figures(usual, found, kills), {"job": job, "usual": asdict(usual), "killed": asdict(found)}


def _figures(usual: Launch, found: Launch, kills: _Kills) -> list[Figure]:
    same = float(found.ends_as(usual) and kills.num_done == _NUM_KILLS)
    lost = (found.seconds - usual.seconds) / _NUM_KILLS
    return [
        Figure(
            name=GOODPUT,
            quantity=f"time without faults / with {_NUM_KILLS} SIGKILLs, {usual.seconds:.0f} s",
            values=(usual.seconds / found.seconds,),
            at_least=_AT_LEAST,
        ),
        Figure(name=GOODPUT, quantity="ends bit-equal (1 yes, 0 no)", values=(same,), at_least=1.0),
        Figure(name=GOODPUT, quantity="seconds that a kill costs", values=(lost,)),
        Figure(name=GOODPUT, quantity="of them, until all workers train again", values=tuple(kills.gaps)),
    ]


def _epoch_seconds() -> float:
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as name:
        found = launch(Path(name), _NUM_WORKERS, {**_OPTIONS, "epochs": 6})
        if found.status:
            raise TfaccelError(f"A run that was not disturbed ended with status {found.status}: {found.output}")
        lines = (Path(name) / "run" / "metrics.jsonl").read_text().splitlines()
    ends = [json.loads(line)["seconds"] for line in lines]
    return max(1e-3, (ends[-1] - ends[1]) / (len(ends) - 2))


class _Kills:
    """Kills a random worker at each of some moments, given in seconds since the launch; waits until all train."""

    def __init__(self, folder: Path, moments: list[float], chance: random.Random) -> None:
        self._folder, self._moments, self._chance = folder, moments, chance
        self._began = time.time()
        self.num_done = 0
        self.gaps: list[float] = []

    def run(self, running: Running) -> None:
        """Kills; the launch goes on meanwhile."""
        pids = list(running.pids)
        for number, moment in enumerate(self._moments, start=1):
            time.sleep(max(0.0, self._began + moment - time.time()))
            killed_at = time.time()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                self.num_done += 1
            while len(pids := self._pids()) < (number + 1) * _NUM_WORKERS:
                if time.time() - killed_at > 300:
                    return
                time.sleep(0.1)
            self.gaps.append(time.time() - killed_at)
            pids = pids[-_NUM_WORKERS:]

    def _pids(self) -> list[int]:
        """The workers that have trained a first window, of all attempts, in their order."""
        lines = [line.split() for line in read_lines(self._folder / "logs") if line.startswith("trained ")]
        return [int(pid) for _, pid, _ in sorted(lines, key=lambda line: float(line[2]))]
