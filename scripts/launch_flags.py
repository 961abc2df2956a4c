"""The flags of `tfaccel launch`, by engine, and the jobs that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absl import flags

from tfaccel.errors import LaunchError
from tfaccel.known_names import did_you_mean
from tfaccel.launching.cluster_job import ClusterJob
from tfaccel.launching.local_launcher import DEFAULT_GRACE_SECONDS, LaunchOptions
from tfaccel.scripts.command_flags import Flag, command_flags

ENGINES = ("local", "slurm", "kubernetes", "ray")
WRITTEN = ("slurm", "kubernetes")  # engines whose script or manifest is written, and submitted by their own command
SUBMIT = {"slurm": "sbatch", "kubernetes": "kubectl apply -f -"}

_FOR_ALL: dict[str, Flag] = {
    "engine": ("local", f"what starts the workers: {', '.join(ENGINES)}"),
    "num_workers": (int, "how many workers to start"),
    "max_restarts": (3, "how often all workers are started again, at most"),
    "cores_per_worker": (int, "cores for each worker; on this machine, it is pinned to them (default: all, divided)"),
    "gpus_per_worker": (
        int,
        "GPUs for each worker; 0 for CPUs (default: on this machine all, divided evenly; else 0)",
    ),
    "grace_seconds": (DEFAULT_GRACE_SECONDS, "how long workers may take to stop after Ctrl-C or SIGTERM"),
    "log_dir": (str, "folder for the workers' logs (default: runs/logs-DATE-TIME)"),
    "quiet": (False, "do not say when workers start or fail"),
}
_FOR_LOCAL_AND_RAY: dict[str, Flag] = {
    "silence_seconds": (20.0, "a worker that gives no sign of life for so long is taken for lost"),
}
_FOR_CLUSTERS: dict[str, Flag] = {
    "name": ("tfaccel", "slurm, kubernetes, ray: name of the job"),
}
_FOR_WRITTEN: dict[str, Flag] = {
    "dry_run": (False, "slurm, kubernetes: print the batch script or manifest"),
    "time_limit_seconds": (float, "slurm, kubernetes: time limit for the whole job"),
}
_FOR_SLURM: dict[str, Flag] = {
    "workers_per_node": (1, "slurm: workers on each node"),
    "partition": (str, "slurm: partition"),
    "account": (str, "slurm: account that is charged"),
}
_FOR_KUBERNETES: dict[str, Flag] = {
    "image": (str, "kubernetes: container image with tfaccel and what the command needs"),
    "volume_claim": (str, "kubernetes: PersistentVolumeClaim for the run directory"),
    "mount_path": (str, "kubernetes: where the volume is mounted (default: /checkpoints)"),
    "namespace": (str, "kubernetes: namespace"),
    "user_id": (1000, "kubernetes: user and group of the workers, not root"),
}
_FOR_RAY: dict[str, Flag] = {
    "address": (str, "ray: head of the cluster, as host:port, or auto (default: RAY_ADDRESS, else this machine)"),
    "storage_path": (str, "ray: where Ray keeps metrics and model, on a disk that all nodes share (default: log_dir)"),
}
_OWN = {
    "local": _FOR_LOCAL_AND_RAY,
    "slurm": _FOR_CLUSTERS | _FOR_WRITTEN | _FOR_SLURM,
    "kubernetes": _FOR_CLUSTERS | _FOR_WRITTEN | _FOR_KUBERNETES,
    "ray": _FOR_CLUSTERS | _FOR_LOCAL_AND_RAY | _FOR_RAY,
}


def launch_flags() -> flags.FlagValues:
    """The flags of the command, not parsed yet."""
    every: dict[str, Flag] = dict(_FOR_ALL)
    for own in _OWN.values():
        every.update(own)
    values = command_flags(every)
    text = "slurm, kubernetes: memory for each worker"
    flags.DEFINE_integer("memory_per_worker_bytes", None, text, lower_bound=1, upper_bound=2**60, flag_values=values)
    return values


def check_engine(values: flags.FlagValues) -> str:
    """The engine; the flags of others must not be set.

    Raises:
        LaunchError: for an unknown engine, or a flag of another one; it names the nearest, or those that take the flag.
    """
    engine = str(values.engine)
    if engine not in ENGINES:
        raise LaunchError(
            f"There is no engine {engine!r}.{did_you_mean(engine, ENGINES)} Engines: {', '.join(ENGINES)}."
        )
    for other in ENGINES:
        for name in _OWN[other]:
            if values[name].present and name not in _OWN[engine]:
                takers = " or ".join(one for one in ENGINES if name in _OWN[one])
                raise LaunchError(
                    f"--{name} is for --engine={takers}. Received: --engine={engine}. Drop one of the two."
                )
    if engine in WRITTEN and not values.dry_run:
        raise LaunchError(
            f"For {engine}, tfaccel writes the job, and you submit it: add --dry_run, and pipe the output to "
            f"`{SUBMIT[engine]}`."
        )
    return engine


def local_options(values: flags.FlagValues) -> LaunchOptions | None:
    """How workers of this machine are launched; None without --num_workers."""
    if values.num_workers is None:
        return None
    return LaunchOptions(**_values_of(values, LaunchOptions.__dataclass_fields__))


def cluster_job(values: flags.FlagValues, command: Sequence[str]) -> ClusterJob:
    """The job for another engine.

    Raises:
        LaunchError: without --num_workers, or for a value out of range.
    """
    if values.num_workers is None:
        raise LaunchError("Give the number of workers: --num_workers=2, say.")
    given = _values_of(values, ClusterJob.__dataclass_fields__)
    return ClusterJob(**{**given, "command": tuple(command), "gpus_per_worker": values.gpus_per_worker or 0})


def engine_options(values: flags.FlagValues, kind: type) -> dict[str, Any]:
    """The arguments of an engine's options that flags set."""
    return _values_of(values, getattr(kind, "__dataclass_fields__"))  # noqa: B009


def _values_of(values: flags.FlagValues, names: Any) -> dict[str, Any]:
    return {name: values[name].value for name in names if name in values}
