"""Finds, before the first step, what couples the rows of a batch, so that N replicas would give other numbers than one.

The rule of several replicas is that a loss is a mean over the rows (or a sum that Keras reduces), and that layers treat
each row by itself. With `A`, `B` two parts of the first batch, of m rows each, a step is run on `A`, on `B`, on `A` and
`B` together, and on `B` twice, from the same seeds and with nothing kept. Values by row must be the same in `A` alone
and in the first half of `A, B`; of a mean `q` over the rows must hold `q(A, B) = (q(A) + q(B)) / 2`. Where a step draws
random numbers, `B` gets others behind `A` than alone, and what must hold is `q(A, B) - q(B, B) = (q(A) - q(B)) / 2`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import CoupledRowsError
from tfaccel.training import private_api
from tfaccel.training.global_batch import Share, global_losses, replica_share
from tfaccel.training.merged_metrics import mark_gathered, metrics_in
from tfaccel.training.model_parts import has_own_test_step, has_own_train_step, optimizers_of, variables_of
from tfaccel.training.numbers_alike import are_close, is_mean, repeats, spread_of
from tfaccel.training.overrides import instance_attributes
from tfaccel.training.replica_state import seed_variables
from tfaccel.training.replicas import Replicas

logger = logging.getLogger("tfaccel")

MAX_PART_ROWS = 4
ADVICE = (
    "Train on one replica (build the model outside of the strategy); or give what is summed as one value for each row, "
    "and gather what is compared with tfaccel.ops.all_gather_rows. tfaccel.fit(..., check_rows=False) skips this check."
)


@dataclass
class Run:
    """What one run of the step showed, by name of what it came from.

    Attributes:
        by_row: tensors that have a value for each row.
        means: tensors that have to be means over the rows.
        updates: the calls of `update_state` of metrics, with their arguments.
        gathers: rows were gathered over the replicas.
    """

    by_row: dict[str, Any] = field(default_factory=dict)
    means: dict[str, Any] = field(default_factory=dict)
    updates: list[tuple[keras.metrics.Metric, Any, Any]] = field(default_factory=list)
    gathers: bool = False


def check_rows(model: keras.Model, replicas: Replicas, batch: Any, kind: str) -> None:
    """Looks at a step of a model on a few rows of a batch; metrics whose state is no sum are marked as `GATHERED`.

    Args:
        model: a built and compiled model.
        replicas: the replicas of its strategy.
        batch: one batch, as eager tensors.
        kind: "train" or "test".

    Raises:
        CoupledRowsError: names the layer, loss, metric or step that couples the rows, and what can be done.
    """
    parts = _parts(batch)
    if parts is None:
        return
    name_of_step = f"{type(model).__name__}.{kind}_step"
    try:
        problem, draws = _check(model, replicas, parts, kind)
        if problem is None and draws and kind == "train" and not has_own_train_step(model):
            problem, _ = _check(model, replicas, parts, "test")  # without dropout more can be told
    except Exception as error:  # the first real step will say it, unless it is for the few rows
        logger.warning("%s could not be checked for what couples the rows of a batch: %r", name_of_step, error)
        return
    if problem is not None:
        what = _coupling_layer(model, replicas, parts, kind) or problem
        raise CoupledRowsError(
            f"{what.format(step=name_of_step)}, so {replicas.num_replicas} replicas, each of which sees only its own "
            f"rows of the batch, would give other numbers than one device. {ADVICE}"
        )


def _check(model: keras.Model, replicas: Replicas, parts: dict[str, Any], kind: str) -> tuple[str | None, bool]:
    """What couples the rows, or None; and whether the step draws random numbers."""
    with _unchanged(model, replicas) as reset:
        runs = {}
        for name in ("AB", "BB", "A", "B", "again", "reseeded"):
            reset()
            for state in seed_variables(model) if name == "reseeded" else ():
                state.assign(tf.convert_to_tensor(state) + 1)
            runs[name] = _run(model, parts.get(name, parts["AB"]), kind)
        reset()
        problem = _problem(model, runs)
        with global_losses(model):
            mark_gathered(runs["AB"].updates, _num_rows(parts["AB"]))
    drawn = [{**run.by_row, **run.means} for run in (runs["AB"], runs["reseeded"])]
    return problem, any(spread_of(value, drawn[1].get(name)) > 0 for name, value in drawn[0].items())


def _parts(batch: Any) -> dict[str, Any] | None:
    """The batches on which the step is run; None where the batch has too few rows, or sparse tensors."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    if not leaves or any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        return None
    with_rows = [leaf for leaf in leaves if leaf.shape.rank]
    num_rows = min((int(leaf.shape[0] or 0) for leaf in with_rows), default=0)
    size = min(MAX_PART_ROWS, num_rows // 2)
    if size == 0:
        return None
    first, second = list(range(size)), list(range(size, 2 * size))

    def take(rows: list[int]) -> Any:
        def of(leaf: Any) -> Any:
            return leaf if leaf is None or not leaf.shape.rank else tf.gather(leaf, rows)

        return keras.tree.map_structure(of, batch)

    return {"AB": take(first + second), "BB": take(second + second), "A": take(first), "B": take(second)}


@contextlib.contextmanager
def _unchanged(model: keras.Model, replicas: Replicas) -> Iterator[Callable[[], None]]:
    """Lets the model stand for the first local replica's; gives a function that puts all its variables back."""
    touched = {id(v): v for v in variables_of(model)}
    for layer in private_api.all_layers(model):  # the states of recurrent layers are not among a model's variables
        found = [*keras.tree.flatten(getattr(layer, "states", None) or []), *vars(layer).values()]
        touched |= {id(v): v for v in found if isinstance(v, keras.Variable)}
    with replicas.local(list(touched.values()), 0):
        variables = [private_api.tf_variable(v) for v in touched.values()]
        before = [tf.identity(variable) for variable in variables]

        def reset() -> None:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

        try:
            yield reset
        finally:
            reset()


def _run(model: keras.Model, data: Any, kind: str) -> Run:
    run, share = Run(), Share(1.0, 1, data=data, weighs_gradients=True)
    num_rows = _num_rows(data)

    def observe(what: str, values: Any) -> None:
        name = f"{what} {len(run.by_row) + len(run.means)}"
        by_row = len(values.shape) > 0 and values.shape[0] == num_rows
        (run.by_row if by_row else run.means)[name] = tf.identity(values)

    share.observe = observe
    own = has_own_train_step(model) if kind == "train" else has_own_test_step(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(global_losses(model))
        stack.enter_context(replica_share(share))
        for layer in private_api.all_layers(model):
            if isinstance(layer, keras.layers.BatchNormalization):
                stack.enter_context(instance_attributes(layer, {"call": _inference_call(layer)}))
        for metric in metrics_in(model):
            stack.enter_context(instance_attributes(metric, {"update_state": _noting(metric, run)}))
        for name, optimizer in optimizers_of(model).items():
            stack.enter_context(instance_attributes(optimizer, _keeping_gradients(name, run)))
        if own:
            (model.train_step if kind == "train" else model.test_step)(data)
        else:
            _default_step(model, data, run, training=kind == "train")
    run.gathers = share.gathers
    return run


def _default_step(model: keras.Model, data: Any, run: Run, *, training: bool) -> None:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = private_api.call_model(model, x, training=training)
    num_rows = _num_rows(data)
    for place, output in enumerate(keras.tree.flatten(y_pred)):
        if isinstance(output, tf.Tensor) and output.shape.rank and output.shape[0] == num_rows:
            run.by_row[f"output {place}"] = output
    loss = private_api.compute_loss(model, x, y, y_pred, sample_weight, training=training)
    if loss is not None:
        run.means["compute_loss all"] = loss
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _num_rows(data: Any) -> int:
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None and leaf.shape.rank]
    return int(leaves[0].shape[0])


def _inference_call(layer: keras.layers.Layer) -> Callable[..., Any]:
    """Batch normalization as in inference: how its statistics are taken is the plan's and the user's to say."""

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return type(layer).call(layer, inputs, training=False, mask=mask)

    return call


def _noting(metric: keras.metrics.Metric, run: Run) -> Callable[..., Any]:
    def update_state(*args: Any, **kwargs: Any) -> Any:
        run.updates.append((metric, args, kwargs))
        is_mean = type(metric) is keras.metrics.Mean and len(args) == 1 and not kwargs
        if is_mean and not tf.convert_to_tensor(args[0]).shape.rank:
            run.means[f"metric {metric.name}"] = tf.cast(args[0], tf.float32)
        return type(metric).update_state(metric, *args, **kwargs)

    return update_state


def _keeping_gradients(name: str, run: Run) -> dict[str, Any]:
    """Attributes of an optimizer that applies nothing and keeps what it was given."""

    def apply(gradients: Any, trainable_variables: Any = None) -> None:
        del trainable_variables
        dense = [tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients if g is not None]
        if dense:
            run.means[f"gradients of {name} {len(run.means)}"] = tf.concat([tf.cast(g, tf.float32) for g in dense], 0)

    return {"apply": apply, "apply_gradients": lambda pairs: apply([g for g, _ in pairs])}


# --- Judging ------------------------------------------------------------------------------------------------------


def _problem(model: keras.Model, runs: dict[str, Run]) -> str | None:
    """What couples the rows, as the beginning of a sentence; None if nothing does or nobody can tell."""
    both, first = runs["AB"], runs["A"]
    if any(run.gathers for run in runs.values()):
        return None
    for name, values in both.by_row.items():
        if name in first.by_row and repeats(values, runs["again"].by_row.get(name)):
            part, spread = first.by_row[name], spread_of(values, runs["reseeded"].by_row.get(name))
            if not are_close(values[: part.shape[0]], part, spread):
                return _named(model, name)
    for name, value in both.means.items():
        if not repeats(value, runs["again"].means.get(name)):
            continue
        others = [runs[which].means.get(name) for which in ("BB", "A", "B")]
        if any(other is None or other.shape != value.shape for other in others):
            continue
        if not is_mean(value, *others, spread=spread_of(value, runs["reseeded"].means.get(name))):
            return _named(model, name)
    return None


def _named(model: keras.Model, name: str) -> str:
    kind, detail = name.rsplit(" ", 1)
    losses = [getattr(one, "name", None) or getattr(one, "__name__", one) for one in keras.tree.flatten(model.loss)]
    compiled = (
        f"The loss ({', '.join(map(str, losses))}) is no mean over the rows: it compares the examples of a batch, sums "
        "them, or divides by something of its own"
    )
    own_loss = f"{type(model).__name__}.compute_loss is no mean over the rows of the batch"
    overrides_loss = type(model).compute_loss is not keras.Model.compute_loss
    adding = private_api.names_of_layers_that_add_losses(model)
    return {
        "output": f"The output of {type(model).__name__} for one row depends on the other rows of the batch",
        "loss": compiled,
        "added loss": f"A loss that is added by layer {', '.join(adding)} is neither a mean over the rows nor a value "
        "for each",
        "compute_loss": own_loss if overrides_loss else compiled,
        "metric": f"Metric {detail!r} is updated with a number that is no mean over the rows of the batch",
    }.get(kind, "The gradients that {step} applies are no means over the rows of the batch")


def _coupling_layer(model: keras.Model, replicas: Replicas, parts: dict[str, Any], kind: str) -> str | None:
    """Names the first layer inside the model whose output for one row depends on the others."""
    outputs: list[dict[str, Any]] = []
    layers = [layer for layer in private_api.all_layers(model) if layer is not model]
    with _unchanged(model, replicas) as reset, contextlib.ExitStack() as stack:
        for layer in layers:
            if not isinstance(layer, keras.layers.BatchNormalization):
                stack.enter_context(instance_attributes(layer, {"call": _recording_call(layer, outputs)}))
        for name in ("AB", "A"):
            outputs.append({})
            reset()
            _run(model, parts[name], kind)
    both, first = outputs
    size = _num_rows(parts["A"])
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
