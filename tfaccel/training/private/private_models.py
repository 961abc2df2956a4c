"""Creates a model's variables before a step is traced, using the private API of Keras's trainer and models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import DataError, PlanError
from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_api import all_layers, compiled_parts
from tfaccel.training.private.private_layers import patched
from tfaccel.training.private.private_random import distribute_global_seeds
from tfaccel.training.private.private_workers import broadcast_at_once
from tfaccel.training.steps.embeddings import slots_on_host
from tfaccel.training.steps.gather_rows import has_own_loss
from tfaccel.training.steps.merged_metrics import own_metrics
from tfaccel.training.steps.model_parts import get_optimizers, has_own_test_step, has_own_train_step
from tfaccel.training.steps.overrides import attributes_of_each, instance_attributes, replaces
from tfaccel.training.steps.python_numbers import numbers_not_used_up
from tfaccel.training.steps.replica_state import move_into_scope
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.step_errors import (
    failure_of_one_device,
    fixed_rows,
    raise_missing_row,
    rows_of_replica,
    with_rows,
)


def build_model(model: keras.Model, batch_spec: Any, kind: str = "train") -> None:
    """Creates weights, loss, metrics and optimizer variables from the specs of one batch, without reading data.

    Under a strategy, variables must exist before the first trace. Without one, Keras creates them while tracing the
    first step, and so do tfaccel's `fit`, `evaluate` and `predict`.

    Args:
        batch_spec: specs of `x`, `(x, y)` or `(x, y, sample_weight)`.
        kind: the step that will run: "train", "test" or "predict".

    Raises:
        PlanError: if the model cannot be built from specs alone.
    """
    strategy = model.distribute_strategy
    num_replicas = strategy.num_replicas_in_sync
    if num_replicas > 1:
        distribute_global_seeds(strategy)
    move_into_scope(model)
    try:
        with strategy.scope(), broadcast_at_once(), slots_on_host(model):
            try:
                _build(model, _of_one_replica(model, batch_spec, num_replicas), kind)
            except Exception:
                if not _has_parts_for_all_rows(model, kind) or not _can_build(model, _of_any_rows(batch_spec), kind):
                    raise  # else steps may compute these parts from the rows of all replicas
    except DataError:  # which names the cause already
        raise
    except Exception as error:
        _raise_cause(model, batch_spec, kind, error)
        raise
    move_into_scope(model)  # the metrics that Keras has just built


def _build(model: keras.Model, batch_spec: Any, kind: str) -> None:
    specs = keras.tree.map_structure(_as_keras_tensor, batch_spec)
    steps = {"train": (has_own_train_step, model.train_step), "test": (has_own_test_step, model.test_step)}
    if kind in steps and steps[kind][0](model):
        _build_by_own_step(model, steps[kind][1], specs)
    elif kind == "predict":
        if not _is_built(model):
            _compute_output_spec(model.predict_step, specs)
    else:
        _build_as_keras(model, specs)


def _has_parts_for_all_rows(model: keras.Model, kind: str) -> bool:
    """Whether a loss or a metric of the user's may need more rows than one replica has."""
    is_of_keras = {"train": not has_own_train_step(model), "test": not has_own_test_step(model)}.get(kind, False)
    many = model.distribute_strategy.num_replicas_in_sync > 1
    return many and is_of_keras and (has_own_loss(model) or bool(own_metrics(model)))


def _can_build(model: keras.Model, batch_spec: Any, kind: str) -> bool:
    """Builds a model that cannot be built on the rows of one replica; whether that has worked."""
    try:
        _build(model, batch_spec, kind)
    except Exception:
        return False
    return True


def _raise_cause(model: keras.Model, batch_spec: Any, kind: str, error: Exception) -> None:
    """Raises what one device would, or PlanError for a fixed number of rows; else does nothing."""
    replicas = Replicas(model.distribute_strategy)
    of_one = failure_of_one_device(model, replicas, kind, batch_spec)
    if of_one is not None:
        if model.run_eagerly:  # then one device has values
            return
        raise of_one from None
    sizes = rows_of_replica(batch_spec, replicas.num_replicas)
    if replicas.num_replicas == 1 or sizes is None:
        return
    failure = failure_of_one_device(model, replicas, kind, with_rows(batch_spec, sizes[1]))
    if failure is not None:
        raise PlanError(fixed_rows(f"{type(model).__name__}.{kind}_step", sizes, failure)) from error


def _of_any_rows(batch_spec: Any) -> Any:
    """The specs of a batch of dense tensors with any number of rows."""

    def of_any(spec: Any) -> Any:
        is_dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if is_dense else spec

    return keras.tree.map_structure(of_any, batch_spec)


