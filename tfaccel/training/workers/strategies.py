"""The `tf.distribute.Strategy` of a plan, and the start of a TPU."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfaccel.errors import ClusterError, PlanError, in_one_line
from tfaccel.hardware.doctor import ProbeProcess, ProbeResult, explain
from tfaccel.hardware.machine import Machine
from tfaccel.hardware.tpu import install_command, tpu_wheel_version
from tfaccel.planning.plan import Plan
from tfaccel.training.private.private_workers import servers_on_loopback
from tfaccel.training.run.result import installed_versions
from tfaccel.training.workers.lost_worker import get_place
from tfaccel.training.workers.rendezvous import Place, host_and_port, meet, wait_seconds

# A newly created Cloud TPU takes a minute or two to respond.
TIME_LIMIT_SECONDS = 300.0
logger = logging.getLogger("tfaccel")
_IMPLEMENTATIONS = {
    "tensorflow_default": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
}
# Fields that may differ between workers; the rest of the plan must be the same on all.
_OWN_FIELDS = {
    "devices",
    "num_logical_cpus",
    "intra_op_threads",
    "inter_op_threads",
    "gpu_memory_growth",
    "reasons",
    "gpu_memory_limit_bytes",
    "data_threads",
    "prefetch_batches",
    "cache_data",
}
_COMPARED = ("tensorflow", "keras", "numpy", "tfaccel")  # their versions must be the same on all workers
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_multi_worker: dict[tuple[str | None, str], tf.distribute.Strategy] = {}  # by TF_CONFIG and communication; at most one


class TpuLibrary:
    """TensorFlow's TPU operations, which tests replace.

    "local" is passed to the resolver as is: without a name it would look for one in the environment, and with
    TPU_NAME=local it would first query Google Cloud's metadata server. Anything else is the name or address
    (grpc://10.0.0.2:8470) of a Cloud TPU or of a whole slice.

    Args:
        machine: the machine whose packages and interpreter are used; None for this one.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine.here()

    def try_start(self, tpu: str) -> ProbeResult:
        """Initializes the TPU in a child process."""
        with ProbeProcess(self.machine) as process:
            return process.run(["tpu", tpu], time_limit_seconds=TIME_LIMIT_SECONDS)

    def start(self, tpu: str) -> tf.distribute.Strategy:
        """Initializes the TPU in this process, before any variable or tensor exists, since they would be lost."""
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        if not tf.config.list_logical_devices("TPU"):  # Initializing again would lose every variable.
            tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)


def tpu_strategy(plan: Plan, library: TpuLibrary | None = None) -> tf.distribute.Strategy:
    """The `TPUStrategy` of a plan, whose TPU starts first in a child process with a time limit, then in this one.

    An incompatible TPU library aborts its process, and an unreachable address hangs; Python code can catch neither. The
    child process has exited before this process starts the TPU, which only one process can use at a time.
    """
    library = library or TpuLibrary()
    if tpu_wheel_version(library.machine) is None:
        raise PlanError(
            "TensorFlow drives TPUs only through the package tensorflow-tpu, which is not installed. In a new "
            f"environment: {install_command()}; or choose --strategy=none --devices=CPU:0."
        )
    tpu = str(plan.tpu)
    if not tf.config.list_logical_devices("TPU"):
        logger.info("Starting the TPU %r in a child process first, for %g seconds at most.", tpu, TIME_LIMIT_SECONDS)
        tried = library.try_start(tpu)
        if not tried.ok:
            raise _unusable(tpu, explain(tried))
    try:
        strategy = library.start(tpu)
    except (tf.errors.OpError, ValueError, OSError) as error:
        raise _unusable(tpu, in_one_line(error, 500)) from error
    if strategy.num_replicas_in_sync != plan.num_replicas:
        raise PlanError(
            f"The plan has {plan.num_replicas} replicas, but the TPU {tpu!r} has {strategy.num_replicas_in_sync} "
            f"cores. Set --devices=TPU:0,... with {strategy.num_replicas_in_sync} devices, and a global batch size "
            "that they divide."
        )
    logger.warning("TPU steps are tested on CPU replicas only; they have not been run on a TPU yet.")
    return strategy


def _unusable(tpu: str, cause: str) -> PlanError:
    return PlanError(
        f"The TPU {tpu!r} cannot be used: {cause}. Run `tfaccel doctor`, or choose --strategy=none --devices=CPU:0."
    )


def make_strategy(plan: Plan, same_on_all: Mapping[str, Any] | None = None) -> tf.distribute.Strategy:
    """Creates the strategy that a plan names.

    Args:
        plan: what to create.
        same_on_all: name -> JSON value on which several workers must agree, besides the plan.

    Raises:
        PlanError: if a device is missing, or TensorFlow has already started in a way that rules the strategy out.
    """
    if plan.strategy == "none":
        return tf.distribute.get_strategy()
    if plan.strategy == "tpu":
        return tpu_strategy(plan)
    if plan.strategy == "multi_worker_mirrored":
        return _multi_worker_strategy(plan, same_on_all or {})
    devices = _logical_devices(plan)[:: plan.devices_per_replica]  # with stages, the first of each replica
    if plan.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    operations = tf.distribute.HierarchicalCopyAllReduce() if plan.communication == "hierarchical_copy" else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)


