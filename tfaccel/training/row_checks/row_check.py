"""Finds, before the first step, what couples the rows of a batch and would make N replicas differ from one device.

On several replicas, a loss must be a mean over the rows (or a sum that Keras reduces), and layers must process each row
independently. Let `A` and `B` be two parts of the first batch with m rows each. A step runs on `A`, on `B`, and on both
together, with the same seeds and no lasting updates. Per-row values must be equal in `A` alone and in the first half of
`A, B`; a mean `q` over the rows must satisfy `q(A, B) = (q(A) + q(B)) / 2`. If a step draws random numbers, `B` gets
different ones after `A` than alone, and the condition becomes `q(A, B) - q(B, B) = (q(A) - q(B)) / 2`. A failed check
is therefore repeated with more runs: on `B, B`, on `A, B` again, and on `A, B` with other random numbers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import CoupledRowsError
from tfaccel.training.private import private_api
from tfaccel.training.row_checks.numbers_alike import are_close, is_mean, spread_of
from tfaccel.training.row_checks.observed_run import Run, num_rows_of, observed_run, unchanged
from tfaccel.training.steps.global_batch import global_losses
from tfaccel.training.steps.merged_metrics import mark_gathered
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replica_state import seed_variables
from tfaccel.training.steps.replicas import Replicas

logger = logging.getLogger("tfaccel")

MAX_PART_ROWS = 4
MAX_ROWS = 64  # the parts are chosen from the first MAX_ROWS rows of the batch
_OTHER_SEEDS = ("again", "reseeded", "reseeded twice", "reseeded thrice")  # runs on AB; the index is added to the seeds
_ROUNDS = (("AB", "A", "B"), ("BB", "again", "reseeded"), ("reseeded twice", "reseeded thrice"))
ADVICE = (
    "Return one value per row instead of a sum, and use tfaccel.ops.all_gather_rows to gather rows that are compared "
    "with each other; clip gradients by the optimizer's `global_clipnorm` instead of in the step; or build the model "
    "outside the strategy to train on one replica. check_rows=False skips this check."
)


def check_rows(model: keras.Model, replicas: Replicas, batch: Any, kind: str) -> bool:
    """Checks a model's step on a few rows of a batch; adds metrics whose state is not a sum to `GATHERED`.

    Args:
        model: a built and compiled model.
        replicas: the replicas of the model's strategy.
        batch: one batch, as eager tensors.
        kind: "train", "test" or "predict".

    Returns:
        Whether the step gathers rows over the replicas.

    Raises:
        CoupledRowsError: names the layer, loss, metric or step that couples the rows, and how to fix it.
    """
    name_of_step = f"{type(model).__name__}.{kind}_step"
    problem, parts, gathers = None, None, False
    for part_rows in range(MAX_PART_ROWS, 0, -1):
        try:
            parts = _parts(batch, part_rows)
            if parts is None:
                continue
            problem, draws, gathers = _check(model, replicas, parts, kind)
            if problem is None and draws and kind == "train":  # the check is stricter without dropout
                own = has_own_train_step(model)
                problem, _, _ = _check(model, replicas, parts, "train" if own else "test", still=own)
        except _LengthIsAmbiguous:
            continue
        except Exception as error:  # the first real step raises it too, unless it is due to the few rows
            logger.warning("%s could not be checked for coupled rows: %r", name_of_step, error)
        break
    if problem is not None and parts is not None:
        what = _coupling_layer(model, replicas, parts, kind) or problem
        raise CoupledRowsError(
            f"{what.format(step=name_of_step)}, so {replicas.num_replicas} replicas, each of which sees only its own "
            f"rows of the batch, would not give the results of one device. {ADVICE}"
        )
    return gathers


def _check(
    model: keras.Model, replicas: Replicas, parts: dict[str, Any], kind: str, *, still: bool = False
) -> tuple[str | None, bool, bool]:
    """Returns what couples the rows, or None, and whether the step draws random numbers, and gathers rows.

    Raises:
        _LengthIsAmbiguous: if a layer adds a loss of fixed length that happens to equal the number of rows.
    """
    with unchanged(model, replicas) as reset:
        runs: dict[str, Run] = {}
        for names in _ROUNDS:
            for name in names:
                reset()
                for state in seed_variables(model) if name in _OTHER_SEEDS else ():
                    state.assign(tf.convert_to_tensor(state) + _OTHER_SEEDS.index(name))
                runs[name] = observed_run(model, parts.get(name, parts["AB"]), kind, still=still)
            if _is_length_ambiguous(runs["A"], runs["AB"]):
                raise _LengthIsAmbiguous
            draws = _draws(runs)
            problem = _problem(model, runs, draws=draws)
            if problem is None:
                break
        reset()
        with global_losses(model):
            mark_gathered(model, runs["AB"].updates, num_rows_of(parts["AB"]))
    return problem, draws, any(run.gathers for run in runs.values())


class _LengthIsAmbiguous(Exception):
    """Signals that the check must be repeated with another number of rows."""


def _is_length_ambiguous(one: Run, other: Run) -> bool:
    for name in (name for name in one.values if name.startswith("added loss")):
        loss, loss_of_other = one.values[name], other.values.get(name)
        if loss_of_other is not None and loss.shape == loss_of_other.shape and (name in one.by_row | other.by_row):
            return True
    return False


def _parts(batch: Any, part_rows: int) -> dict[str, Any] | None:
    """The batches to run the step on; None if the batch has too few rows or contains sparse tensors."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    if not leaves or any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        return None
    with_rows = [leaf for leaf in leaves if leaf.shape.rank]
    num_rows = min((int(leaf.shape[0] or 0) for leaf in with_rows), default=0)
    if num_rows < 2 * part_rows:
        return None
    # Comparing the rows with the least and the most padding reveals a division by the number of unpadded values.
    order = np.argsort(sum(_padding(leaf[: min(num_rows, MAX_ROWS)]) for leaf in with_rows), kind="stable").tolist()
    first, second = order[:part_rows], order[-part_rows:]

    def take(rows: list[int]) -> Any:
        def of(leaf: Any) -> Any:
            return leaf if leaf is None or not leaf.shape.rank else tf.gather(leaf, rows)

        return keras.tree.map_structure(of, batch)

    return {"AB": take(first + second), "BB": take(second + second), "A": take(first), "B": take(second)}


