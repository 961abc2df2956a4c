"""One of several workers: a lost one is named, a lone one refused, and only the chief writes files."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import ClusterError, PlanError
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.rendezvous import Place, host_and_port, workers_text

_ANSWER_SECONDS = 2.0
_COMMUNICATION = re.compile(r"[Cc]ollective|GRPC|[Rr]emote target|heartbeat|[Cc]onnection|coordination service")
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
# Attributes of Keras's callbacks that hold output paths.
_PATHS = {keras.callbacks.CSVLogger: "filename", keras.callbacks.TensorBoard: "log_dir"}


@contextlib.contextmanager
def lost_workers_named(strategy: tf.distribute.Strategy, go_on: str = GO_ON_WITH_FIT) -> Iterator[None]:
    """Within the block, communication errors caused by a lost worker become a `ClusterError` that names it.

    Args:
        strategy: the strategy that the block trains under.
        go_on: last part of the message: how to continue.
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
    names = workers_text(place, gone)
    return (
        f"{names[0].upper()}{names[1:]} {'is' if len(gone) == 1 else 'are'} lost: worker {place.index} cannot "
        "continue. Check the last output there, and whether the process was killed."
    )


def _answers(address: str) -> bool:
    """Whether anything listens at a worker's address; the kernel closes the socket when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        socket.create_connection(host_and_port(address), timeout=_ANSWER_SECONDS).close()
        return True
    return False


def get_place(resolver: Any) -> Place | None:
    """A worker's place according to TensorFlow's cluster resolver; None if it is not one of several workers."""
    tasks = resolver.cluster_spec().as_dict() if resolver is not None else {}
    chiefs, workers = (list(tasks.get(job, [])) for job in ("chief", "worker"))
    index = resolver.task_id if resolver is not None else None
    if index is None or resolver.task_type not in ("chief", "worker") or len(chiefs) + len(workers) < 2:
        return None
    return Place((*chiefs, *workers), int(index) + (len(chiefs) if resolver.task_type == "worker" else 0))


@contextlib.contextmanager
def only_chief_writes(
    model: keras.Model, callbacks: list[keras.callbacks.Callback], replicas: Replicas
) -> Iterator[None]:
    """On all workers but the chief, makes `model.save` and `save_weights` no-ops and sends logs to a temporary folder.

    All workers still make the same decisions (which epoch is best, when to stop), because their metrics are equal.
    """
    if replicas.is_chief:
        yield
        return
    nothing = dict.fromkeys(("save", "save_weights"), lambda *args, **kwargs: None)
    with tempfile.TemporaryDirectory(prefix="tfaccel-worker-") as scratch, contextlib.ExitStack() as stack:
        stack.enter_context(instance_attributes(model, nothing))
        for callback in callbacks:
            for kind, attribute in _PATHS.items():
                if isinstance(callback, kind):
                    path = os.path.join(scratch, os.path.basename(os.fspath(getattr(callback, attribute))))
                    stack.enter_context(instance_attributes(callback, {attribute: path}))
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                stack.enter_context(instance_attributes(callback, {"delete_checkpoint": False}))
        yield


def refuse_lone_worker(replicas: Replicas) -> None:
    """Raises PlanError if this is one of several workers, according to `TF_CONFIG`, and the others do not take part.

    Each worker would train a model of its own on all the data, and all of them would write to the same files.
    """
    if replicas.num_workers > 1 or not os.environ.get("TF_CONFIG"):
        return
    place = None
    with contextlib.suppress(ValueError):  # no JSON: nothing that starts workers has set it
        place = get_place(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    if place is None:
        return
    found = "no strategy" if replicas.is_default else f"{type(replicas.strategy).__name__}, which knows one worker only"
    raise PlanError(
        f"This process is worker {place.index} of {len(place.addresses)} according to TF_CONFIG, as `tfaccel launch` "
        f"sets it, but the model was built under {found}: each worker would train alone. Create "
        "`strategy = tf.distribute.MultiWorkerMirroredStrategy()` at the start of the script and build the model in "
        "`with strategy.scope():`, or use tfaccel.train, which does both. If each worker shall train a model of its "
        "own, remove TF_CONFIG from the environment first: `del os.environ['TF_CONFIG']`."
    )
