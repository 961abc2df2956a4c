"""Waits for all workers of a cluster before TensorFlow starts, which would wait for a missing one silently and forever.

Worker 0 listens on its own port. Each other worker connects to it, sends its index and what it will train, and waits
for a reply to continue. Then the port is released, and TensorFlow uses it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.errors import ClusterError, ClusterSettingsError, PlanError
from tfaccel.hardware.cluster import tf_config
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Cluster, Hardware
from tfaccel.planning.reference import get_signature
from tfaccel.planning.workload import Workload

logger = logging.getLogger("tfaccel")

WAIT_VARIABLE = "TFACCEL_WORKER_WAIT_SECONDS"
DEFAULT_WAIT_SECONDS = 300.0
_QUIET_SECONDS = 1.0  # before the first message about missing workers
_REPEAT_SECONDS = 60.0
_TURN_SECONDS = 0.2
_MAX_MESSAGE_BYTES = 1 << 16
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp
_SHOWN_CHARACTERS = 120
_DIGITS = 12
_OWN_PLACES = ("data_dir",)  # options that may differ: each machine has its data where it likes


@dataclass(frozen=True)
class Place:
    """A worker's place in a cluster.

    Attributes:
        addresses: addresses of all workers as host:port, the chief first.
        index: this worker's index.
    """

    addresses: tuple[str, ...]
    index: int


def wait_seconds(environ: Mapping[str, str] | None = None) -> float:
    """How long workers wait for each other: the value of `TFACCEL_WORKER_WAIT_SECONDS`, or 300 seconds.

    Raises:
        ClusterError: if the variable is not a number above 0.

    Example:
        >>> wait_seconds({}), wait_seconds({"TFACCEL_WORKER_WAIT_SECONDS": "30"})
        (300.0, 30.0)
    """
    text = (os.environ if environ is None else environ).get(WAIT_VARIABLE, "").strip()
    try:
        seconds = float(text) if text else DEFAULT_WAIT_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 10**8:
        raise ClusterSettingsError(
            f"{WAIT_VARIABLE} must be a number of seconds above 0. Received: {WAIT_VARIABLE}={text}."
        )
    return seconds


def meet(place: Place, same: Mapping[str, Any], *, seconds: float) -> None:
    """Returns when all workers of the cluster have connected; after a second, logs which ones are missing.

    Args:
        place: this worker's place in the cluster.
        same: name -> JSON value that must be the same on all workers.
        seconds: how long to wait.

    Raises:
        ClusterError: if a worker does not connect in time, another program uses this worker's port, or another worker
            has the same index or trains something else.
    """
    _Chief(place, same, seconds).meet() if place.index == 0 else _Member(place, same, seconds).meet()


class _Patience:
    """The time left to wait, and the messages while waiting."""

    def __init__(self, place: Place, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        self._ends = time.monotonic() + seconds
        self._says = time.monotonic() + _QUIET_SECONDS

    def wait(self, missing: Sequence[int], cause: str = "") -> None:
        """Logs the missing workers now and then; raises ClusterError when the time is up."""
        names = workers_text(self._place, missing)
        if time.monotonic() >= self._ends:
            how = f"within {self._seconds:g} seconds{f' ({cause})' if cause else ''}"
            raise ClusterError(
                f"{names[:1].upper()}{names[1:]} did not connect {how}. Start each worker with the same cluster in "
                "TF_CONFIG and its own task index, and check the output of the missing one. Set "
                f"{WAIT_VARIABLE} to wait longer."
            )
        if time.monotonic() >= self._says:
            self._says = time.monotonic() + _REPEAT_SECONDS
            left = self._ends - time.monotonic()
            logger.warning("Waiting for %s, for %.0f seconds at most (%s).", names, left, WAIT_VARIABLE)


@dataclass
class _Peer:
    """A connection to worker 0; `index` is None until the worker has identified itself."""

    socket: socket.socket
    index: int | None = None
    received: bytearray = field(default_factory=bytearray)


class _Chief:
    """Worker 0, to which all others connect."""

    def __init__(self, place: Place, same: Mapping[str, Any], seconds: float) -> None:
        self._place = place
        self._same = json.loads(json.dumps(dict(same)))
        self._patience = _Patience(place, seconds)
        self._peers: list[_Peer] = []

    def meet(self) -> None:
        """Waits for all others, then tells them to continue."""
        with _listening(self._place) as listener:
            try:
                while missing := self._missing():
                    self._patience.wait(missing)
                    self._turn(listener)
                for peer in self._peers:
                    _send(peer.socket, {"go": peer.index is not None})
            finally:
                for peer in self._peers:
                    peer.socket.close()

    def _missing(self) -> list[int]:
        here = {peer.index for peer in self._peers}
        return [index for index in range(1, len(self._place.addresses)) if index not in here]

    def _turn(self, listener: socket.socket) -> None:
        ready, _, _ = select.select([listener, *(peer.socket for peer in self._peers)], [], [], _TURN_SECONDS)
        if listener in ready:
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._peers.append(_Peer(connection))
        for peer in [peer for peer in self._peers if peer.socket in ready]:
            if not self._read(peer):
                peer.socket.close()
                self._peers.remove(peer)
        for peer in self._peers:
            if peer.index is not None:
                _send(peer.socket, {"missing": self._missing()})

    def _read(self, peer: _Peer) -> bool:
        """Reads what a peer sent; False if it is gone, or is not a worker of this cluster."""
        try:
            data = peer.socket.recv(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        peer.received += data
        if not data or len(peer.received) > _MAX_MESSAGE_BYTES:
            return False
        line, newline, _ = bytes(peer.received).partition(b"\n")
        return not newline or peer.index is not None or self._greet(peer, line)

    def _greet(self, peer: _Peer, line: bytes) -> bool:
        try:
            hello = dict(json.loads(line))
            index, same = hello["tfaccel_worker"], dict(hello["same"])
        except (ValueError, KeyError, TypeError):
            return False  # another program, such as a worker of plain TensorFlow
        if index in {other.index for other in self._peers} or index not in range(1, len(self._place.addresses)):
            _send(peer.socket, {"error": f"Another process is worker {index} of this cluster already. Give each worker "
                                         "its own task index in TF_CONFIG."})  # fmt: skip
            return False
        odd = next((n for n in {**self._same, **same} if self._same.get(n) != same.get(n)), None)
        if odd is not None:
            text = (
                f"The workers do not agree: {odd} is {self._same.get(odd)!r} on worker 0 and {same.get(odd)!r} on "
                f"worker {index}. Start all of them with the same cluster in TF_CONFIG, the same code, versions, "
                "settings and data."
            )
            _send(peer.socket, {"error": text})
            raise ClusterSettingsError(text)
        peer.index = int(index)
        return True


class _Member:
    """A worker other than worker 0."""

    def __init__(self, place: Place, same: Mapping[str, Any], seconds: float) -> None:
        self._place = place
        self._hello = {"tfaccel_worker": place.index, "same": dict(same)}
        self._patience = _Patience(place, seconds)
        self._cause = ""

    def meet(self) -> None:
        """Connects to worker 0 until it replies to continue."""
        with _listening(self._place):
            while not self._visit():
                self._patience.wait([0], self._cause)
                time.sleep(_TURN_SECONDS)

    def _visit(self) -> bool:
        """One connection to worker 0; True if all workers have connected."""
        try:
            with socket.create_connection(host_and_port(self._place.addresses[0]), timeout=2.0) as connection:
                _send(connection, self._hello)
                return self._listen(connection)
        except OSError as error:
            self._cause = str(error.strerror or error)
            return False

    def _listen(self, connection: socket.socket) -> bool:
        for message in _messages(connection):
            if message is None:
                self._patience.wait([0], "it accepts connections, but does not reply")
            elif "error" in message:
                raise ClusterSettingsError(str(message["error"]))
            elif "go" in message:
                return True
            else:
                self._patience.wait([index for index in message.get("missing", []) if type(index) is int] or [0])
        self._cause = "it closed the connection"
        return False


def _messages(connection: socket.socket) -> Iterator[dict[str, Any] | None]:
    """The messages of worker 0 until it closes the connection; None after each timeout."""
    received = bytearray()
    while True:
        try:
            data = connection.recv(_MAX_MESSAGE_BYTES)
        except TimeoutError:
            yield None
            continue
        if not data:
            return
        received += data
        *lines, rest = bytes(received).split(b"\n")
        received = bytearray(rest[:_MAX_MESSAGE_BYTES])
        for line in lines:
            try:
                yield dict(json.loads(line))
            except (ValueError, TypeError):
                return  # not a tfaccel worker


@contextlib.contextmanager
def _listening(place: Place) -> Iterator[socket.socket]:
    """Reserves this worker's port until all workers have connected."""
    _, port = host_and_port(place.addresses[place.index])
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            if place.index == 0:
                listener.listen(128)
        except OSError as error:
            raise port_error(place.index, place.addresses[place.index], error, owner_of_port(port)) from error
        yield listener


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # Reading from a closed connection reports it.
        connection.sendall(json.dumps(message).encode() + b"\n")


