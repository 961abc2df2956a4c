"""`notebook_launch`: calls a function of a notebook on several workers of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from tfaccel.argument_types import checks_types
from tfaccel.errors import LaunchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.known_names import suggests_names
from tfaccel.launching.local_worker import WorkerPlace, visible_gpus, worker_places
from tfaccel.launching.private_tensorflow import has_started
from tfaccel.planning.option_checks import check_counts
from tfaccel.processes.child import how_it_ended
from tfaccel.processes.local_cluster import cluster_environments

_GRACE_SECONDS = 5.0


@suggests_names
@checks_types(LaunchError)
def notebook_launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    num_workers: int = 2,
    cores_per_worker: int | None = None,
    gpus_per_worker: int | None = None,
) -> Any:
    """Calls a function on several workers of this machine, which train together, and returns what worker 0 returns.

    The workers are forks of this process, so that the function may use whatever the notebook has defined. TensorFlow
    must not have started before: import it, and define functions, but build no model and no tensor outside of
    `function`. In it, call `tfaccel.train` or `tfaccel.fit`. Unlike `tfaccel launch`, nothing is started again.

    Args:
        function: called as `function(*args)` on each worker. Its result must be picklable: arrays, numbers, a history.
        args: its arguments.
        num_workers: how many workers.
        cores_per_worker: cores that each worker is pinned to; None to divide all of them evenly.
        gpus_per_worker: GPUs that each worker sees; None to divide all of them evenly; 0 to train on CPUs.

    Returns:
        The result of worker 0.

    Raises:
        LaunchError: if TensorFlow has started, the machine has too few cores or GPUs, or a worker fails; the message
            has its traceback.

    Example:
        >>> import os
        >>> notebook_launch(lambda name: name in os.environ, ["TF_CONFIG"], num_workers=2)
        True
    """
    check_counts(num_workers=num_workers)
    if "tensorflow" in sys.modules:
        _check_not_started()
    places = worker_places(
        num_workers, detect_hardware(), cores_per_worker=cores_per_worker, gpus_per_worker=gpus_per_worker
    )
    clusters = cluster_environments(num_workers) if num_workers > 1 else [{}]
    forks = multiprocessing.get_context("fork")
    workers = []
    for place, cluster in zip(places, clusters, strict=True):
        hidden = {"CUDA_VISIBLE_DEVICES": "-1"} if gpus_per_worker == 0 else visible_gpus(place)
        ours, theirs = forks.Pipe()
        worker = forks.Process(target=_work, args=(theirs, place, {**cluster, **hidden}, function, tuple(args)))
        worker.start()
        theirs.close()
        workers.append((worker, ours))
    try:
        return _results(workers)[0]
    finally:
        for _, ours in workers:
            ours.close()
        for worker, _ in workers:
            worker.join(_GRACE_SECONDS)
            worker.kill()


def _check_not_started() -> None:
    if has_started():
        raise LaunchError(
            "TensorFlow has already started in this notebook, and its threads do not survive the start of workers. "
            "Restart the kernel, and build models and tensors only inside the function that notebook_launch calls."
        )


def _work(
    connection: Connection,
    place: WorkerPlace,
    environment: Mapping[str, str],
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """What a worker does: it sends the function's result, or a traceback."""
    os.environ.update(environment)
    if place.cores:
        os.sched_setaffinity(0, place.cores)
    try:
        message = ("result", function(*args))
    except BaseException:  # told to the notebook, also where the function called `sys.exit`
        message = ("traceback", traceback.format_exc())
    with contextlib.suppress(BrokenPipeError):
        connection.send(message)
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(EOFError, ConnectionError):
        connection.recv()  # until all workers are done: they may need this one
    os._exit(0)


def _results(workers: Sequence[tuple[Any, Connection]]) -> list[Any]:
    """The results of all workers, in order."""
    results: dict[int, Any] = {}
    waiting = {connection: index for index, (_, connection) in enumerate(workers)}
    while waiting:
        ready = wait(list(waiting))
        for connection in [one for one in waiting if one in ready]:
            index = waiting.pop(connection)
            try:
                kind, value = connection.recv()
            except EOFError:
                workers[index][0].join(_GRACE_SECONDS)
                how = how_it_ended(workers[index][0].exitcode or 0)
                raise LaunchError(f"Worker {index} of {len(workers)} {how}.") from None
            if kind == "traceback":
                raise LaunchError(f"Worker {index} of {len(workers)} failed:\n{value}")
            results[index] = value
    return [results[index] for index in range(len(workers))]
