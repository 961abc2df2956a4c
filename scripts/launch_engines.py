"""The part of `tfaccel launch` that uses a cluster's own programs: Slurm, Kubernetes, Ray."""

import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from absl import flags

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob, RayOptions
from tfaccel.extras.cluster.kubernetes_manifest import KubernetesOptions, kubernetes_manifest
from tfaccel.extras.cluster.ray_engine import run_on_ray
from tfaccel.extras.cluster.slurm_script import SlurmOptions, slurm_script
from tfaccel.known_names import did_you_mean
from tfaccel.processes.child import ProcessError, run_program
from tfaccel.scripts.command_flags import Flag

LOCAL = "local"
ENGINES = (LOCAL, "slurm", "kubernetes", "ray")
ENGINE_FLAGS: dict[str, Flag] = {
    "engine": (LOCAL, "what starts the workers: local (this machine), slurm, kubernetes or ray"),
    "dry_run": (False, "slurm, kubernetes: print the batch script or manifest instead of submitting it"),
    "name": (str, "slurm, kubernetes, ray: name of the job (default: tfaccel)"),
    "memory_per_worker_gib": (float, "slurm, kubernetes: memory for each worker, in GiB"),
    "time_limit_hours": (float, "slurm, kubernetes: time limit for the whole job, in hours"),
    "environment": (list, "slurm, kubernetes, ray: environment variables of the workers, as NAME=VALUE,NAME=VALUE"),
    "workers_per_node": (int, "slurm: workers on each node (default: 1)"),
    "partition": (str, "slurm: the partition"),
    "account": (str, "slurm: the account that is charged"),
    "image": (str, "kubernetes: the container image"),
    "volume_claim": (str, "kubernetes: a PersistentVolumeClaim for the run directory"),
    "mount_path": (str, "kubernetes: where that volume is mounted (default: /checkpoints)"),
    "namespace": (str, "kubernetes: the namespace (default: the current one)"),
    "user_id": (int, "kubernetes: the user and group that workers run as; not 0 (default: 1000)"),
    "address": (str, "ray: the head of the cluster, as host:port, or auto (default: RAY_ADDRESS, or a cluster here)"),
    "storage_path": (str, "ray: where Ray keeps the metrics and the model; shared by all nodes (default: --log_dir)"),
    "min_workers": (int, "ray: with how many workers training may go on if there is no place for all (default: all)"),
    "wait_seconds": (float, "ray: how long to wait for free cores and GPUs (default: 300)"),
}
_JOB = ("num_workers", "max_restarts", "cores_per_worker", "gpus_per_worker", "grace_seconds", "name")
_OF_RAY = ("address", "storage_path", "wait_seconds", "min_workers")
_SUBMIT = {"slurm": ("sbatch",), "kubernetes": ("kubectl", "apply", "-f", "-")}
_GIB = 2**30
_HOUR = 3600.0


def check_engine(values: flags.FlagValues) -> None:
    """Checks the name of the engine, and that no flag of another engine is given.

    Raises:
        LaunchError: naming the nearest engine, or the flag.
    """
    engine = values.engine
    if engine not in ENGINES:
        raise LaunchError(
            f"--engine must be one of {', '.join(ENGINES)}. Received: --engine={engine}.{did_you_mean(engine, ENGINES)}"
        )
    for name, (_, text) in ENGINE_FLAGS.items():
        takers = text.partition(":")[0].split(", ")
        if name != "engine" and engine not in takers and values[name].present:
            raise LaunchError(
                f"--{name} is for --engine={' or --engine='.join(takers)}. Received: --{name} with --engine={engine}."
            )


def launch_on_cluster(values: flags.FlagValues, command: list[str]) -> int:
    """Submits a job to Slurm or Kubernetes, or prints what would be submitted; or runs it on Ray.

    Returns:
        The exit status.

    Raises:
        LaunchError: if the job cannot be launched so.
    """
    job = _job(values, command)
    if values.engine == "ray":
        return _run_on_ray(values, job)
    text = slurm_script(job, _options(SlurmOptions, values)) if values.engine == "slurm" else _manifest(values, job)
    if values.dry_run:
        print(text, end="")
    else:
        print(_submit(_SUBMIT[values.engine], text), end="")
    return 0


def _job(values: flags.FlagValues, command: list[str]) -> ClusterJob:
    if values.num_workers is None:
        raise LaunchError("Give the number of workers: --num_workers=2, say.")
    given: dict[str, Any] = {name: values[name].value for name in _JOB if values[name].value is not None}
    if values.memory_per_worker_gib is not None:
        given["memory_per_worker_bytes"] = round(values.memory_per_worker_gib * _GIB)
    if values.time_limit_hours is not None:
        given["time_limit_seconds"] = values.time_limit_hours * _HOUR
    return ClusterJob(command=tuple(command), environment=_environment(values.environment or []), **given)


def _environment(entries: list[str]) -> dict[str, str]:
    odd = next((entry for entry in entries if "=" not in entry), None)
    if odd is not None:
        raise LaunchError(f"--environment takes NAME=VALUE, separated by commas. Received: {odd!r}.")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _options(kind: type[Any], values: flags.FlagValues) -> Any:
    """The options of an engine that are given as flags."""
    names = [field.name for field in fields(kind) if field.name in ENGINE_FLAGS]
    return kind(**{name: values[name].value for name in names if values[name].value is not None})


def _manifest(values: flags.FlagValues, job: ClusterJob) -> str:
    if values.image is None:
        raise LaunchError("Kubernetes runs workers in containers. Give their image: --image=REGISTRY/NAME:TAG.")
    return kubernetes_manifest(job, _options(KubernetesOptions, values))


def _submit(program: tuple[str, ...], text: str) -> str:
    try:
        return run_program(program, given=text, time_limit_seconds=120)
    except OSError as error:
        raise LaunchError(
            f"{program[0]} was not found, so that the job cannot be submitted from here. Print it with --dry_run, and "
            f"submit it elsewhere: {' '.join(program)}{' FILE' if len(program) == 1 else ''}"
        ) from error
    except ProcessError as error:
        raise LaunchError(f"{program[0]} refused the job: {' '.join(error.output.split()):.500}") from error


def _run_on_ray(values: flags.FlagValues, job: ClusterJob) -> int:
    folder = Path(values.log_dir or f"runs/logs-{time.strftime('%Y%m%d-%H%M%S')}")
    given = {name: values[name].value for name in _OF_RAY if values[name].value is not None}
    options = RayOptions(log_dir=folder, silence_seconds=values.silence_seconds, **given)

    def say(text: str) -> None:
        if not values.quiet:
            print(f"launch: {text}", file=sys.stderr, flush=True)

    return run_on_ray(job, options, on_line=lambda index, line: print(f"[{index}] {line}", flush=True), on_event=say)
