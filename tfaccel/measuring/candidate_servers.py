"""The processes from which candidates are forked: one for each environment that TensorFlow is loaded in."""

from __future__ import annotations

from pathlib import Path

from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment
from tfaccel.processes.fork_server import ForkServer

_PRELOADED = ("tfaccel.measuring.candidate_program", "tfaccel.training.run.timed_steps", "tfaccel.training.runtime")


class CandidateServers:
    """Fork servers, each started when a plan first needs it.

    Args:
        folder: for their logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[tuple[tuple[str, str], ...], ForkServer] = {}

    def has(self, plan: Plan) -> bool:
        """Whether there is a server for a plan's environment."""
        return _get_key(plan) in self._servers

    def of(self, plan: Plan) -> ForkServer:
        """The server for a plan's environment. A new one loads TensorFlow in the background."""
        variables, key = get_environment(plan), _get_key(plan)
        if key not in self._servers:
            folder = self._folder / f"server_{len(self._servers)}"
            folder.mkdir()
            environment = {"TF_CONFIG": None, "KERAS_BACKEND": "tensorflow", **variables}
            self._servers[key] = ForkServer(_PRELOADED, folder=folder, environment=environment)
        return self._servers[key]

    def close(self) -> None:
        """Ends all of them with their processes."""
        for server in self._servers.values():
            server.close()


def _get_key(plan: Plan) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(get_environment(plan).items()))
