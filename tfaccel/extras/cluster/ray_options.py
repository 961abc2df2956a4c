"""The noun `RayOptions`: where on Ray a job runs, and how long it waits."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tfaccel.errors import LaunchError

CONNECT_SECONDS = 15.0


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
        silence_seconds: a worker that gives no sign of life for so long is taken for lost.
        min_workers: with how many workers training may go on if there is no place for all of them; None to wait for
            all. The batches stay those of the whole group, so that a number that does not divide `num_workers` trains
            on the next lower one that does.

    Raises:
        LaunchError: for a time that is not above 0, or a number that is not a whole one of at least 1.

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
