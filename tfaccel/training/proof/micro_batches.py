"""What in a model's training depends on the micro-batch, so that more accumulation steps would give other results.

With accumulation, Keras adds up the gradients of micro-batches and divides by their number. For the mean of a loss over
independent rows that is the gradient of the whole batch. It is not for a sum, for a mean over unmasked values, and for
whatever Keras, a layer or an optimizer does once per micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import in_one_line
from tfaccel.training.private import private_api, private_layers
from tfaccel.training.private.private_random import still_random
from tfaccel.training.proof.detached_step import State
from tfaccel.training.proof.one_device import some_rows
from tfaccel.training.proof.proof import names_of_losses
from tfaccel.training.steps.batch_statistics import batch_norm_layers
from tfaccel.training.steps.gather_rows import get_losses
from tfaccel.training.steps.model_parts import get_variables, has_own_train_step, inner_optimizer, stepping_optimizers
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas

_NOTED_ROWS = 16
_IN_16_BITS, _IN_32_BITS, _NOTHING = 0.1, 1e-3, 1e-6


def what_depends_on_micro_batches(
    model: keras.Model, replicas: Replicas, batch: Any, *, sums_duplicates: bool
) -> str | None:
    """What would compute something else in smaller micro-batches with as many more accumulation steps.

    Runs the model's step on a few rows, without a lasting change. Random numbers, such as those of dropout, are others
    in other micro-batches; that does not count.

    Args:
        sums_duplicates: whether the gradients of repeated embedding rows are summed before the optimizer sees them, as
            with accumulation or `sum_duplicate_indices`.

    Returns:
        The start of a sentence that names it; None if nothing is found.
    """
    found = _known_from_the_model(model)
    if found is not None:
        return found
    try:
        steps = [noted_step(model, replicas, some_rows(batch, *rows)) for rows in _rows_of_parts(batch)]
    except Exception as error:  # whatever the model or its loss raises
        text = f"{type(error).__name__}: {in_one_line(error)}"
        return f"the model could not be checked on a few rows ({text:.200})"
    return (
        _in_the_loss(model, steps)
        or _in_the_layers(steps)
        or (None if sums_duplicates else _in_the_gradients(model, steps))
        or _in_the_mean(model, steps)
    )


def _rows_of_parts(batch: Any) -> list[tuple[int, int]]:
    """First row and number of rows: of a few rows, and of each half of them."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None and leaf.shape.rank]
    half = min(_NOTED_ROWS, int(leaves[0].shape[0])) // 2
    return [(0, 2 * half), (0, half), (half, half)] if half else [(0, 1)]


def _known_from_the_model(model: keras.Model) -> str | None:
    """What needs no step to be found."""
    if names := batch_norm_layers(model):
        return f"batch normalization ({', '.join(names)}) would take its statistics over fewer rows"
    if has_own_train_step(model):
        return f"{type(model).__name__} has its own train_step, which may do more than take the mean of a loss"
    stateful = [one.name for one in private_api.all_layers(model) if getattr(one, "stateful", False)]
    if stateful:
        return f"stateful layers ({', '.join(stateful)}) keep one state for each row of a batch"
    for tensor in getattr(model, "inputs", None) or []:
        if tensor.shape[0] is not None:
            return f"the model is built for batches of {tensor.shape[0]} rows (input {tensor.name!r})"
    return next(_in_the_optimizer(model), None)


def _in_the_optimizer(model: keras.Model) -> Iterator[str]:
    optimizer = model.optimizer
    inner = inner_optimizer(optimizer)
    if inner is not optimizer:
        yield "the loss scale of mixed_float16 would skip single micro-batches, and count them in place of steps"
    for one in [inner, *stepping_optimizers(optimizer)]:
        name = type(one).__name__
        if getattr(one, "use_ema", False):
            yield f"the moving average of the weights ({name}, use_ema=True) is updated with every micro-batch"
        if own := _own_methods(one):
            yield f"the optimizer {name} has its own {own}, which is called for every micro-batch"
    for variable in model.trainable_variables:
        if variable.constraint is not None:
            what = getattr(variable.constraint, "__name__", type(variable.constraint).__name__)
            yield f"the constraint of {variable.path} ({what}) is applied after every micro-batch"
        if getattr(variable, "overwrite_with_gradient", False):
            yield f"{variable.path} is overwritten with its gradient after every micro-batch"


def _own_methods(optimizer: keras.optimizers.Optimizer) -> str | None:
    """The method with which a class that is neither Keras's nor tfaccel's replaces how gradients are applied."""
    own = [kind for kind in type(optimizer).__mro__ if kind.__module__.split(".")[0] not in ("keras", "tfaccel")]
    names = ("apply", "apply_gradients", "stateless_apply")
    return next((name for kind in own for name in names if name in vars(kind)), None)


def _in_the_loss(model: keras.Model, steps: list[NotedStep]) -> str | None:
    first, last = steps[0], steps[-1]
    for reduction in first.reductions & {"sum", "none"}:
        names = [str(one.name) for one in _losses(model) if str(getattr(one, "reduction", "")).lower() == reduction]
        which = ", ".join(names) or type(model).__name__
        return f"the loss ({which}) has reduction={reduction!r}, which is not a mean over the rows of a batch"
    if "masked" in first.reductions:
        return "the loss is a mean over the values that are not masked, of which micro-batches have different numbers"
    if "weighted" in first.reductions:
        return "the loss is a mean by sample weights (mean_with_sample_weight), whose sums differ in micro-batches"
    if first.loss_rank or any(one != other for one, other in zip(first.added, last.added, strict=False)):
        adding = ", ".join(first.adding) or type(model).__name__
        return f"losses with one value per row (of {adding}) are summed over the rows of a batch"
    return None


