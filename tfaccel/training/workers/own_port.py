"""The port of this worker: whether it is free, and which process uses it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tfaccel.errors import ClusterError, PlanError
from tfaccel.hardware.cluster import tf_config
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Cluster, Hardware

_LISTENS = "0A"  # the state of a socket in /proc/net/tcp
_SHOWN_CHARACTERS = 120


def hardware_of_worker() -> Hardware:
    """This machine; a worker whose port another process uses is refused at once, before TensorFlow is loaded.

    Raises:
        ClusterError: if another worker with this task index runs here already, or another program uses the port.
    """
    hardware = detect_hardware()
    place = _index_and_address(hardware.cluster)
    if place is not None:
        check_own_port(*place)
    return hardware


def check_own_port(index: int, address: str) -> None:
    """Checks that no other process listens on the port of a worker.

    Args:
        index: of the worker.
        address: its address as host:port.

    Raises:
        ClusterError: if one does; the message names it where the system allows that.
    """
    _, port = host_and_port(address)
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(("", port))
        except OSError as error:
            owner = owner_of_port(port)
            if owner is None or owner[0] != os.getpid():  # its own server: this process has trained before
                raise port_error(index, address, error, owner) from error


def port_error(index: int, address: str, error: OSError, owner: tuple[int, str] | None) -> ClusterError:
    """The error for a worker's port that cannot be used, because of the process `owner_of_port` if that is known."""
    _, port = host_and_port(address)
    advice = "Set another port in TF_CONFIG."
    if error.errno == errno.EADDRINUSE:
        who = "" if owner is None else f" (process {owner[0]}: {owner[1]})"
        advice = f"Another worker with this task index, or another program, uses it{who}. Stop it, or set another port "
        advice += "in TF_CONFIG."
    return ClusterError(f"Worker {index} cannot listen on its port {port} ({address}): {error.strerror}. {advice}")


def host_and_port(address: str) -> tuple[str, int]:
    """Splits host:port.

    Example:
        >>> host_and_port("[::1]:2222")
        ('::1', 2222)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def owner_of_port(port: int) -> tuple[int, str] | None:
    """The process id and the command of the process that listens on a TCP port; None if that cannot be found out.

    Example:
        >>> with socket.create_server(("127.0.0.1", 0)) as server:
        ...     owner_of_port(server.getsockname()[1])[0] == os.getpid()
        True
    """
    wanted = {f"socket:[{inode}]" for inode in _listening_sockets(port)}
    for folder in Path("/proc").glob("[0-9]*/fd") if wanted else ():
        with contextlib.suppress(OSError):  # of another user, or it has ended
            for link in folder.iterdir():
                if os.readlink(link) in wanted:
                    command = (folder.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    return int(folder.parent.name), command.strip()[:_SHOWN_CHARACTERS]
    return None


def _listening_sockets(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _index_and_address(cluster: Cluster | None) -> tuple[int, str] | None:
    """This worker's place; None if it is alone, trains no model, or has no port."""
    if cluster is None or cluster.num_workers == 1 or cluster.task_type not in ("chief", "worker"):
        return None
    if cluster.source == "cloud_tpu":
        return None
    try:
        addresses = tf_config(cluster)["cluster"]["worker"]
    except PlanError:  # refused later, if the plan has several workers
        return None
    index = cluster.task_index + (cluster.num_chiefs if cluster.task_type == "worker" else 0)
    return index, addresses[index]