def _logical_devices(plan: Plan) -> list[str]:
    """The plan's devices under TensorFlow's names; only the plan's GPUs are visible, in the plan's order."""
    kind = plan.devices[0].split(":")[0]
    there = tf.config.list_logical_devices(kind)
    if kind == "GPU":
        return [device.name for device in there[: len(plan.devices)]]
    missing = [device for device in plan.devices if int(device.split(":")[1]) >= len(there)]
    if missing:
        raise PlanError(
            f"The plan uses {', '.join(missing)}, but TensorFlow has {len(there)} logical {kind} devices. "
            f"Set num_logical_cpus (--logical_cpus) to {len(plan.devices)} in a new process, or choose other devices."
        )
    return [there[int(device.split(":")[1])].name for device in plan.devices]


def _multi_worker_strategy(plan: Plan, same_on_all: Mapping[str, Any]) -> tf.distribute.Strategy:
    """This process's only multi-worker strategy, created on first use.

    A second one would restart TensorFlow's collectives, and a worker that is ahead could then send to a peer that is
    about to discard what it received ("Delete called on non-empty BufRendezvous").
    """
    wanted = (os.environ.get("TF_CONFIG"), plan.communication)
    if not _multi_worker:
        _multi_worker[wanted] = _new_multi_worker_strategy(plan, same_on_all)
    (((config, communication), strategy),) = _multi_worker.items()
    if wanted != (config, communication):
        raise PlanError(
            "This process has already trained with several workers, and TensorFlow cannot change its cluster or "
            f"collectives afterwards. Received: TF_CONFIG={wanted[0]!r}, communication={wanted[1]!r}; the first had "
            f"communication={communication!r}. Start new workers."
        )
    if strategy.num_replicas_in_sync != plan.num_replicas:
        raise PlanError(
            f"The plan has {plan.num_replicas} replicas ({plan.num_workers} workers), but the cluster that TF_CONFIG "
            f"describes has {strategy.num_replicas_in_sync}. Start {plan.num_workers} workers with the same plan, or "
            "set num_workers to their number."
        )
    return strategy


def _new_multi_worker_strategy(plan: Plan, same_on_all: Mapping[str, Any]) -> tf.distribute.Strategy:
    options = tf.distribute.experimental.CommunicationOptions(implementation=_IMPLEMENTATIONS[plan.communication])
    place = get_place(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    if place is not None and len(place.addresses) == plan.num_workers > 1:  # otherwise refused when counted
        meet(place, {**_same_on_all(plan, place.addresses), **same_on_all}, seconds=wait_seconds())
    try:
        with _signals_kept(), _only_as_public_as_needed(place):
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        raise PlanError(
            "MultiWorkerMirroredStrategy must be created before TensorFlow runs anything. Give tfaccel.train the "
            "function that builds the model in place of a model, or enter `Runtime(plan)` at the start of the program. "
            f"TensorFlow says: {error}"
        ) from error
    except tf.errors.OpError as error:
        raise ClusterError(
            f"TensorFlow cannot connect the workers of the cluster: {in_one_line(error.message):.300}. Start "
            "all of them again; the usual cause is a port in use, or a worker that has since ended."
        ) from error


def _same_on_all(plan: Plan, addresses: tuple[str, ...]) -> dict[str, Any]:
    """What workers must agree on: the cluster, the versions, and the plan except for `_OWN_FIELDS`."""
    fields = {name: value for name, value in dataclasses.asdict(plan).items() if name not in _OWN_FIELDS}
    return {
        "the cluster": list(addresses),
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        **{name: version for name, version in installed_versions().items() if name in _COMPARED},
        **fields,
        "the number of devices": len(plan.devices),
    }


@contextlib.contextmanager
def _only_as_public_as_needed(place: Place | None) -> Iterator[None]:
    """Lets TensorFlow's server, started in the block, listen on 127.0.0.1 only if all workers are on this machine."""
    hosts = {host_and_port(address)[0] for address in place.addresses} if place is not None else set()
    if not hosts:
        yield
    elif hosts <= _LOOPBACK:
        with servers_on_loopback():
            yield
    else:
        logger.warning(
            "TensorFlow's server on port %d has no authentication: whoever can reach it can run programs here. Let a "
            "firewall or a network policy admit the workers only.",
            host_and_port(place.addresses[place.index])[1] if place is not None else 0,
        )
        yield


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restores the SIGTERM handler: TensorFlow's collectives replace it with one that does not end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