def _losses(model: keras.Model) -> list[keras.losses.Loss]:
    return [one for one in get_losses(model) if isinstance(one, keras.losses.Loss)]


def _in_the_layers(steps: list[NotedStep]) -> str | None:
    if changed := steps[0].changed:
        return f"every micro-batch changes weights that no optimizer trains ({', '.join(changed):.200})"
    return None


def _in_the_gradients(model: keras.Model, steps: list[NotedStep]) -> str | None:
    """Keras's optimizers square the gradients of an embedding's repeated rows one by one, but accumulate their sum."""
    optimizers = stepping_optimizers(model.optimizer)
    clips = any(getattr(one, name, None) for one in optimizers for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    if steps[0].sparse and (clips or any(type(one) is not keras.optimizers.SGD for one in optimizers)):
        return (
            f"the gradients of {', '.join(steps[0].sparse):.200} are sparse: without accumulation, the optimizer sees "
            "those of repeated rows one by one (sum_duplicate_indices=True sums them first)"
        )
    return None


def _in_the_mean(model: keras.Model, steps: list[NotedStep]) -> str | None:
    """Whether loss and gradients of all rows are not the means of those of both halves."""
    if len(steps) < 3:
        return None
    whole, *halves = ([np.asarray(step.loss), *step.gradients] for step in steps)
    for value, one, other in zip(whole, *halves, strict=True):
        size = max(float(np.abs(part).max(initial=0.0)) for part in (one, other))
        far = float(np.abs(np.asarray(value, np.float64) - (np.asarray(one, np.float64) + other) / 2).max(initial=0.0))
        if np.isfinite(far) and far > _tolerance(value) * size + _NOTHING:
            return f"the loss ({names_of_losses(model)}) is not a mean over the rows of a batch, or a layer mixes them"
    return None


def _tolerance(value: Any) -> float:
    return _IN_16_BITS if value.dtype.itemsize == 2 or keras.config.dtype_policy().name != "float32" else _IN_32_BITS


@dataclass
class NotedStep:
    """What one step did.

    Attributes:
        reductions: how losses with more than one value were reduced: "sum", "none", "masked" or "weighted"; a plain
            mean is not noted.
        added: the shapes of the losses that layers added.
        adding: the layers that added them.
        loss_rank: the rank of the loss.
        changed: paths of the weights that the forward pass changed.
        sparse: paths of the variables whose gradients are `IndexedSlices`.
        loss: the loss of the step.
        gradients: those of the trainable variables that have one.
    """

    reductions: set[str] = field(default_factory=set)
    added: list[tuple[int | None, ...]] = field(default_factory=list)
    adding: list[str] = field(default_factory=list)
    loss_rank: int = 0
    changed: list[str] = field(default_factory=list)
    sparse: list[str] = field(default_factory=list)
    loss: float = 0.0
    gradients: list[np.ndarray] = field(default_factory=list)


def noted_step(model: keras.Model, replicas: Replicas, batch: Any) -> NotedStep:
    """Runs the default train step on a batch, without applying gradients; the model stays as it is.

    Random numbers are constants.
    """
    noted = NotedStep()
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    touched = get_variables(model)
    with replicas.local(touched, 0), still_random([]), contextlib.ExitStack() as stack:
        stack.callback(State([private_api.tf_variable(one) for one in touched]).put_back)
        stack.enter_context(private_layers.loss_reduction(_noting_reductions(noted), _plain_update, _plain_gradient))
        stack.enter_context(instance_attributes(model, _noting_added(model, noted)))
        before = [(one, one.numpy()) for one in model.non_trainable_weights]
        with tf.GradientTape() as tape:
            y_pred = private_api.call_model(model, x, training=True)
            loss = private_api.compute_loss(model, x, y, y_pred, sample_weight, training=True)
        noted.adding = private_api.names_of_layers_that_add_losses(model)
        trainable = model.trainable_variables
        if loss is not None:
            noted.loss_rank = len(loss.shape)
            gradients = tape.gradient(loss, [private_api.tf_variable(one) for one in trainable])
            pairs = zip(gradients, trainable, strict=True)
            noted.loss = float(tf.reduce_sum(loss))
            noted.gradients = [tf.convert_to_tensor(one).numpy() for one in gradients if one is not None]
            noted.sparse = [one.path for gradient, one in pairs if isinstance(gradient, tf.IndexedSlices)]
        noted.changed = [one.path for one, value in before if (one.numpy() != value).any()]
    return noted


def _noting_reductions(noted: NotedStep) -> Any:
    def reduce(original: Any, values: Any, sample_weight: Any, mask: Any, reduction: Any, dtype: Any) -> Any:
        if len(values.shape):
            if reduction in (None, "none", "sum"):
                noted.reductions.add(reduction or "none")
            elif mask is not None:
                noted.reductions.add("masked")
            elif reduction == "mean_with_sample_weight" and sample_weight is not None:
                noted.reductions.add("weighted")
        return original(values, sample_weight, mask, reduction, dtype)

    return reduce


def _noting_added(model: keras.Model, noted: NotedStep) -> dict[str, Any]:
    def total(original: Any, loss: Any) -> Any:
        noted.added.append(tuple(loss.shape))
        return original(loss)

    return private_layers.added_loss_reduction(model, total)


def _plain_update(original: Any, metric: keras.metrics.Mean, values: Any, sample_weight: Any) -> Any:
    return original(metric, values, sample_weight)


def _plain_gradient(original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    return original(tape, target, sources, *args, **kwargs)
