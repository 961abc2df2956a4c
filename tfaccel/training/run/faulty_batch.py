"""What in a batch was not finite: an input, the loss or a gradient, and in which examples."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.bad_data import BadData
from tfaccel.data.images.image_check import ImageToCheck, pixels, readable_images
from tfaccel.data.images.image_set import EncodedImages, ImageSet, ImageSplit
from tfaccel.errors import DataError, NonFiniteLossError, WorkloadError, in_one_line
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.epochs import non_finite_loss
from tfaccel.training.private import private_api
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.model_parts import get_variables, has_own_train_step
from tfaccel.training.steps.replicas import Replicas

_MAX_EVALUATIONS = 300  # of parts of a batch
_MAX_SHOWN = 10
_LEAVE_OUT = 'leave out such batches with on_nonfinite="skip" (--on_nonfinite=skip)'
_STEADY = "a lower learning rate, gradient clipping, or float32"

_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
_RECORD = re.compile(r"(corrupted|truncated) record at \d+")  # the offset in the file, in bytes


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What was not finite in a batch.

    Args:
        what: "input", "target", "sample weight", "loss" or "gradient".
        name: which input or target, or the paths of the weights; "" if there is one only.
        rows: the rows of the batch concerned; None if they could not be told.
    """

    what: str
    name: str = ""
    rows: tuple[int, ...] | None = None
    num_rows: int = 0

    def text(self, examples: np.ndarray | None) -> str:
        """The cause and what helps.

        Args:
            examples: the numbers of the batch's examples in the data; None if unknown.

        Example:
            >>> Fault(what="input", rows=(1,), num_rows=4).text(np.arange(8, 12))[:52]
            'The input of row 9 of the data is not finite. Repair'
        """
        name = f"{self.what} {self.name}".strip()
        if self.what == "gradient":
            return (
                f"It is that of {self.name}{self._of_rows(examples, 'for')}, where the loss is finite. Operations such "
                f"as sqrt and norm have infinite gradients at 0; {_LEAVE_OUT}, or try {_STEADY}."
            )
        if self.what != "loss":
            return (
                f"The {name}{self._of_rows(examples)} is not finite. Repair or remove these examples, or {_LEAVE_OUT}."
            )
        if self.rows is None or len(self.rows) == self.num_rows:
            return (
                f"The inputs are finite, but the loss of no example is: the model has diverged. Try {_STEADY}."
                if self.rows
                else f"The inputs are finite. Try {_STEADY}."
            )
        return (
            f"The inputs are finite, but not the loss{self._of_rows(examples)}. Inspect these examples, or "
            f"{_LEAVE_OUT}; or try {_STEADY}."
        )

    def _of_rows(self, examples: np.ndarray | None, preposition: str = "of") -> str:
        if not self.rows:
            return ""
        numbers = [int(row if examples is None else examples[row]) for row in self.rows]
        shown = ", ".join(map(str, numbers[:_MAX_SHOWN]))
        more = f" and {len(numbers) - _MAX_SHOWN} more" if len(numbers) > _MAX_SHOWN else ""
        place = "the batch" if examples is None else "the data"
        return f" {preposition} row{'s' * (len(numbers) > 1)} {shown}{more} of {place}"


@contextlib.contextmanager
def causes_named(engine: Engine, workload: Workload, plan: Plan, *, seed: int, finds: bool) -> Iterator[None]:
    """Within the block, a `NonFiniteLossError` names its cause, as far as it is known without repeating steps.

    Args:
        finds: whether steps leave out their batch if it is not finite, so that the weights are those from before it.
    """
    try:
        yield
    except NonFiniteLossError as error:
        if not finds and engine.replicas.num_workers > 1:  # the step is known only roughly
            raise
        raise explained(error, workload, plan, seed=seed, engine=engine if finds else None) from None


def explained(
    error: NonFiniteLossError, workload: Workload, plan: Plan, *, seed: int, engine: Engine | None
) -> NonFiniteLossError:
    """The error with its cause, as far as it can be found.

    Args:
        engine: of the model with the weights from before the step; None if they are lost, so that only the data can
            tell.
    """
    if error.epoch is None or error.step is None:
        return error
    epoch, step = error.epoch - 1, error.step - 1
    size = plan.global_batch_size // plan.accumulation_steps
    batch = _batch_at(workload, size, seed=seed, epoch=epoch, step=step)
    if batch is None:
        return error
    fault = fault_in_data(batch)
    if fault is None and engine is not None and not has_own_train_step(engine.model):
        with contextlib.suppress(Exception):  # of the user's model; the error to explain is more important
            fault = fault_in_step(engine.model, engine.replicas, batch)
    if fault is None:
        return error
    row_numbers = getattr(workload.train_data, "row_numbers", None)  # None if the data do not tell them
    examples = None if row_numbers is None else row_numbers(size, seed=seed, epoch=epoch, start_step=step)[0][:size]
    what = "A gradient" if fault.what == "gradient" else "The loss"
    found = non_finite_loss(epoch, error.step, what=what, cause=fault.text(examples))
    found.is_explained = True
    found.examples = () if examples is None else tuple(int(examples[row]) for row in fault.rows or ())
    return found


def _batch_at(workload: Workload, size: int, *, seed: int, epoch: int, step: int) -> Any:
    """The whole batch of a step, read again; None if that is not possible."""
    if getattr(workload.train_data, "not_resumable", ""):
        return None
    start = {"start_step": step} if "start_step" in inspect.signature(workload.train_data).parameters else {}
    try:
        batches = workload.train_data(size, seed=seed, epoch=epoch, **start)
        return next(iter((batches if start else batches.skip(step)).take(1)), None)
    except Exception:  # a dataset that may be iterated over once only, or whatever the user's function raises
        return None


