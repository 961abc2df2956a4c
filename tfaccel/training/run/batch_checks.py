"""Whether a model takes the batches of a workload, and what to say where it does not."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.errors import WorkloadError, in_one_line
from tfaccel.known_names import hint_of_keras_error
from tfaccel.planning.workload import Workload
from tfaccel.records import quoted
from tfaccel.training.steps.overrides import replaces
from tfaccel.training.steps.step_errors import NO_TARGETS, needs_targets

_STEPS = ("__call__", "call", "train_step", "test_step")  # one of one's own may take batches of any structure


def not_taken(data: str, workload: Workload, batch_spec: Any, error: Exception) -> WorkloadError:
    """The error of a model, loss or metrics that do not take the batches of `data`, such as "train_data"."""
    text = in_one_line(error)
    cause = NO_TARGETS if needs_targets(error) else f"{text:.600}{hint_of_keras_error(text)}"
    return WorkloadError(
        f"The model, loss or metrics of workload {workload.name!r} do not take the batches that {data} "
        f"returns, which hold {_described(batch_spec)}: {cause}"
    )


def parts_of_rows(batch_spec: Any) -> Any:
    """The shape of a row in each part of a batch."""
    return keras.tree.map_structure(lambda spec: str(getattr(spec, "shape", "")[1:]), batch_spec)


def check_batches(model: keras.Model, batch_spec: Any, of: str) -> None:
    """Raises WorkloadError for examples that are not batched, or inputs whose shapes the model does not accept.

    Args:
        model: the model; the inputs of a subclassed model are unknown before it is called.
        of: the source of the batches, for the message.
    """
    if isinstance(batch_spec, tuple) and len(batch_spec) > 3:
        raise WorkloadError(
            f"{of} must return batches of x, (x, y) or (x, y, sample_weight). Received tuples of {len(batch_spec)}. "
            "Several inputs are a tuple of their own: ((a, b), y)."
        )
    shapes = [getattr(spec, "shape", None) for spec in keras.tree.flatten(batch_spec)]
    if any(shape is not None and shape.rank == 0 for shape in shapes):
        raise WorkloadError(
            f"{of} must return batches whose components all have a first axis of examples. Received elements of "
            f"{_described(batch_spec)}. Call `.batch(global_batch_size)`."
        )
    x = keras.utils.unpack_x_y_sample_weight(batch_spec)[0]
    given, wanted = keras.tree.flatten(x), keras.tree.flatten(getattr(model, "inputs", None) or [])
    names = [tensor.name for tensor in wanted]
    by_name = isinstance(x, dict) and not isinstance(getattr(model, "input", None), dict)
    kind = next(one for one in type(model).__mro__ if one.__module__.split(".")[0] == "keras")
    if by_name and not {*names} <= x.keys() and not any(replaces(model, kind, one) for one in _STEPS):
        raise WorkloadError(
            f"{of} returns a dictionary of {quoted([*x])}, but the model's inputs are named {quoted(names)}. Name the "
            "keys as the inputs, or pass the arrays without a dictionary."
        )
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


def _described(batch_spec: Any) -> str:
    """Describes a batch, such as "x (None, 8, 8, 1) float32, y (None, 10) float32"."""
    parts = keras.utils.unpack_x_y_sample_weight(batch_spec)
    return ", ".join(
        f"{name} {tuple(spec.shape) if spec.shape.rank is not None else 'of any shape'} {spec.dtype.name}"
        for name, part in zip(("x", "y", "sample_weight"), parts, strict=False)
        for spec in keras.tree.flatten(part)
        if getattr(spec, "shape", None) is not None
    )
