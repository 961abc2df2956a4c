"""Checks that a workload's model and batches match, before anything is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tfaccel.errors import WorkloadError
from tfaccel.known_names import hint_of_keras_error
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import call_own
from tfaccel.training.private import private_models


def build_for(model: keras.Model, batch_spec: Any, workload: Workload) -> None:
    """Builds the model, loss and metrics of a workload for its batches.

    Raises:
        WorkloadError: if the data are not batched, or the model, loss or metrics do not accept the batches.
    """
    check_batches(model, batch_spec, f"train_data of workload {workload.name!r}")
    try:
        private_models.build_model(model, batch_spec)
    except (ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        raise WorkloadError(
            f"The model, loss or metrics of workload {workload.name!r} do not take the batches that train_data "
            f"returns, which hold {described(batch_spec)}: {text:.600}{hint_of_keras_error(text)}"
        ) from error


def check_batches(model: keras.Model, batch_spec: Any, of: str) -> None:
    """Raises WorkloadError for examples that are not batched, or inputs whose shapes the model does not accept.

    Args:
        model: the model; the inputs of a subclassed model are unknown before it is called.
        batch_spec: specs of `x`, `(x, y)` or `(x, y, sample_weight)`.
        of: the source of the batches, for the message.
    """
    shapes = [getattr(spec, "shape", None) for spec in keras.tree.flatten(batch_spec)]
    if any(shape is not None and shape.rank == 0 for shape in shapes):
        raise WorkloadError(
            f"{of} must return batches whose components all have a first axis of examples. Received elements of "
            f"{described(batch_spec)}. Call `.batch(global_batch_size)`."
        )
    given = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(batch_spec)[0])
    wanted = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if len(given) != len(wanted):
        return  # Keras reports what is missing
    for spec, tensor in zip(given, wanted, strict=True):
        shape = getattr(spec, "shape", None)
        if shape is None or shape.rank is None or _takes(tensor.shape, tuple(shape)):
            continue
        batched = tensor.shape[1:] == tuple(shape) or len(tensor.shape) == shape.rank + 1
        remedy = "Call `.batch(global_batch_size)`." if batched else "Change the model or the data."
        raise WorkloadError(
            f"{of} returns inputs of shape {tuple(shape)}, but the model takes {tuple(tensor.shape)}. {remedy}"
        )


def _takes(wanted: tuple[int | None, ...], given: tuple[int | None, ...]) -> bool:
    """Whether an input of shape `wanted` accepts shape `given`; Keras adds or drops a last axis of size 1."""
    wanted, given = wanted[1:], given[1:]
    if len(given) != len(wanted):
        longer, shorter = (given, wanted) if len(given) > len(wanted) else (wanted, given)
        return longer[-1:] in ((1,), (None,)) and _sizes_fit(longer[:-1], shorter)
    return _sizes_fit(wanted, given)


def _sizes_fit(some: tuple[int | None, ...], others: tuple[int | None, ...]) -> bool:
    return len(some) == len(others) and all(a is None or b is None or a == b for a, b in zip(some, others, strict=True))


def described(batch_spec: Any) -> str:
    """Describes a batch, such as "x (None, 8, 8, 1) float32, y (None, 10) float32"."""
    parts = keras.utils.unpack_x_y_sample_weight(batch_spec)
    return ", ".join(
        f"{name} {tuple(spec.shape) if spec.shape.rank is not None else 'of any shape'} {spec.dtype.name}"
        for name, part in zip(("x", "y", "sample_weight"), parts, strict=False)
        for spec in keras.tree.flatten(part)
        if getattr(spec, "shape", None) is not None
    )


def callbacks_of_workload(workload: Workload) -> list[keras.callbacks.Callback]:
    """New callbacks of a workload.

    Raises:
        WorkloadError: if they are not Keras callbacks.
    """
    if workload.callbacks is None:
        return []
    found: Any = call_own(f"callbacks of workload {workload.name!r}", workload.callbacks)
    if not isinstance(found, list | tuple) or not all(isinstance(one, keras.callbacks.Callback) for one in found):
        raise WorkloadError(
            f"callbacks of workload {workload.name!r} must return a list of Keras callbacks. Received: {found!r:.200}"
        )
    return list(found)


def refuse_restoring(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises WorkloadError for a callback that would replace the restored weights when training begins."""
    if any(isinstance(one, keras.callbacks.BackupAndRestore) for one in callbacks):
        raise WorkloadError(
            "`train` and BackupAndRestore both restore the training state. Leave out BackupAndRestore: checkpoints are "
            'in run_dir, and resume="auto" continues from them.'
        )