def _of_one_replica(model: keras.Model, batch_spec: Any, num_replicas: int) -> Any:
    """The specs of a replica's rows; a `Sequential` keeps the number of rows that it is built with as its only one."""
    if num_replicas == 1:
        return batch_spec
    any_rows = isinstance(model, keras.Sequential) and not any(
        getattr(layer, "stateful", False) for layer in all_layers(model)
    )

    def of_replica(spec: Any) -> Any:
        kind = tf.SparseTensorSpec if isinstance(spec, tf.SparseTensorSpec) else tf.TensorSpec
        if not isinstance(spec, kind) or not spec.shape.rank or spec.shape[0] is None:
            return spec
        rows = None if any_rows or spec.shape[0] % num_replicas else spec.shape[0] // num_replicas
        return kind([rows, *spec.shape[1:]], spec.dtype)

    return keras.tree.map_structure(of_replica, batch_spec)


def _build_as_keras(model: keras.Model, specs: Any) -> None:
    """Builds as Keras does, which calls the model symbolically; a functional model's known outputs replace the call."""
    build = private_part(model, "_symbolic_build")
    outputs = _known_outputs(model, keras.utils.unpack_x_y_sample_weight(specs)[0])
    known = {} if outputs is None else {"call": lambda *_, **__: keras.tree.map_structure(_placeholder, outputs)}
    with instance_attributes(model, known):
        build(data_batch=specs)


def _build_by_own_step(model: keras.Model, step: Callable[[Any], Any], specs: Any) -> None:
    """Traces a custom step once without applying gradients, since only the step knows which variables it uses."""
    applied: list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]] = []

    def noting(optimizer: keras.optimizers.Optimizer) -> Callable[..., None]:
        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            del gradients
            applied.append((optimizer, list(trainable_variables or model.trainable_variables)))

        return apply

    if not _is_built(model):
        optimizers = get_optimizers(model).values()
        makes_seeds = not all(layer.built for layer in all_layers(model))  # those of weights are not drawn again
        numbers = contextlib.nullcontext() if makes_seeds else numbers_not_used_up()
        with attributes_of_each((one, {"apply": noting(one)}) for one in optimizers), _no_gradients(), numbers:
            try:
                _compute_output_spec(step, specs)
            except Exception as error:
                raise_missing_row(error, model.distribute_strategy.num_replicas_in_sync)
                raise PlanError(
                    f"{type(model).__name__}.{step.__name__} could not be traced without data to create the model's "
                    f"variables, which a strategy needs before the first step: {type(error).__name__}: {error}. Build "
                    "the model inside the strategy's scope by calling it (or its parts) once on a batch."
                ) from error
    for optimizer, variables in applied:
        if not optimizer.built:
            optimizer.build(variables)
    if model.optimizer is not None and not model.optimizer.built and _is_built(model):
        model.optimizer.build(model.trainable_variables)


def _no_gradients() -> contextlib.AbstractContextManager[None]:
    """While tracing to build: tapes watch nothing and return zeros, since new variables have no gradients yet."""

    def zeros(tape: tf.GradientTape, target: Any, sources: Any, *_: Any, **__: Any) -> Any:
        del tape, target
        return keras.tree.map_structure(lambda source: tf.zeros(tf.shape(source), source.dtype), sources)

    return patched(tf.GradientTape, gradient=zeros, watch=lambda tape, tensor: None)


def _is_built(model: keras.Model) -> bool:
    """Whether all layers and the compiled metrics and losses of the model are built."""
    parts = [layer for layer in all_layers(model) if layer is not model]
    has_call = replaces(model, keras.Model, "call")
    built = all(part is None or part.built for part in (*parts, *compiled_parts(model)))
    return built and (model.built or not has_call)


def _compute_output_spec(function: Callable[[Any], Any], specs: Any) -> Any:
    from keras.src import backend

    return private_part(backend, "compute_output_spec")(function, specs)


def _known_outputs(model: keras.Model, x: Any) -> Any:
    """The output specs of a built functional model for the input specs `x`; None if unknown."""
    from keras.src.models import functional

    kinds = (private_part(functional, "Functional"), keras.Sequential)
    if type(model) not in kinds or replaces(model, type(model), "call") or not model.built:
        return None
    given, wanted = keras.tree.flatten(x), keras.tree.flatten(model.inputs)
    if len(given) != len(wanted) or not all(_fits(*pair) for pair in zip(given, wanted, strict=True)):
        return None
    outputs = model.outputs[0] if type(model) is keras.Sequential else private_part(model, "_outputs_struct")
    if any(one.sparse or one.ragged or None in one.shape[1:] for one in keras.tree.flatten(outputs)):
        return None
    num_rows = given[0].shape[0]
    return keras.tree.map_structure(lambda one: keras.KerasTensor((num_rows, *one.shape[1:]), one.dtype), outputs)


def _fits(given: Any, wanted: Any) -> bool:
    """Whether a batch with spec `given` fits an input with spec `wanted`, ignoring the number of rows."""
    if given is None or len(given.shape) != len(wanted.shape) or len(given.shape) == 0:
        return False
    return all(size is None or own == size for own, size in zip(given.shape[1:], wanted.shape[1:], strict=True))


def _placeholder(spec: Any) -> Any:
    return tf.compat.v1.placeholder(spec.dtype, spec.shape)


def _as_keras_tensor(spec: Any) -> Any:
    if spec is None or not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
        return None
    return keras.KerasTensor(spec.shape, keras.backend.standardize_dtype(spec.dtype))