def workers_text(place: Place, indices: Sequence[int]) -> str:
    """Names of workers, such as "worker 1 (host1:2222) and worker 2 (host2:2222)".

    Example:
        >>> workers_text(Place(("a:1", "b:1"), 0), [1])
        'worker 1 (b:1)'
    """
    names = [f"worker {index} ({place.addresses[index]})" for index in indices if index < len(place.addresses)]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


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


def settings_to_agree_on(workload: Workload, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings and the code of a run by name, which workers compare before they train.

    The code is that of the model, its compile arguments and the augmentation, as a digest; see `get_signature`. The
    code that reads the data may contain paths, which differ between machines, so the engine compares first batches
    instead.

    Example:
        >>> work = Workload("digits", object, dict, print, global_batch_size=8, options={"width": 4})
        >>> sorted(settings_to_agree_on(work, {"epochs": 3, "options": {"width": 4}}))
        ['epochs', 'options.width', 'the code of the model', 'the number of training examples']
    """
    options = {f"options.{name}": value for name, value in dict(config.get("options", {})).items()}
    same = {name: value for name, value in config.items() if name != "options"}
    same.update({name: value for name, value in options.items() if name.removeprefix("options.") not in _OWN_PLACES})
    same["the number of training examples"] = workload.num_train_examples
    same["the code of the model"] = _get_code(workload.build_model, workload.compile_args)
    if workload.augment is not None:
        same["the code of the augmentation"] = _get_code(workload.augment)
    return same


def _get_code(*functions: Any) -> str:
    return " ".join(get_signature(function)[:_DIGITS] for function in functions)
