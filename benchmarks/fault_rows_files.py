"""Faults of checkpoints and of the run directory."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.fault_launch import PROGRAM, Launch, launch, read_lines
from tfaccel.benchmarks.fault_row import FaultRow, Lab, NotPossibleHere, Trial
from tfaccel.benchmarks.fault_rows_workers import OPTIONS
from tfaccel.errors import RunDirError
from tfaccel.processes.child import Child, ProcessError, run_program
from tfaccel.training.run.checkpoint_files import checkpoints, load_newest, save_checkpoint

_SAVES = """
import sys
from pathlib import Path
import numpy as np
from tfaccel.training.run.checkpoint_files import save_checkpoint
folder, step = Path(sys.argv[1]), int(sys.argv[2])
while True:
    step += 1
    save_checkpoint(folder, {"x": np.full(300_000, step)}, {"step": step})
    print(step, flush=True)
"""
_MOUNTED = ("unshare", "--map-root-user", "--mount", "sh", "-c")
_LIMIT_SECONDS = 300.0
_FULL = {"fault": [0, 45, "file_limit", 65], "pause": 0.1}
_FULL_FOR_LONG = {"fault": [0, 45, "file_limit"], "pause": 0.1}
KINDS = ("truncated", "emptied", "without a file", "with a flipped bit")


def _killed_while_saving(lab: Lab, folder: Path) -> Trial:
    """Kills a process that saves one checkpoint after the other."""
    with Child([sys.executable, "-c", _SAVES, str(folder), "0"], pipes=("stdout",)) as child:
        output: Any = child.process.stdout
        said = [output.readline()]  # it has begun
        time.sleep(lab.chance.uniform(0, 0.15))
        child.kill()
        said += output.readlines()
    named = int([line for line in said if line.endswith("\n")][-1])
    found = load_newest(folder)
    step = -1 if found is None else int(found[1]["step"])
    right = found is not None and step >= named and set(found[0]["x"]) == {step}
    return Trial(right, f"step {step} is the newest checkpoint; the process had written {named}")


def broken(path: Path, kind: str, chance: random.Random) -> None:
    """Breaks a checkpoint in one of the `KINDS`."""
    file = path / chance.choice(["arrays.npz", "state.json"])
    content = bytearray(file.read_bytes())
    if kind == "without a file":
        file.unlink()
    elif kind == "emptied":
        file.write_bytes(b"")
    elif kind == "truncated":
        file.write_bytes(content[: chance.randrange(1, len(content))])
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)


def _broken_checkpoint(lab: Lab, folder: Path) -> Trial:
    """The newest of two checkpoints is broken; then the other one too."""
    kind = lab.chance.choice(KINDS)
    for step in (1, 2):
        save_checkpoint(folder, {"x": np.full(1000, step)}, {"step": step})
    older, newer = checkpoints(folder)
    broken(newer, kind, lab.chance)
    found = load_newest(folder)
    broken(older, kind, lab.chance)
    try:
        load_newest(folder)
        return Trial(False, f"{kind}: a checkpoint was read although both are broken")
    except RunDirError as error:
        return Trial(found is not None and found[1]["step"] == 1, f"{kind}: {error}")


def _run_with_broken_checkpoint(lab: Lab, folder: Path) -> Trial:
    """A run is stopped, its newest checkpoint broken, and the run resumed."""
    usual, kind = lab.usual(1, OPTIONS), lab.chance.choice(KINDS)
    stopped = launch(folder, 1, {**OPTIONS, "fault": [0, lab.chance.randrange(25, 120), "SIGTERM"]}, restarts=0)
    newest = checkpoints(folder / "run" / "checkpoints")[-1]
    broken(newest, kind, lab.chance)
    shutil.rmtree(folder / "logs")
    found = launch(folder, 1, {**OPTIONS, "resume": "must"})
    named = [line for line in read_lines(folder / "logs") if newest.name in line and "is broken" in line]
    said = named[0] if named else f"status {stopped.status}, {found.status}: {found.output}"
    return Trial(found.ends_as(usual) and len(named) == 1, f"{kind}: {said}")


def _full_disk(lab: Lab, folder: Path) -> Trial:
    """Two checkpoints cannot be written; then there is space again."""
    usual = lab.usual(1, OPTIONS)
    found = launch(folder, 1, _FULL)
    return _went_on(found, usual, read_lines(folder / "logs"), "File too large")


def _went_on(found: Launch, usual: Launch, lines: list[str], reason: str) -> Trial:
    warned = [line for line in lines if "could not be written to" in line and reason in line and "goes on" in line]
    right = found.ends_as(usual) and bool(warned) and found.notice_seconds is None
    return Trial(right, warned[0] if warned else f"status {found.status}: {found.output}")


def _full_for_long(lab: Lab, folder: Path) -> Trial:
    found = launch(folder, 1, _FULL_FOR_LONG)
    return _stopped(found, folder, "3 checkpoints in a row could not be written")


def _stopped(found: Launch, folder: Path, says: str) -> Trial:
    """Training must stop with one error, and leave whole checkpoints."""
    lines = [line for line in read_lines(folder / "logs") if line.startswith("tfaccel.errors.RunDirError: ")]
    right = found.status not in (0, 138) and len(lines) == 1 and says in lines[0] and found.whole
    return Trial(right, lines[-1] if lines else f"status {found.status}: {found.output}", found.notice_seconds)


def _in_mounted(folder: Path, size: str, then: str, options: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Runs the program in a small file system of its own: lines of its output, and the names of its checkpoints."""
    disk = folder / "disk"
    disk.mkdir()
    program = f"{sys.executable} -m {PROGRAM} {disk}/run '{json.dumps(options)}' 2>&1; echo status $?"
    script = f"mount -t tmpfs -o size={size} none {disk} && {then}{program}; ls {disk}/run/checkpoints 2>&1; true"
    try:
        run_program([*_MOUNTED, f"mount -t tmpfs none {disk}"], time_limit_seconds=20)
    except (OSError, ProcessError) as error:
        raise NotPossibleHere(f"no file system can be mounted: {error}") from error
    lines = run_program([*_MOUNTED, script], time_limit_seconds=_LIMIT_SECONDS).splitlines()
    return lines, [line for line in lines if line.startswith("step_")]


