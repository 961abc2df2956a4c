"""The noun `LaunchOptions`: how workers of this machine are launched."""

from __future__ import annotations

from dataclasses import dataclass

from tfaccel.errors import LaunchError

DEFAULT_GRACE_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How to launch workers on this machine.

    Args:
        num_workers: how many.
        max_restarts: how often all of them are started again, at most.
        cores_per_worker, gpus_per_worker: see `worker_places`.
        grace_seconds: how long they may take to stop after SIGTERM or Ctrl-C.
        silence_seconds: a worker that gives no sign of life for so long is taken for lost.
        shows_output: show the workers' output; it is kept in logs in any case.

    Raises:
        LaunchError: for a number out of range.
    """

    num_workers: int
    max_restarts: int = 3
    cores_per_worker: int | None = None
    gpus_per_worker: int | None = None
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    silence_seconds: float = 20.0
    shows_output: bool = True

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 1), ("max_restarts", 0), ("cores_per_worker", 1), ("gpus_per_worker", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise LaunchError(f"{name} must be a whole number of at least {least}. Received: {name}={value!r}.")
        for name in ("grace_seconds", "silence_seconds"):
            if not getattr(self, name) > 0:
                raise LaunchError(
                    f"{name} must be a number of seconds above 0. Received: {name}={getattr(self, name)}."
                )
