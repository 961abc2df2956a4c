"""Training with Keras's JAX backend, for TPUs without a working TensorFlow: `Model.fit` on a workload.

It does not use tfaccel's engine, and writes no checkpoints. The data still comes through `tf.data`. The weights of a
model that is too large for one device can be divided among several, with Keras's `ModelParallel`: `model_parallel`.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError, RunDirError
from tfaccel.files import whole_file
from tfaccel.hardware.detect import detect_hardware
from tfaccel.local_path import local_path
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import compile_arguments, get_run_epochs
from tfaccel.planning.workload import Workload
from tfaccel.training.run.result import TrainResult, installed_versions
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.train_callbacks import MetricLines, StepTimes
from tfaccel.training.runtime import JaxRuntime


def train_on_jax(
    workload: Workload,
    plan: Plan,
    *,
    run_dir: str | os.PathLike[str],
    epochs: int | None = None,
    seed: int = 0,
    resume: str = "never",
    verbose: int = 1,
) -> TrainResult:
    """Trains a workload with `Model.fit` on Keras's JAX backend: on one device, or in a `model_parallel` block.

    Writes a run directory like `tfaccel.train`, but without checkpoints: an interrupted run starts over.

    Args:
        workload: the workload to train.
        plan: only its `global_batch_size` and `dtype_policy` are used.
        run_dir: a new or empty directory, or with `resume="auto"` one that holds the same run.
        epochs: total number of epochs; None for the workload's recommendation.
        seed: seed of the initial weights, dropout and the order of the data.
        resume: "never", or "auto" to return the result of a run that is already complete.
        verbose: see `Model.fit`.

    Raises:
        PlanError: if Keras uses another backend, or the batches or layouts do not fit the devices of `model_parallel`.
        RunDirError: if the run directory holds a different run.
    """
    started = time.perf_counter()
    epochs = get_run_epochs(workload, epochs)
    config = {
        "recipe": workload.name,
        "options": dict(workload.options),
        "epochs": epochs,
        "seed": seed,
        "backend": "jax",
        "global_batch_size": plan.global_batch_size,
        "dtype_policy": plan.dtype_policy,
    }
    directory = RunDir(local_path(run_dir, RunDirError), config, resume=resume)
    complete = directory.result()
    if complete is not None:
        return TrainResult.from_json({**complete, "run_dir": str(directory.path)})
    with JaxRuntime(dtype_policy=plan.dtype_policy, seed=seed):
        fields = _trained(workload, plan, directory, epochs=epochs, seed=seed, verbose=verbose)
    result = TrainResult(
        recipe=workload.name,
        plan=plan,
        **fields,
        wall_seconds=time.perf_counter() - started,
        hardware=detect_hardware().to_json(),
        versions=installed_versions(),
        run_dir=str(directory.path),
    )
    directory.write_result(result.to_json())
    return result


def _trained(
    workload: Workload, plan: Plan, directory: RunDir, *, epochs: int, seed: int, verbose: int
) -> dict[str, Any]:
    """Trains, evaluates and saves; returns fields of the result."""
    size = plan.global_batch_size
    model = workload.build_model()
    validation = workload.validation_data(size) if workload.validation_data is not None else None
    check_shards(model, validation, global_batch_size=size)
    epoch = workload.train_data(size, seed=seed, epoch=0)
    length = int(epoch.cardinality())
    num_steps = length if length >= 0 else sum(1 for _ in epoch)  # counts if the cardinality is unknown
    model.compile(**compile_arguments(workload, num_steps=epochs * num_steps))
    directory.start(plan.to_json())
    times, own = StepTimes(), workload.callbacks() if workload.callbacks is not None else ()
    model.fit(
        _batches(workload, size, seed=seed, epochs=epochs),
        steps_per_epoch=num_steps,
        epochs=epochs,
        shuffle=False,
        validation_data=validation,
        verbose=verbose,
        callbacks=[*own, times, MetricLines(directory, num_steps)],
    )
    history = directory.history()
    final = {name: values[-1] for name, values in history.items()}
    if validation is not None:
        final = {name: float(v) for name, v in model.evaluate(validation, verbose=0, return_dict=True).items()}
    directory.check_held()
    with whole_file(directory.model_file) as temporary:
        model.save(temporary)
    return {
        "history": history,
        "final": final,
        "examples_per_second": times.steps_per_second() * size,
        "step_seconds": times.step_seconds(),
        "first_step_seconds": times.first_seconds,
    }


def _batches(workload: Workload, global_batch_size: int, *, seed: int, epochs: int) -> Iterator[Any]:
    """The batches of all epochs, as NumPy arrays."""
    for epoch in range(epochs):
        yield from workload.train_data(global_batch_size, seed=seed, epoch=epoch).as_numpy_iterator()


BATCH, MODEL = "batch", "model"  # the axes of the mesh
Layouts = Mapping[str, tuple[str | None, ...]]


@contextlib.contextmanager
def model_parallel(num_shards: int, layouts: Layouts | None = None) -> Iterator[None]:
    """Within the block, `train_on_jax` divides weights and slots among `num_shards` devices.

    If there are more devices, each group of `num_shards` takes its rows of a batch.

    Args:
        num_shards: number of devices that hold one copy of the model.
        layouts: regular expressions of whole paths of variables, and the mesh axis of each of their axes ("model", or
            None for an axis that is not divided): `{".*up/kernel": (None, "model")}`. Other variables are divided along
            their longest axis that `num_shards` divides, if they have two axes or more. See `keras.distribution`.

    Raises:
        PlanError: if Keras runs on another backend, or the devices cannot be divided into groups of `num_shards`.
    """
    if keras.backend.backend() != "jax":
        raise PlanError(
            f"Keras runs on the backend {keras.backend.backend()!r}, which ignores `keras.distribution`. Set "
            "KERAS_BACKEND=jax before Keras is imported."
        )
    devices = keras.distribution.list_devices()
    if type(num_shards) is not int or num_shards < 1 or len(devices) % num_shards:
        divisors = ", ".join(str(n) for n in range(1, len(devices) + 1) if len(devices) % n == 0)
        raise PlanError(
            f"`num_shards` must divide the number of devices. Received: num_shards={num_shards!r}, {len(devices)} "
            f"devices. Use one of: {divisors}."
        )
    mesh = keras.distribution.DeviceMesh((len(devices) // num_shards, num_shards), (BATCH, MODEL), devices)
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(_ShardedByShape(mesh, layouts or {}))
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


def check_shards(model: keras.Model, validation: tf.data.Dataset | None, *, global_batch_size: int) -> None:
    """Raises PlanError if batches or layouts do not fit the devices of the `model_parallel` block, if there is one."""
    found = keras.distribution.distribution()
    if isinstance(found, _ShardedByShape):
        _check_rows(validation, found.device_mesh.shape[0], global_batch_size)
        _check_layouts(model, found.layouts)


def _check_rows(validation: tf.data.Dataset | None, num_groups: int, global_batch_size: int) -> None:
    if num_groups == 1:
        return
    sizes = [global_batch_size]
    sizes += [int(tf.shape(tf.nest.flatten(batch)[0])[0]) for batch in validation or ()]
    odd = next((size for size in sizes if size % num_groups), None)
    if odd is not None:
        raise PlanError(
            f"{num_groups} groups of devices share each batch, and cannot divide one of {odd} rows. Use batches, and a "
            f"number of validation examples, that are multiples of {num_groups}, or more devices for each copy of the "
            "model."
        )


def _check_layouts(model: keras.Model, layouts: Layouts) -> None:
    """Raises PlanError for a layout that no variable of a built model has; Keras ignores it."""
    paths = [variable.path for variable in model.variables]
    for pattern in layouts if model.built else ():
        if not any(re.fullmatch(pattern, path) for path in paths):
            raise PlanError(
                f"No variable has a path that matches the layout {pattern!r} as a whole; '.*/kernel' matches all "
                f"kernels. Received a model with the paths {', '.join(paths[:6])}{', ...' if len(paths) > 6 else ''}."
            )


class _ShardedByShape(keras.distribution.ModelParallel):
    """`ModelParallel` with a layout for variables that the user gave none for."""

    def __init__(self, mesh: keras.distribution.DeviceMesh, layouts: Layouts) -> None:
        self.layouts = layouts
        self._given = keras.distribution.LayoutMap(mesh)
        for path, axes in layouts.items():
            self._given[path] = tuple(axes)
        super().__init__(layout_map=self._given, batch_dim_name=BATCH)

    def get_variable_layout(self, variable: Any) -> Any:
        """The layout of a variable: the given one, or one along its longest axis."""
        shape, given = tuple(variable.shape), self._given[variable.path]
        num_shards = self.device_mesh.shape[1]
        if given is None:
            return keras.distribution.TensorLayout(_axes(shape, num_shards), self.device_mesh)
        sizes = [size for size, axis in zip(shape, given.axes, strict=False) if axis is not None]
        if len(given.axes) != len(shape) or any(size % num_shards for size in sizes):
            raise PlanError(
                f"A layout must have an axis for each axis of its variable, and divide it evenly. Received: "
                f"{given.axes} over {num_shards} devices for {variable.path!r} of shape {shape}."
            )
        return given


def _axes(shape: tuple[int, ...], num_shards: int) -> tuple[str | None, ...]:
    """The mesh axis of each axis of a variable.

    Example:
        >>> _axes((3, 8, 4), 2), _axes((8,), 2)
        ((None, 'model', None), (None,))
    """
    divided = [size if size % num_shards == 0 else 0 for size in shape]
    longest = divided.index(max(divided)) if len(shape) > 1 and max(divided) else None
    return tuple(MODEL if index == longest else None for index in range(len(shape)))
