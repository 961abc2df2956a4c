"""`estimate_memory`: the memory that training takes, and the largest batch that fits, without training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate_child import CandidateServers
from tfaccel.measuring.memory_estimate import MemoryEstimate
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.candidates import default_plan, taken_fields
from tfaccel.planning.compile_arguments import data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.option_checks import listed
from tfaccel.planning.plan import Plan

_LOGGER = logging.getLogger(__name__)
_PROGRAM = "tfaccel.measuring.step_memory"
LIMIT_SECONDS = 600.0


@data_after_model
def estimate_memory(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_sizes: Sequence[int] = (),
    hardware: Hardware | None = None,
    head_room: float = 0.1,
    **options: Any,
) -> MemoryEstimate:
    """Estimates the memory that training takes, by batch size, and the largest batch that fits. Nothing is trained.

    A child process builds the model and traces its training step for two batch sizes. The estimate is a sum over its
    graph: weights, optimizer state, gradients, the values of the forward pass that the backward pass reads, and the
    largest value beside them. Since the shapes for any other batch size follow from the two, so does the memory.

    Args:
        workload: what to train: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        x, y: data, if `workload` is a model or a function that builds one.
        batch_sizes: examples per replica and optimizer step; empty for the plan's, half of it, and twice it.
        hardware: the machine whose memory counts; None for this one. It need not be here.
        head_room: the fraction of a device's memory that is to stay free.
        **options: plan fields, whose values stay fixed; and whatever `tfaccel.train` takes to make a workload from
            `workload`, `x` and `y`.

    Raises:
        PlanError: if a fixed field cannot run on that machine, for a batch size that is not possible, and for a
            head-room that is not a fraction.
        WorkloadError: if the workload cannot be made or sent to another process, or its model does not accept its data.

    Example:
        >>> import keras, numpy as np
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> estimate = estimate_memory(build_model, x, x[:, :1], loss="mse", optimizer="sgd")
        >>> estimate.weights_bytes >= 4 * estimate.num_parameters, estimate.fits(32)
        (True, True)
    """
    fixed = taken_fields(options, hardware=hardware)
    made = given_workload(workload, x, y, **options)
    hardware = hardware or detect_hardware()
    plan = default_plan(hardware, made, **fixed)
    _check(batch_sizes, head_room)
    _LOGGER.info("tracing the training step of %s", made.name)
    given = workload if isinstance(workload, str) else made
    return estimate_of_plan(given, plan, hardware, options, batch_sizes=batch_sizes, head_room=head_room)


def estimate_of_plan(
    workload: Any,
    plan: Plan,
    hardware: Hardware,
    options: Mapping[str, Any] | None = None,
    *,
    batch_sizes: Sequence[int] = (),
    head_room: float = 0.1,
) -> MemoryEstimate:
    """The estimate for one plan; see `estimate_memory`.

    Args:
        workload: a `Workload`, a recipe's name or an import path.
        plan, hardware: how it is trained, and where.
        options: arguments of the function that makes the workload.
        batch_sizes, head_room: as in `estimate_memory`.
    """
    _check(batch_sizes, head_room)
    task = make_task(workload, options or {})
    with CandidateServers() as servers:
        return estimated_memory(servers, task, plan, hardware, batch_sizes=batch_sizes, head_room=head_room)


def estimated_memory(
    servers: CandidateServers,
    task: Mapping[str, Any],
    plan: Plan,
    hardware: Hardware,
    *,
    batch_sizes: Sequence[int] = (),
    head_room: float = 0.1,
    limit_seconds: float = LIMIT_SECONDS,
) -> MemoryEstimate:
    """The estimate for a task of `make_task`, made by a process of these servers; see `estimate_of_plan`."""
    estimate = {
        "batch_sizes": list(batch_sizes),
        "device_bytes": device_bytes(plan, hardware),
        "head_room": head_room,
    }
    server = servers.of(plan)
    child = server.start("estimate", _PROGRAM, [], {})
    child.send({**task, "plan": plan.to_json(), "estimate": estimate})
    try:
        message = server.get_message(child, limit_seconds)
    except TimeoutError:
        server.kill(child)
        raise WorkloadError(f"Tracing the training step took longer than {limit_seconds:g} seconds.") from None
    if message is None:
        ended = f"{child.how_it_ended()}. {server.end_of_log(child)}"
        raise WorkloadError(f"The process that traces the training step {ended}"[:500])
    if message["event"] == "failed":
        raise (PlanError if message["kind"] == "PlanError" else WorkloadError)(message["cause"])
    return MemoryEstimate.from_json(message["estimate"])


def _check(batch_sizes: Sequence[int], head_room: float) -> None:
    if type(head_room) not in (int, float) or not 0 <= head_room < 1:
        raise PlanError(f"head_room must be a number from 0 to below 1. Received: head_room={head_room!r}.")
    for size in listed("batch_sizes", batch_sizes):
        if type(size) is not int or size < 1:
            raise PlanError(f"batch_sizes must be whole numbers of at least 1. Received: {size!r}.")


def device_bytes(plan: Plan, hardware: Hardware) -> int | None:
    """Memory of the smallest device of a plan; of the machine, if they are CPUs; None if unknown."""
    if plan.devices[0].startswith("CPU"):
        return hardware.memory_bytes
    sizes = [device.memory_bytes for device in hardware.devices if device.name in plan.devices]
    return min((size for size in sizes if size), default=None)