def fault_in_data(batch: Any) -> Fault | None:
    """The first input, target or sample weight that has a NaN or an infinite value; None if there is none.

    Example:
        >>> fault_in_data((tf.constant([[1.0], [float("nan")]]), tf.constant([0, 1])))
        Fault(what='input', name='', rows=(1,), num_rows=2)
    """
    parts = keras.utils.unpack_x_y_sample_weight(batch)
    for what, part in zip(("input", "target", "sample weight"), parts, strict=True):
        for path, leaf in keras.tree.flatten_with_path(part):
            if not isinstance(leaf, tf.Tensor) or not leaf.dtype.is_floating or not leaf.shape.rank:
                continue
            finite = tf.reduce_all(tf.math.is_finite(tf.reshape(leaf, [tf.shape(leaf)[0], -1])), axis=1)
            rows = tuple(int(row) for row in np.flatnonzero(~finite.numpy()))
            if rows:
                name = "/".join(map(str, path)) and repr("/".join(map(str, path)))
                return Fault(what=what, name=name, rows=rows, num_rows=int(leaf.shape[0]))
    return None


def fault_in_step(model: keras.Model, replicas: Replicas, batch: Any) -> Fault | None:
    """What is not finite in Keras's training step on a batch, and for which rows; the model may be spoiled by this.

    Rows are looked at in inference mode, in which they do not depend on each other.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    num_rows = int(keras.tree.flatten(x)[0].shape[0])

    def get_loss(rows: slice, training: bool) -> tf.Tensor:
        some = keras.tree.map_structure(lambda leaf: leaf if leaf is None else leaf[rows], (x, y, sample_weight))
        predicted = private_api.call_model(model, some[0], training=training)
        return private_api.compute_loss(model, some[0], some[1], predicted, some[2], training=training)

    def bad_gradients(rows: slice, training: bool) -> list[str]:
        with tf.GradientTape() as tape:
            loss = get_loss(rows, training)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        pairs = zip(gradients, model.trainable_variables, strict=True)
        return [one.path for gradient, one in pairs if gradient is not None and not _is_finite(gradient)]

    with replicas.local(get_variables(model), 0):
        if not _is_finite(get_loss(slice(None), True)):
            rows = _bad_rows(lambda rows: not _is_finite(get_loss(rows, False)), num_rows)
            return Fault(what="loss", rows=rows, num_rows=num_rows)
        paths = bad_gradients(slice(None), True)
        if not paths:
            return None
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        rows = _bad_rows(lambda rows: bool(bad_gradients(rows, False)), num_rows)
        return Fault(what="gradient", name=", ".join(paths[:3]) + more, rows=rows, num_rows=num_rows)


def _bad_rows(is_bad: Callable[[slice], bool], num_rows: int) -> tuple[int, ...] | None:
    """The rows that are bad by themselves, found by halving; None if there are none, or too many to tell."""
    found: list[int] = []
    parts, evaluations = [(0, num_rows)], 0
    while parts:
        start, stop = parts.pop()
        evaluations += 1
        if evaluations > _MAX_EVALUATIONS:
            return None
        if not is_bad(slice(start, stop)):
            continue
        if stop - start == 1:
            found.append(start)
        else:
            middle = (start + stop) // 2
            parts += [(middle, stop), (start, middle)]
    return tuple(found) or None


def _is_finite(value: Any) -> bool:
    return bool(tf.reduce_all(tf.math.is_finite(value.values if isinstance(value, tf.IndexedSlices) else value)))


@contextlib.contextmanager
def input_errors_named(workload: Workload) -> Iterator[None]:
    """Within the block, TensorFlow's errors about damaged input become a `DataError`."""
    try:
        yield
    except (*_ERRORS, WorkloadError) as error:
        cause = error.__cause__ if isinstance(error, WorkloadError) else error  # raised by a function of the workload
        if not isinstance(cause, _ERRORS):
            raise
        if isinstance(cause, tf.errors.DataLossError):
            record = _RECORD.search(str(cause.message))
            message = record[0] if record else in_one_line(cause.message)
            raise DataError(
                f"A file of the dataset of {workload.name!r} is damaged: {message:.200}. TensorFlow does not say "
                "which; `tfaccel.data.read_image_set` does. Write or copy it again. (`ignore_errors()` would silently "
                "drop the rest of the file.)"
            ) from error
        images = getattr(workload.data, "source", None)
        if isinstance(images, ImageSet):
            for part in images.load():
                _check_again(part)
        raise


def _check_again(part: ImageSplit) -> None:
    """Raises DataError if a file of images cannot be read any more."""
    source = part.images
    if isinstance(source, tuple):
        images = [ImageToCheck(Path(path).read_bytes, path, path) for path in source]
    elif isinstance(source, EncodedImages):
        rows = range(len(part.labels))
        images = [ImageToCheck(partial(source.content, row), f"number {row} (from 0)", "", row) for row in rows]
    else:
        return
    bad_data = BadData("skip")
    try:
        readable_images(images, bad_data)
        reason = next((entry["reason"] for entry in bad_data.to_json()["files"].values()), "")
    except DataError as error:
        reason = str(error)
    if reason:
        raise DataError(f"{reason} It could be read when the run started, and was changed or removed since.")
    for image in images:  # what only decoding tells, such as a PNG file that was damaged before its checksums were made
        pixels(image.read(), 3, name=image.name)
