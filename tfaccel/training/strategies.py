"""The `tf.distribute.Strategy` of a plan."""

from __future__ import annotations

import os

import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan
from tfaccel.training.tpu_start import tpu_strategy

_IMPLEMENTATIONS = {
    "tensorflow_default": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
}
_multi_worker: dict[tuple[str | None, str], tf.distribute.Strategy] = {}  # by TF_CONFIG and communication; one at most


def make_strategy(plan: Plan) -> tf.distribute.Strategy:
    """Makes the strategy that a plan names.

    Raises:
        PlanError: if a device is not there, or TensorFlow has started in a way that the strategy cannot be made.
    """
    if plan.strategy == "none":
        return tf.distribute.get_strategy()
    if plan.strategy == "tpu":
        return tpu_strategy(plan)
    if plan.strategy == "multi_worker_mirrored":
        return _multi_worker_strategy(plan)
    devices = _logical_devices(plan)
    if plan.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    operations = tf.distribute.HierarchicalCopyAllReduce() if plan.communication == "hierarchical_copy" else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)


def _logical_devices(plan: Plan) -> list[str]:
    """The plan's devices as TensorFlow numbers them: only the plan's GPUs are visible, in the order of the plan."""
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


def _multi_worker_strategy(plan: Plan) -> tf.distribute.Strategy:
    """The one strategy over several workers of this process, made when it is first wanted.

    A second one would start TensorFlow's collectives anew: a worker that is ahead then sends to a peer which is about
    to drop what it received ("Delete called on non-empty BufRendezvous").
    """
    wanted = (os.environ.get("TF_CONFIG"), plan.communication)
    if not _multi_worker:
        _multi_worker[wanted] = _new_multi_worker_strategy(plan)
    (((config, communication), strategy),) = _multi_worker.items()
    if wanted != (config, communication):
        raise PlanError(
            "This process has trained over several workers already, and TensorFlow cannot change its cluster or "
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


def _new_multi_worker_strategy(plan: Plan) -> tf.distribute.Strategy:
    options = tf.distribute.experimental.CommunicationOptions(implementation=_IMPLEMENTATIONS[plan.communication])
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        raise PlanError(
            "MultiWorkerMirroredStrategy has to be made before TensorFlow runs anything. Enter `Runtime(plan)` at the "
            f"start of the program, in a new process. TensorFlow says: {error}"
        ) from error
