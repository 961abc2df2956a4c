"""Replaces the errors of TensorFlow's collectives by one that names the lost worker."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfaccel.errors import ClusterError
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.own_port import host_and_port
from tfaccel.training.workers.rendezvous import Place, workers_text

_ANSWER_SECONDS = 2.0
_COMMUNICATION = re.compile(
    r"[Cc]ollective|GRPC|[Rr]emote target|heartbeat|[Cc]onnection|coordination service", re.ASCII
)
_TASK = re.compile(r"/job:(chief|worker)/(?:replica:\d+/)?task:(\d+)")
_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)

GO_ON_WITH_FIT = (
    "Start all workers again. To continue where training stopped, use the callback `tfaccel.Resume`, or "
    '`tfaccel.train(..., resume="auto")`.'
)


@contextlib.contextmanager
def lost_workers_named(strategy: tf.distribute.Strategy, go_on: str = GO_ON_WITH_FIT) -> Iterator[None]:
    """Within the block, communication errors caused by a lost worker become a `ClusterError` that names it.

    Args:
        strategy: the strategy that the block trains under.
        go_on: last part of the message: how to continue.

    Raises:
        ClusterError: in place of TensorFlow's error.
    """
    try:
        yield
    except _ERRORS as error:
        if Replicas(strategy).num_workers == 1 or not _COMMUNICATION.search(str(error.message)):
            raise
        place = get_place(strategy.cluster_resolver)
        raise ClusterError(f"{_who(place, str(error.message))} {go_on}") from error


def _who(place: Place | None, message: str) -> str:
    """Names the lost workers: those that do not answer, else those in TensorFlow's message."""
    if place is None:
        return "A worker is lost: this worker can no longer reach it."
    others = [index for index in range(len(place.addresses)) if index != place.index]
    gone = [index for index in others if not _answers(place.addresses[index])]
    if not gone:
        first_worker = 1 if "/job:chief/" in message else 0
        named = {int(index) + (first_worker if job == "worker" else 0) for job, index in _TASK.findall(message)}
        gone = sorted(named & set(others))
    if not gone:
        return f"This worker ({place.index}) has lost the connection to another worker."
    verb = "is" if len(gone) == 1 else "are"
    names = workers_text(place, gone)
    return (
        f"{names[0].upper()}{names[1:]} {verb} lost: worker {place.index} cannot continue. Check the last output "
        "there, and whether the process was killed."
    )


def _answers(address: str) -> bool:
    """Whether anything listens at a worker's address; the kernel closes the socket when the process ends."""
    try:
        socket.create_connection(host_and_port(address), timeout=_ANSWER_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def get_place(resolver: Any) -> Place | None:
    """A worker's place according to TensorFlow's cluster resolver; None if it is not one of several workers."""
    tasks = resolver.cluster_spec().as_dict() if resolver is not None else {}
    chiefs, workers = (list(tasks.get(job, [])) for job in ("chief", "worker"))
    index = resolver.task_id if resolver is not None else None
    if index is None or resolver.task_type not in ("chief", "worker") or len(chiefs) + len(workers) < 2:
        return None
    return Place((*chiefs, *workers), int(index) + (len(chiefs) if resolver.task_type == "worker" else 0))
