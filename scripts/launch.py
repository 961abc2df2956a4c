"""Runs a training command as several workers, and starts them again when one is lost.

    tfaccel launch --num_workers=2 -- tfaccel train --recipe=image_classification --run_dir=runs/digits
    tfaccel launch --num_workers=2 --max_restarts=10 -- python my_training.py
    tfaccel launch --num_workers=4 --gpus_per_worker=2 -- python my_training.py
    tfaccel train --recipe=image_classification --num_workers=2          # the same in short
    tfaccel launch --engine=ray --num_workers=4 --address=auto -- python my_training.py
    tfaccel launch --engine=slurm --num_workers=4 --gpus_per_worker=1 --dry_run -- python my_training.py | sbatch
    tfaccel launch --engine=kubernetes --num_workers=4 --image=registry/digits:1 --cores_per_worker=8 \\
        --memory_per_worker_bytes=16000000000 --volume_claim=runs --dry_run -- python my_training.py > job.yaml

COMMAND is `tfaccel train ...`, or a script that calls `tfaccel.train` or `tfaccel.fit`. The engine is this machine
(local), a Ray cluster, or Slurm or Kubernetes, for which --dry_run prints the batch script or the manifest. Each worker
gets cores and GPUs of its own, and its cluster and index in TF_CONFIG. Each line of its output is shown after its index
in brackets, and kept in a log. When a worker is killed, hangs, or ends with status 138, all are started again; `tfaccel
train` and `tfaccel.train` then continue from the last checkpoint. Three failures in a row without a step more are
final, and so is an exception, whose traceback is shown last. Under Slurm (`srun`), in an indexed Kubernetes job, on
Cloud TPU workers, or with TF_CONFIG set, the cluster exists already: COMMAND runs once, as this worker.

Ctrl-C and SIGTERM are passed on to the workers; a second one ends them at once.

Exit status: 0 if all workers are done; 138 if starting again may succeed; 1 if not; 2 for bad input; 130 for Ctrl-C.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import NoReturn

from absl import flags

from tfaccel.errors import LaunchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Cluster
from tfaccel.launching.cluster_job import ClusterJob
from tfaccel.launching.local_launcher import LaunchOptions, launch_local
from tfaccel.scripts.command import run_command
from tfaccel.scripts.launch_flags import check_engine, cluster_job, engine_options, launch_flags, local_options


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values, command = launch_flags(), list[str]()
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
    engine = check_engine(values)
    if engine == "local":
        return launch(command, local_options(values), log_dir=values.log_dir, quiet=values.quiet)
    job = cluster_job(values, command)
    if engine == "ray":
        return _launch_on_ray(job, values)
    print(_written(engine, job, values), end="")
    return 0


def _written(engine: str, job: ClusterJob, values: flags.FlagValues) -> str:
    """The batch script, or the manifest."""
    if engine == "slurm":
        from tfaccel.launching.slurm_script import SlurmOptions, slurm_script

        return slurm_script(job, SlurmOptions(**engine_options(values, SlurmOptions)))
    from tfaccel.launching.kubernetes_manifest import KubernetesOptions, kubernetes_manifest

    return kubernetes_manifest(job, KubernetesOptions(**engine_options(values, KubernetesOptions)))


def _launch_on_ray(job: ClusterJob, values: flags.FlagValues) -> int:
    from tfaccel.launching.ray_engine import RayOptions, run_on_ray

    given = engine_options(values, RayOptions)
    options = RayOptions(**{**given, "log_dir": values.log_dir or _new_log_dir()})
    return run_on_ray(job, options, on_line=_show_line, on_event=_silent if values.quiet else _say)


def _show_line(index: int, line: str) -> None:
    print(f"[{index}] {line}", flush=True)


def _new_log_dir() -> str:
    return f"runs/logs-{time.strftime('%Y%m%d-%H%M%S')}"


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
    folder = Path(log_dir or _new_log_dir())
    return launch_local(command, options, hardware=hardware, folder=folder, on_event=_silent if quiet else _say)


def _become_worker(command: list[str], options: LaunchOptions | None, cluster: Cluster) -> NoReturn:
    """Runs the command in place of this process."""
    check_num_workers(options.num_workers if options else None, cluster)
    program = shutil.which(command[0])
    if program is None:
        raise LaunchError(f"The command to launch was not found: {command[0]!r}.")
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
