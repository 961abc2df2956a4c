"""The noun `WorkerGroup`: how many workers a run from Python asks for, and which engine starts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from tfaccel.errors import LaunchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.known_names import check_names, did_you_mean
from tfaccel.launching.local_launcher import launch_local
from tfaccel.launching.local_worker import LaunchOptions
from tfaccel.load_extra import load_extra

ENGINES = ("local", "ray")
_OTHER_ENGINES = ("slurm", "kubernetes")
_OF_LOCAL = tuple(one.name for one in fields(LaunchOptions) if one.name not in ("num_workers", "shows_output"))


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """Workers that a call of `tfaccel.train` starts.

    Args:
        engine: "local" or "ray".
        num_workers: how many.
        options: those of `LaunchOptions` ("local"), or of Ray's workers ("ray").

    Raises:
        LaunchError: for an unknown engine or option (suggesting the nearest name), or a missing number of workers.

    Example:
        >>> WorkerGroup(engine="ray", num_workers=2, options={"address": "auto"}).engine
        'ray'
    """

    engine: str
    num_workers: int
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.engine in _OTHER_ENGINES:
            raise LaunchError(
                f"Training cannot wait for a job of {self.engine}. Received: engine={self.engine!r}. Submit "
                f"the command with `tfaccel launch --engine={self.engine} --num_workers=N -- COMMAND`."
            )
        if self.engine not in ENGINES:
            raise LaunchError(
                f"`engine` must be one of {', '.join(ENGINES)}. Received: engine={self.engine!r}."
                f"{did_you_mean(str(self.engine), ENGINES)}"
            )
        if type(self.num_workers) is not int or self.num_workers < 1:
            raise LaunchError(
                "Give the number of workers, a whole number of at least 1, such as num_workers=2. Received: "
                f"engine={self.engine!r}, num_workers={self.num_workers!r}."
            )
        known = _OF_LOCAL if self.engine == "local" else load_extra("ray_workers").options
        check_names(self.options, known, LaunchError, f"The engine {self.engine} has no option {{!r}}.")
        self._workers()

    @classmethod
    def of(cls, engine: str | None, num_workers: int | None, options: Mapping[str, Any] | None) -> Self | None:
        """The group that arguments of `tfaccel.train` ask for; None to train in this process.

        Raises:
            LaunchError: as the class; and for options without an engine.
        """
        if engine is None and num_workers is None:
            if options:
                raise LaunchError(
                    f"engine_options need an engine. Received: engine_options={dict(options)!r:.200}, engine=None. "
                    "Give engine='ray' and num_workers=2, say."
                )
            return None
        given: dict[str, Any] = {"num_workers": num_workers, "options": dict(options or {})}
        return cls(engine="local" if engine is None else engine, **given)

    def run(
        self, command: Sequence[str], *, folder: Path, on_event: Callable[[str], None], shows_output: bool = True
    ) -> int:
        """Runs a command as each worker, and waits for their end.

        Args:
            command: program and arguments.
            folder: for the workers' logs.
            on_event: called with a line of text when workers start or fail.
            shows_output: show the workers' output, which is kept in logs in any case.

        Returns:
            The exit status: 0 if all are done, 138 if starting again may succeed, 130 after Ctrl-C, otherwise 1.

        Raises:
            LaunchError: if they cannot be launched, or this process is a worker itself.
        """
        hardware = detect_hardware()
        if hardware.cluster is not None:
            raise LaunchError(
                f"This process is a worker of a cluster of {hardware.cluster.num_workers} already "
                f"({hardware.cluster.source}), and cannot start others. Received: engine={self.engine!r}, "
                f"num_workers={self.num_workers}. Leave them out, or unset TF_CONFIG."
            )
        if self.engine == "local":
            options = self._local_options(shows_output=shows_output)
            return launch_local(command, options, hardware=hardware, folder=folder, on_event=on_event)
        return int(self._workers().run(command, folder=folder, on_event=on_event, shows_output=shows_output))

    def _workers(self) -> Any:
        """The engine's noun, which checks the values of its options."""
        if self.engine == "local":
            return self._local_options()
        return load_extra("ray_workers")(self.num_workers, self.options)

    def _local_options(self, *, shows_output: bool = True) -> LaunchOptions:
        return LaunchOptions(num_workers=self.num_workers, shows_output=shows_output, **self.options)
