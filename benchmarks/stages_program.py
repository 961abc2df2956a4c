"""Trains in pipeline stages on logical CPUs, and prints what `stages_suite` asks for as JSON.

    python -m tfaccel.benchmarks.stages_program TASK

TASK is JSON: `kind`, and what its function takes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfaccel.planning.placements import STAGES

ROWS, NUM_MICRO_BATCHES = 8, 9  # with 4 micro-batches, an epoch ends within an optimizer step
WIDTH, DEPTH, EPOCH_ROWS, EPOCH_BATCHES = 1024, 8, 256, 8


def main(argv: list[str]) -> int:
    """Runs a task; returns the exit status."""
    task = json.loads(argv[1])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    from tfaccel.processes.child import end_with_parent

    end_with_parent()
    if task.pop("one_core_each", False):
        tf.config.threading.set_intra_op_parallelism_threads(1)  # an operation takes one core
        tf.config.threading.set_inter_op_parallelism_threads(task["stages"])  # as many at once as there are stages
    devices = [tf.config.LogicalDeviceConfiguration()] * 3
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    sys.stdout.write(json.dumps(_KINDS[task.pop("kind")](**task)) + "\n")
    return 0


def _parity(family: str) -> dict[str, float]:
    """The largest difference of weights to one device, by the numbers of stages and micro-batches."""
    found = {}
    for k in (1, 4):
        one = _trained(family, 1, k)
        for stages in (2, 3):
            several = _trained(family, stages, k)
            found[f"{stages} stages, {k} micro-batches"] = max(
                float(np.abs(a - b).max()) for a, b in zip(one, several, strict=True)
            )
    return found


def _trained(family: str, stages: int, k: int) -> list[np.ndarray]:
    import tfaccel

    model, x, y = _compiled(family, k)
    tfaccel.fit(model, x, y, batch_size=ROWS, epochs=2, verbose=0, plan=_plan(model, stages, ROWS))
    return [variable.numpy() for variable in model.trainable_variables]


def _compiled(family: str, k: int) -> tuple[Any, Any, Any]:
    """A model of a family that accumulates k micro-batches, and its data."""
    import keras

    from tfaccel.benchmarks.stages_models import stages_data, stages_model

    keras.utils.set_random_seed(0)
    model = stages_model(family)
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=k if k > 1 else None)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model, *stages_data(family, ROWS * NUM_MICRO_BATCHES)


def _plan(model: Any, stages: int, batch_size: int) -> Any:
    from tfaccel.training.fit import plan_of_model

    devices = tuple(f"CPU:{index}" for index in range(stages))
    return plan_of_model(model, batch_size=batch_size, **{STAGES: stages, "devices": devices})


def _shares(family: str) -> dict[str, float]:
    """With two stages: the larger one's share of weights and slots, and of operations on their stage's device."""
    from tfaccel.data.sources import ArraySource
    from tfaccel.training.private.private_models import build_model
    from tfaccel.training.private.private_slots import get_every_slot
    from tfaccel.training.steps.engine import Engine, EngineOptions

    model, x, y = _compiled(family, 4)
    source = ArraySource((x, y), global_batch_size=ROWS)
    build_model(model, source.batch_spec)
    options: dict[str, Any] = {STAGES: 2, "stage_devices": ("CPU:0", "CPU:1"), "marks_layers": True}
    engine = Engine(model, EngineOptions(**options))
    engine.run("train", source.feed(), 4)
    taken: dict[str, int] = {}
    for variable in model.trainable_variables:
        for one in (variable, *get_every_slot(model.optimizer, variable)):
            taken[one.value.device] = taken.get(one.value.device, 0) + one.numpy().nbytes
    placed, num_operations = _placed(model, engine)
    return {
        "bytes": max(taken.values()) / sum(taken.values()),
        "placed": placed / num_operations,
        "operations": num_operations,
    }


def _placed(model: Any, engine: Any) -> tuple[int, int]:
    """Operations of layers, forward and backward, on their stage's device; and all of them."""
    from tfaccel.costs.graph_costs import row_of_name
    from tfaccel.training.private.private_api import all_layers

    get_stage = {
        number: stage
        for number, layer in enumerate(all_layers(model))
        for stage, part in enumerate(engine.stages.stages)
        if any(layer is one for one in part.layers)
    }
    on_device = num_operations = 0
    for graph in engine.graphs("train"):
        for operation, device in _operations(graph, ""):
            stage = get_stage.get(row_of_name(operation.name, ()))  # type: ignore[arg-type]
            if stage is None or operation.type in ("ReadVariableOp", "NoOp", "Placeholder", "Const"):
                continue  # a variable is read where it is
            num_operations += 1
            on_device += device.endswith(f"CPU:{stage}")
    return on_device, num_operations


def _operations(graph: Any, outer: str) -> Iterator[tuple[Any, str]]:
    """The operations of a graph and of the functions that it calls, with their devices: by default the caller's."""
    from tfaccel.costs.private_graphs import function_graph

    for operation in graph.get_operations():
        device = operation.device or outer
        yield operation, device
        for attribute in operation.op_def.attr:
            called = operation.get_attr(attribute.name) if attribute.type == "func" else None
            inner = None if called is None else function_graph(graph, called.name)
            if inner is not None:
                yield from _operations(inner, device)


def _epochs(stages: int, epochs: int) -> dict[str, list[float]]:
    """Seconds, and CPU seconds, of epochs of a wide MLP, in whose steps almost all time goes into matrix products."""
    import keras

    import tfaccel

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(DEPTH)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile(keras.optimizers.SGD(1e-3, gradient_accumulation_steps=4), "mse")
    x = np.random.default_rng(0).normal(size=(EPOCH_BATCHES * EPOCH_ROWS, WIDTH)).astype("float32")
    arguments: dict[str, Any] = {"batch_size": EPOCH_ROWS, "verbose": 0, "plan": _plan(model, stages, EPOCH_ROWS)}
    tfaccel.fit(model, x, x, epochs=2, **arguments)
    found: dict[str, list[float]] = {"seconds": [], "CPU seconds": []}
    for _ in range(epochs):
        began, cpu_began = time.perf_counter(), time.process_time()
        tfaccel.fit(model, x, x, **arguments)
        found["seconds"].append(time.perf_counter() - began)
        found["CPU seconds"].append(time.process_time() - cpu_began)
    return found


_KINDS: dict[str, Any] = {"parity": _parity, "shares": _shares, "epochs": _epochs}

if __name__ == "__main__":
    sys.exit(main(sys.argv))
