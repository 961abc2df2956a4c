"""Shards a model's weights over devices, with Keras's `ModelParallel`, which works on its JAX backend only."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError

BATCH, MODEL = "batch", "model"  # the axes of the mesh
Layouts = Mapping[str, tuple[str | None, ...]]
Check = Callable[[keras.Model, tf.data.Dataset | None], None]


@contextlib.contextmanager
def model_parallel(num_shards: int, layouts: Layouts | None, *, global_batch_size: int) -> Iterator[Check]:
    """Within the block, new variables are sharded over `num_shards` devices; groups of so many share each batch.

    Args:
        num_shards: number of devices that hold one copy of the model; 1 for one device, without a distribution.
        layouts: regular expressions of whole paths of variables, and the mesh axis of each of their axes ("model", or
            None for an axis that is not divided). Other variables are divided along their longest axis that
            `num_shards` divides, if they have two axes or more.
        global_batch_size: number of examples in a batch.

    Returns:
        A function of the model and the validation batches, which raises PlanError if they do not fit the devices.

    Raises:
        PlanError: if the devices cannot be divided into groups of `num_shards`, the batch not among them, or the layout
            of a variable does not fit.
    """
    if num_shards == 1 and not layouts:
        yield lambda model, validation: None
        return
    devices = keras.distribution.list_devices()
    num_groups = _num_groups(num_shards, len(devices), global_batch_size)
    mesh = keras.distribution.DeviceMesh((num_groups, num_shards), (BATCH, MODEL), devices)
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(_ShardedByShape(mesh, layouts or {}))

    def check(model: keras.Model, validation: tf.data.Dataset | None) -> None:
        _check_rows(validation, num_groups)
        _check_layouts(model, layouts)

    try:
        yield check
    finally:
        keras.distribution.set_distribution(before)


def _check_layouts(model: keras.Model, layouts: Layouts | None) -> None:
    """Raises PlanError for a layout that no variable of a built model has; Keras ignores it."""
    paths = [variable.path for variable in model.variables]
    for pattern in layouts or {} if model.built else ():
        if not any(re.fullmatch(pattern, path) for path in paths):
            raise PlanError(
                f"No variable has a path that matches the layout {pattern!r} as a whole; '.*/kernel' matches all "
                f"kernels. Received a model with the paths {', '.join(paths[:6])}{', ...' if len(paths) > 6 else ''}."
            )


def _check_rows(batches: tf.data.Dataset | None, num_groups: int) -> None:
    """Raises PlanError for validation batches whose rows cannot be divided among the groups of devices evenly."""
    for batch in batches if batches is not None and num_groups > 1 else ():
        num_rows = int(tf.shape(tf.nest.flatten(batch)[0])[0])
        if num_rows % num_groups:
            raise PlanError(
                f"{num_groups} groups of devices share each batch, and cannot divide a validation batch of {num_rows} "
                f"rows. Use a number of validation examples that is a multiple of {num_groups}, or let all devices "
                "share one copy of the model."
            )


def _num_groups(num_shards: int, num_devices: int, global_batch_size: int) -> int:
    if type(num_shards) is not int or num_shards < 1 or num_devices % num_shards:
        divisors = ", ".join(str(n) for n in range(1, num_devices + 1) if num_devices % n == 0)
        raise PlanError(
            f"`model_parallel` must divide the number of devices. Received: model_parallel={num_shards!r}, "
            f"{num_devices} devices. Use one of: {divisors}."
        )
    num_groups = num_devices // num_shards
    if global_batch_size % num_groups:
        raise PlanError(
            f"{num_groups} groups of {num_shards} devices share each batch. Received: "
            f"global_batch_size={global_batch_size}. Use a multiple of {num_groups}, or a larger model_parallel."
        )
    return num_groups


class _ShardedByShape(keras.distribution.ModelParallel):
    """`ModelParallel` with a layout for variables that the user gave none for."""

    def __init__(self, mesh: keras.distribution.DeviceMesh, layouts: Layouts) -> None:
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