def _padding(leaf: Any) -> Any:
    """The number of zero or empty values in each row; for ragged rows, the negative length."""
    if isinstance(leaf, tf.RaggedTensor):
        return -leaf.row_lengths().numpy()
    by_row = tf.reshape(leaf, [leaf.shape[0], -1])
    return tf.reduce_sum(tf.cast(tf.equal(by_row, tf.zeros_like(by_row)), tf.int64), axis=1).numpy()


def _problem(model: keras.Model, runs: dict[str, Run], *, draws: bool) -> str | None:
    """The start of an error message that names what couples the rows; None if nothing is found or rows are gathered."""
    if any(run.gathers for run in runs.values()):
        return None
    values = {which: run.values for which, run in runs.items()}
    for name, value in values["AB"].items():
        found = {which: of_run.get(name) for which, of_run in values.items()}
        spread = spread_of(value, [found[which] for which in _OTHER_SEEDS if which in found])
        if name in runs["AB"].by_row:
            alike = found["A"] is None or are_close(value[: found["A"].shape[0]], found["A"], spread)
        else:
            others = [found[which] for which in (("A", "B", "BB") if draws else ("A", "B"))]
            comparable = all(other is not None and other.shape == value.shape for other in others)
            alike = not comparable or is_mean(value, *others, spread=spread)
        if not alike:
            unreduced = any(one.startswith("unreduced loss") for one in values["AB"])
            return _named(model, "unreduced loss 0" if unreduced and name not in runs["AB"].by_row else name)
    return None


def _draws(runs: dict[str, Run]) -> bool:
    """Whether any value differs by more than rounding when a run is repeated or its random numbers change."""
    reruns = [runs[which].values for which in _OTHER_SEEDS if which in runs]
    for name, value in runs["AB"].values.items() if reruns else ():
        others = [rerun.get(name) for rerun in reruns]
        size = float(tf.norm(tf.cast(value, tf.float64)))
        if np.isfinite(size) and spread_of(value, others) > 1e-5 * size:
            return True
    return False


def _named(model: keras.Model, name: str) -> str:
    kind, detail = name.split(" ", 1) if name.startswith("log ") else name.rsplit(" ", 1)
    losses = [getattr(one, "name", None) or getattr(one, "__name__", one) for one in keras.tree.flatten(model.loss)]
    compiled = (
        f"The loss ({', '.join(map(str, losses))}) is not a mean over the rows: it compares the rows of a batch, sums "
        "over them, or divides by something other than their number"
    )
    own_loss = f"{type(model).__name__}.compute_loss is not a mean over the rows of the batch"
    overrides_loss = type(model).compute_loss is not keras.Model.compute_loss
    adding = private_api.names_of_layers_that_add_losses(model)
    return {
        "output": f"The output of {type(model).__name__} for one row depends on the other rows of the batch",
        "loss": compiled,
        "added loss": f"A loss added by layer {', '.join(adding)} is neither a mean over the rows nor one value per "
        "row",
        "unreduced loss": "A loss has reduction='none', and what {step} makes of its values is not their sum over the "
        "rows (for their mean, use reduction='sum_over_batch_size')",
        "compute_loss": own_loss if overrides_loss else compiled,
        "log": f"Log {detail!r} of {{step}} is not a mean over the rows of the batch: return a metric's result",
        "metric": f"Metric {detail!r} is updated with a scalar that is not a mean over the rows of the batch",
    }.get(kind, "The gradients that {step} applies are not means over the rows of the batch")


def _coupling_layer(model: keras.Model, replicas: Replicas, parts: dict[str, Any], kind: str) -> str | None:
    """Names the first layer inside the model whose output for one row depends on the other rows."""
    outputs: list[dict[str, Any]] = []
    layers = [layer for layer in private_api.all_layers(model) if layer is not model]
    with unchanged(model, replicas) as reset, contextlib.ExitStack() as stack:
        for layer in layers:
            if not isinstance(layer, keras.layers.BatchNormalization):
                stack.enter_context(instance_attributes(layer, {"call": _recording_call(layer, outputs)}))
        for name in ("AB", "A"):
            outputs.append({})
            reset()
            observed_run(model, parts[name], kind)
    both, first = outputs
    size = num_rows_of(parts["A"])
    for name, (kind_of_layer, value) in both.items():
        part = first[name][1] if name in first else value
        has_rows = value.shape.rank and part.shape.rank and (value.shape[0], part.shape[0]) == (2 * size, size)
        if has_rows and not are_close(value[:size], part):
            return f"Layer {name!r} ({kind_of_layer}) mixes the rows of a batch"
    return None


def _recording_call(layer: keras.layers.Layer, outputs: list[dict[str, Any]]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = type(layer).call(layer, *args, **kwargs)
        leaves = [leaf for leaf in keras.tree.flatten(result) if isinstance(leaf, tf.Tensor)]
        if leaves:
            outputs[-1].setdefault(layer.name, (type(layer).__name__, leaves[0]))
        return result

    return call
