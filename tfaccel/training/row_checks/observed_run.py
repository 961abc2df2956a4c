"""Runs one step of a model eagerly and records its values, without changing the model."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.steps.global_batch import Share, global_losses, keeps_values, replica_share
from tfaccel.training.steps.merged_metrics import NotedResults, metrics_in
from tfaccel.training.steps.model_parts import has_own_test_step, has_own_train_step, optimizers_of, variables_of
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas


@dataclass
class Run:
    """The values recorded in one run of a step, keyed by the name of their source.

    Attributes:
        by_row: tensors with one value per row.
        means: tensors that must be means over the rows.
        updates: calls of the metrics' `update_state`: the metric, `args` and `kwargs`.
        gathers: whether the step gathered rows over the replicas.
    """

    by_row: dict[str, Any] = field(default_factory=dict)
    means: dict[str, Any] = field(default_factory=dict)
    updates: list[tuple[keras.metrics.Metric, Any, Any]] = field(default_factory=list)
    gathers: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """All tensors."""
        return self.by_row | self.means


@contextlib.contextmanager
def unchanged(model: keras.Model, replicas: Replicas) -> Iterator[Callable[[], None]]:
    """Makes the model use the first local replica's variables; yields a function that restores their values."""
    touched = variables_of(model)
    with replicas.local(touched, 0):
        variables = [private_api.tf_variable(v) for v in touched]
        before = [tf.identity(variable) for variable in variables]

        def reset() -> None:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

        try:
            yield reset
        finally:
            reset()


def observed_run(model: keras.Model, data: Any, kind: str, *, still: bool = False) -> Run:
    """Runs one step on `data`, with BatchNormalization in inference mode and without applying gradients.

    Args:
        model: a built and compiled model.
        data: a batch, as eager tensors.
        kind: "train", "test" or "predict".
        still: also run layers that draw random numbers in training, such as dropout, in inference mode.
    """
    run, share = Run(), Share(1.0, 1, data=data, weighs_gradients=True, keeps_values=keeps_values(model))
    num_rows = num_rows_of(data)

    def observe(what: str, values: Any) -> None:
        name = f"{what} {len(run.by_row) + len(run.means)}"
        by_row = len(values.shape) > 0 and values.shape[0] == num_rows
        (run.by_row if by_row else run.means)[name] = tf.identity(values)

    share.observe = observe
    own_steps = {"train": has_own_train_step, "test": has_own_test_step}
    with contextlib.ExitStack() as stack:
        stack.enter_context(global_losses(model))
        stack.enter_context(replica_share(share))
        # The plan and the user decide over which rows BatchNormalization computes its statistics.
        layers = [
            layer
            for layer in private_api.all_layers(model)
            if isinstance(layer, keras.layers.BatchNormalization) or (still and draws(layer))
        ]
        stack.enter_context(in_inference_mode(layers))
        for metric in metrics_in(model):
            stack.enter_context(instance_attributes(metric, {"update_state": _noting(metric, run)}))
        for name, optimizer in optimizers_of(model).items():
            stack.enter_context(instance_attributes(optimizer, _keeping_gradients(name, run)))
        if kind == "predict":
            _note_outputs(model.predict_step(data), run, num_rows)
        elif own_steps[kind](model):
            _own_step(model, data, run, model.train_step if kind == "train" else model.test_step)
        else:
            _default_step(model, data, run, training=kind == "train")
    run.gathers = share.gathers
    return run


def _own_step(model: keras.Model, data: Any, run: Run, step: Callable[[Any], Any]) -> None:
    noted = NotedResults()
    with noted.while_tracing(metrics_in(model)):
        logs = noted.look_at(step(data)) or {}
    for name, value in logs.items():  # logs other than metric results are averaged over the replicas
        if name not in noted.of_logs and tf.is_tensor(value) and value.dtype.is_floating and not value.shape.rank:
            run.means[f"log {name}"] = value


def _default_step(model: keras.Model, data: Any, run: Run, *, training: bool) -> None:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = private_api.call_model(model, x, training=training)
    _note_outputs(y_pred, run, num_rows_of(data))
    loss = private_api.compute_loss(model, x, y, y_pred, sample_weight, training=training)
    if loss is not None:
        run.means["compute_loss all"] = loss
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _note_outputs(outputs: Any, run: Run, num_rows: int) -> None:
    for place, output in enumerate(keras.tree.flatten(outputs)):
        is_numbers = isinstance(output, tf.Tensor) and output.dtype.is_floating
        if is_numbers and output.shape.rank and output.shape[0] == num_rows:
            run.by_row[f"output {place}"] = output


def num_rows_of(data: Any) -> int:
    """The number of rows of a batch."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None and leaf.shape.rank]
    return int(leaves[0].shape[0])


def draws(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws random numbers in training, and none in inference mode."""
    draws = any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())
    return draws and "training" in inspect.signature(layer.call).parameters


@contextlib.contextmanager
def in_inference_mode(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Within the block, these layers run in inference mode, whatever mode they are called in."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(instance_attributes(layer, {"call": _inference_call(layer)}))
        yield


def _inference_call(layer: keras.layers.Layer) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(type(layer).call).bind(layer, *args, **kwargs)
        bound.arguments["training"] = False
        return type(layer).call(*bound.args, **bound.kwargs)

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
    """Attributes that make an optimizer record its gradients instead of applying them."""

    def apply(gradients: Any, trainable_variables: Any = None) -> None:
        del trainable_variables
        dense = [tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients if g is not None]
        if dense:
            run.means[f"gradients of {name} {len(run.means)}"] = tf.concat([tf.cast(g, tf.float32) for g in dense], 0)

    return {"apply": apply, "apply_gradients": lambda pairs: apply([g for g, _ in pairs])}