def _small_disk(lab: Lab, folder: Path) -> Trial:
    usual = lab.usual(1, OPTIONS)
    lines, left = _in_mounted(folder, "2m", "", {**OPTIONS, "fault": [0, 45, "fill_disk", 65]})
    warned = [line for line in lines if "could not be written to" in line and "No space left" in line]
    right = bool(warned) and f"digest {usual.digest}" in lines and "status 0" in lines and len(left) == 2
    return Trial(right, warned[0] if warned else " | ".join(lines[-5:]))


def _read_only(lab: Lab, folder: Path) -> Trial:
    disk = folder / "disk"
    lines, left = _in_mounted(folder, "2m", f"mount -o remount,ro {disk} && ", {})
    refused = [line for line in lines if line.startswith("tfaccel.errors.RunDirError: ")]
    right = len(refused) == 1 and not left and not [line for line in lines if line.startswith("begun")]
    return Trial(right, refused[0] if refused else " | ".join(lines[-5:]))


def _removed(lab: Lab, folder: Path) -> Trial:
    found = launch(folder, 1, {**OPTIONS, "fault": [0, lab.chance.randrange(1, 100), "remove_run_dir"]})
    return _stopped(found, folder, "is gone")


def _row(fault: str, promise: str, trial: Callable[[Lab, Path], Trial], **options: Any) -> FaultRow:
    return FaultRow(fault, promise, trial, **options)


ROWS = {
    "killed_while_saving": _row(
        "SIGKILL at a random moment during a save",
        "the newest committed checkpoint is used",
        _killed_while_saving,
        num_trials=200,
    ),
    "broken_checkpoint": _row(
        "newest checkpoint truncated, emptied, without a file or with a flipped bit",
        "skipped, the one before is used; none left: one error",
        _broken_checkpoint,
        num_trials=100,
    ),
    "run_with_broken_checkpoint": _row(
        "the same, of a run that is resumed", "named and skipped; bit-equal", _run_with_broken_checkpoint
    ),
    "full_disk": _row(
        "no file may grow (RLIMIT_FSIZE) for two checkpoints",
        "warned, training goes on, retried; bit-equal",
        _full_disk,
        num_trials=1,
    ),
    "full_disk_for_long": _row(
        "no file may grow (RLIMIT_FSIZE)",
        "stops after 3 failures, old checkpoints intact",
        _full_for_long,
        num_trials=1,
    ),
    "small_disk": _row(
        "a tmpfs of 2 MB is full for two checkpoints",
        "warned, training goes on, retried; bit-equal",
        _small_disk,
        num_trials=1,
    ),
    "read_only": _row("read-only run directory", "refused before training", _read_only, num_trials=1),
    "removed": _row(
        "run directory deleted while training", "stops with one error", _removed, num_trials=1, notice_seconds=30.0
    ),
}
