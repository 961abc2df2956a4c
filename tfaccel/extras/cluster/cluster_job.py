"""The nouns `ClusterJob`, what runs on how many workers of a cluster, and `RayOptions`, where on Ray it runs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tfaccel.errors import LaunchError
from tfaccel.known_names import check_names
from tfaccel.records import Record

_MAX_NAME_LENGTH = 63  # of a DNS label (RFC 1035)
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Field -> its least value, and whether None is allowed.
_COUNTS = {
    "num_workers": (1, False),
    "cores_per_worker": (1, True),
    "gpus_per_worker": (0, False),
    "memory_per_worker_bytes": (2**20, True),
    "max_restarts": (0, False),
}
_SECONDS = {"time_limit_seconds": True, "grace_seconds": False}
_SET_BY_ENGINES = re.compile(r"TF_CONFIG|JOB_COMPLETION(S|_INDEX)|SLURM_\w+|TFACCEL_LAUNCH_\w+")
CONNECT_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class ClusterJob(Record):
    """A command that runs once as each worker of a cluster.

    Args:
        command: program and arguments: `tfaccel train ...`, or a program that calls `tfaccel.train` or `tfaccel.fit`.
        num_workers: number of workers.
        name: of the job, and the beginning of its workers' names: a DNS label that begins with a letter.
        cores_per_worker: CPU cores of each worker; None for the cluster's default.
        gpus_per_worker: GPUs of each worker.
        memory_per_worker_bytes: memory of each worker; None for the cluster's default.
        time_limit_seconds: time limit for the whole job; None for the cluster's default.
        max_restarts: how often the workers are started again, at most, after one was lost or the job was preempted.
        grace_seconds: how long the workers may take to save a checkpoint and end after SIGTERM.
        environment: environment variables of all workers, in addition to those of the cluster.

    Example:
        >>> job = ClusterJob(command=("python", "train.py"), num_workers=2, name="digits")
        >>> ClusterJob.from_json(job.to_json()) == job
        True
    """

    command: Sequence[str]
    num_workers: int
    name: str = "tfaccel"
    cores_per_worker: int | None = None
    gpus_per_worker: int = 0
    memory_per_worker_bytes: int | None = None
    time_limit_seconds: float | None = None
    max_restarts: int = 3
    grace_seconds: float = 15.0
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not all(isinstance(word, str) for word in self.command):
            raise LaunchError(f"`command` must be a list of strings. Received: command={self.command!r:.200}.")
        object.__setattr__(self, "command", tuple(self.command))
        object.__setattr__(self, "environment", dict(self.environment))
        for name, (least, optional) in _COUNTS.items():
            value = getattr(self, name)
            if not (optional and value is None) and (type(value) is not int or value < least):
                raise LaunchError(f"`{name}` must be a whole number of at least {least}. Received: {name}={value!r}.")
        for name, optional in _SECONDS.items():
            value = getattr(self, name)
            number = type(value) in (int, float) and math.isfinite(value) and value > 0
            if not number and not (optional and value is None):
                raise LaunchError(f"`{name}` must be a number of seconds above 0. Received: {name}={value!r}.")
        if self.time_limit_seconds is not None and self.time_limit_seconds <= self.grace_seconds:
            raise LaunchError(
                f"The time limit must be longer than the grace time of {self.grace_seconds:g} seconds. Received: "
                f"time_limit_seconds={self.time_limit_seconds:g}."
            )
        _check_job_name(self.name, self.num_workers)
        _check_command(self.command)
        _check_environment(self.environment)

    def flag(self, name: str) -> str | None:
        """The value of a flag in the command, written --name=VALUE or --name VALUE; None if it has none."""
        for word, following in zip(self.command, [*self.command[1:], None], strict=True):
            flag, equals, value = word.partition("=")
            if flag in (f"--{name}", f"-{name}"):
                return value if equals else following
        return None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Restores a job from the output of `to_json`."""
        check_names(data, [one.name for one in fields(cls)], LaunchError, "A cluster job has no field {!r}.")
        return cls(**data)


def _check_job_name(name: str, num_workers: int) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LaunchError(
            "The name of a job must consist of small letters, digits and hyphens, begin with a letter and end with no "
            f"hyphen. Received: name={name!r:.200}."
        )
    last = f"{name}-{num_workers - 1}"
    if len(last) > _MAX_NAME_LENGTH:
        raise LaunchError(
            f"The names of the workers, such as {last}, may have at most {_MAX_NAME_LENGTH} characters. Shorten the "
            f"job's name by {len(last) - _MAX_NAME_LENGTH}. Received: name={name!r}."
        )


def _check_command(command: Sequence[str]) -> None:
    if not command or not command[0]:
        raise LaunchError(
            "There is no command to run on the workers. Give it after `--`, such as `-- python train.py`, or "
            "`-- tfaccel train --recipe=image_classification`."
        )
    odd = next((word for word in command if "\0" in word), None)
    if odd is not None:
        raise LaunchError(f"A command cannot contain the character NUL. Received: {odd!r:.200}.")


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise LaunchError(
                "The name of an environment variable must consist of letters, digits and underscores, and begin with "
                f"no digit. Received: {name!r:.200}."
            )
        if not isinstance(value, str) or "\0" in value:
            raise LaunchError(f"An environment variable must be text. Received: {name}={value!r:.200}.")
        if _SET_BY_ENGINES.fullmatch(name):
            raise LaunchError(
                f"{name} describes a worker's place in the cluster and is set for each worker. Remove it from the "
                f"environment of the job. Received: {name}={value!r:.200}."
            )


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """How to run on Ray.

    Args:
        address: of the head of the Ray cluster, as "host:port", or "auto" for the one on this machine; None for the
            one that `RAY_ADDRESS` names, or else one that is started on this machine, and ended at the end.
        log_dir: for the workers' logs, and for what Ray keeps of the run.
        storage_path: where Ray keeps the reported metrics and model: a folder that all nodes share, or a URL such as
            "s3://bucket/path"; None for `log_dir`.
        connect_seconds: how long to wait for the cluster to answer.
        wait_seconds: how long to wait for free cores and GPUs, at first and after a node is lost.
        silence_seconds: a worker without a sign of life for this long counts as lost.
        min_workers: the minimum number of workers if the cluster has no room for all; None to wait for all. The batches
            stay those of the whole group, so that a number that does not divide `num_workers` trains on the next lower
            one that does.

    Example:
        >>> RayOptions(log_dir="runs/logs").address is None
        True
    """

    log_dir: str | os.PathLike[str]
    address: str | None = None
    storage_path: str | None = None
    connect_seconds: float = CONNECT_SECONDS
    wait_seconds: float = 300.0
    silence_seconds: float = 20.0
    min_workers: int | None = None

    def __post_init__(self) -> None:
        if self.min_workers is not None and (type(self.min_workers) is not int or self.min_workers < 1):
            raise LaunchError(
                f"`min_workers` must be a whole number of at least 1, or None. Received: {self.min_workers!r}."
            )
        for name in ("connect_seconds", "wait_seconds", "silence_seconds"):
            if not getattr(self, name) > 0:
                raise LaunchError(f"`{name}` must be a number of seconds above 0. Received: {getattr(self, name)!r}.")
