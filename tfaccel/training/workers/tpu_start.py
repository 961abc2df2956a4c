"""Starts a TPU: first in a child process with a time limit, then in this one.

An incompatible TPU library aborts its process, and an unreachable address hangs; Python code can catch neither. So a
child process tries first. It has exited before this process starts the TPU, which only one process can use at a time.
"""

from __future__ import annotations

import logging

import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.hardware.doctor import explain
from tfaccel.hardware.doctor_child import ProbeProcess, ProbeResult
from tfaccel.hardware.machine import Machine
from tfaccel.hardware.tpu import install_command, tpu_wheel_version
from tfaccel.planning.plan import Plan

logger = logging.getLogger("tfaccel")

# A newly created Cloud TPU takes a minute or two to respond.
TIME_LIMIT_SECONDS = 300.0


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
    """The `TPUStrategy` of a plan.

    Args:
        plan: a plan with the strategy "tpu"; `plan.tpu` names the TPU.
        library: starts the TPU; None for TensorFlow's.

    Raises:
        PlanError: if TensorFlow's TPU build is not installed, the TPU does not start, or its number of cores differs
            from the plan's.
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
        raise _unusable(tpu, " ".join(str(error).split())[:500]) from error
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
