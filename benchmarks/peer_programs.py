"""What a chosen plan is compared with: plain `Model.fit`, Keras on JAX, and native PyTorch, each in its own process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.choice_tasks import Family
from tfaccel.measuring.candidate_child import TimedChild
from tfaccel.processes.fork_server import ForkServer

PACKAGES: Mapping[str, str] = {"torch": "torch==2.14.1", "jax": "jax==0.10.2"}
_KERAS, _TORCH = "tfaccel.benchmarks.keras_program", "tfaccel.benchmarks.torch_program"
_LIMIT_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A program that trains a family.

    Attributes:
        name: of the program, such as "PyTorch, compiled, bfloat16".
        program: its module.
        package: the package that it needs beside tfaccel's own.
        options: of the program, beside family and seed.
        backend: Keras's backend in its process.
    """

    name: str
    program: str
    package: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "tensorflow"


MODEL_FIT = Peer(name="Model.fit", program=_KERAS, options={"backend": "tensorflow"})
KERAS_ON_JAX = tuple(
    Peer(
        name=f"Keras on JAX, {policy}",
        program=_KERAS,
        package="jax",
        options={"backend": "jax", "dtype_policy": policy},
        backend="jax",
    )
    for policy in ("float32", "mixed_bfloat16")
)


def torch_peers(family: Family) -> list[Peer]:
    """Native PyTorch: eager and compiled, in float32 and with bfloat16 autocast, for images in both memory formats."""
    found = []
    for channels_last in (True, False) if family.is_image else (False,):
        for compiled in (False, True):
            for bfloat16 in (False, True):
                words = ["PyTorch", "compiled" if compiled else "eager", "bfloat16" if bfloat16 else "float32"]
                words += ["channels last"] if channels_last else []
                options = {"compiled": compiled, "bfloat16": bfloat16, "channels_last": channels_last}
                found.append(Peer(name=", ".join(words), program=_TORCH, package="torch", options=options))
    return found


def how_to_install(package: str) -> str:
    """What to do for a package that is not installed; empty if it is.

    Example:
        >>> how_to_install("rich")
        ''
    """
    if importlib.util.find_spec(package) is not None:
        return ""
    return f"{package} is not installed: pip install {PACKAGES.get(package, package)}"


def peer_versions(*packages: str) -> dict[str, str]:
    """The versions of packages, as far as they are installed."""
    return {name: importlib.metadata.version(name) for name in packages if not how_to_install(name)}


class PeerChild(TimedChild):
    """A process that trains a family with a peer, window by window.

    Args:
        peer: the program.
        family: what it trains.
        folder: for its log.
    """

    def __init__(self, peer: Peer, family: Family, folder: Path) -> None:
        environment = {"KERAS_BACKEND": peer.backend, "JAX_PLATFORMS": "cpu", "TF_CONFIG": None}
        self._ended = False
        self._own_server = ForkServer((), folder=folder, environment=environment)
        task = {**peer.options, "family": family.name, "seed": 0}
        super().__init__(self._own_server, peer.program, task, name="peer", limit_seconds=_LIMIT_SECONDS)

    def end(self) -> None:
        """Ends the process and the server that made it, once."""
        if not self._ended:
            self._ended = True
            super().end()
            self._own_server.close()
