"""Runs a training command as several workers, of this machine or a cluster, and starts them again when one is lost.

    tfaccel launch --num_workers=2 -- tfaccel train --recipe=image_classification --run_dir=runs/digits
    tfaccel launch --num_workers=2 --max_restarts=10 -- python my_training.py
    tfaccel launch --num_workers=4 --gpus_per_worker=2 -- python my_training.py
    tfaccel train --recipe=image_classification --num_workers=2          # the same in short
    tfaccel launch --engine=slurm --num_workers=2 --dry_run -- tfaccel train ...    # prints a batch script
    tfaccel launch --engine=kubernetes --num_workers=2 --image=... --dry_run -- tfaccel train ...    # a manifest
    tfaccel launch --engine=ray --num_workers=2 -- tfaccel train ...     # on a Ray cluster

COMMAND is `tfaccel train ...`, or a script that calls `tfaccel.train` or `tfaccel.fit`. Each worker gets cores and GPUs
of its own, and its cluster and index in TF_CONFIG. Each line of its output is shown after its index in brackets, and
kept in a log. When a worker is killed, hangs, or ends with status 138, all are started again; `tfaccel train` and
`tfaccel.train` then continue from the last checkpoint. Three failures in a row without a step more are final, and so is
an exception, whose traceback is shown last. Under Slurm (`srun`), in an indexed Kubernetes job, on Cloud TPU workers,
or with TF_CONFIG set, the cluster exists already: COMMAND runs once, as this worker.

Ctrl-C and SIGTERM are passed on to the workers; a second one ends them at once.

Exit status: 0 if all workers are done; 138 if starting again may succeed; 1 if not; 2 for bad input, also of the
workers; 130 for Ctrl-C.
"""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from absl import flags

from tfaccel.errors import LaunchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Cluster
from tfaccel.launching.local_launcher import launch_local
from tfaccel.launching.local_worker import DEFAULT_GRACE_SECONDS, LaunchOptions, found_command
from tfaccel.scripts.command import run_command
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.launch_engines import ENGINE_FLAGS, LOCAL, check_engine, launch_on_cluster

_FLAGS: dict[str, Flag] = {
    "num_workers": (int, "how many workers to start on this machine"),
    "max_restarts": (3, "how often all workers are started again, at most"),
    "cores_per_worker": (int, "cores for each worker, which it is pinned to (default: all, divided evenly)"),
    "gpus_per_worker": (int, "GPUs for each worker; 0 to train on CPUs (default: all, divided evenly)"),
    "grace_seconds": (DEFAULT_GRACE_SECONDS, "how long workers may take to stop after Ctrl-C or SIGTERM"),
    "silence_seconds": (20.0, "a worker that gives no sign of life for so long is taken for lost"),
    "log_dir": (str, "folder for the workers' logs (default: runs/logs-DATE-TIME)"),
    "quiet": (False, "do not say when workers start or fail"),
    **ENGINE_FLAGS,
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values, command = command_flags(_FLAGS), list[str]()
    return run_command(
        lambda: _main(values, command),
        argv,
        values,
        description=(__doc__ or "").strip(),
        positional=("[flags] -- COMMAND", command),
    )


def _main(values: flags.FlagValues, command: list[str]) -> int:
    if not command:
        raise LaunchError(
            "There is no COMMAND to launch. Give it after `--`: tfaccel launch --num_workers=2 -- tfaccel train ..."
        )
    check_engine(values)
    if values.engine != LOCAL:
        return launch_on_cluster(values, command)
    options = None
    if values.num_workers is not None:
        names = [name for name in LaunchOptions.__dataclass_fields__ if name in values]
        options = LaunchOptions(**{name: values[name].value for name in names})
    return launch(command, options, log_dir=values.log_dir, quiet=values.quiet)


def launch(
    command: list[str], options: LaunchOptions | None, *, log_dir: str | None = None, quiet: bool = False
) -> int:
    """Runs a command as several workers of this machine, or in place of this process if that is a worker already.

    Args:
        command: program and arguments.
        options: how many workers, and how they are treated; None if the cluster knows.
        log_dir: for the workers' logs.
        quiet: do not say when workers start or fail.

    Returns:
        The exit status.

    Raises:
        LaunchError: if they cannot be launched.
    """
    hardware = detect_hardware()
    if hardware.cluster is not None:
        _become_worker(command, options, hardware.cluster)
    if options is None:
        raise LaunchError("Give the number of workers: --num_workers=2, say.")
    folder = Path(log_dir or f"runs/logs-{time.strftime('%Y%m%d-%H%M%S')}")
    return launch_local(command, options, hardware=hardware, folder=folder, on_event=_silent if quiet else _say)


def _become_worker(command: list[str], options: LaunchOptions | None, cluster: Cluster) -> NoReturn:
    """Runs the command in place of this process."""
    check_num_workers(options.num_workers if options else None, cluster)
    program = found_command(command)
    _say(f"worker {cluster.task_index} of {cluster.num_workers} ({cluster.source}) runs the command")
    sys.stdout.flush()
    os.execv(program, command)


def check_num_workers(num_workers: int | None, cluster: Cluster) -> None:
    """Refuses another number of workers than those of the cluster.

    Raises:
        LaunchError: with both numbers.
    """
    if num_workers not in (None, cluster.num_workers):
        raise LaunchError(
            f"This process is a worker of a cluster of {cluster.num_workers} ({cluster.source}). Received: "
            f"--num_workers={num_workers}. Leave it out, or unset TF_CONFIG to launch workers here."
        )


def _say(text: str) -> None:
    """Shows a line on standard error."""
    print(f"launch: {text}", file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """Shows nothing."""


if __name__ == "__main__":
    sys.exit(run(["launch", *sys.argv[1:]]))
