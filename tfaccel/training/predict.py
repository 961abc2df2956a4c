"""`tfaccel.predict`: `Model.predict` with correct results under every strategy."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.argument_types import checks_types
from tfaccel.data.sources import whole_executions
from tfaccel.errors import WorkloadError
from tfaccel.training.inputs import checked_callbacks, make_source, prepared_model
from tfaccel.training.own_methods import call_own_method, given_arguments, needs_keras_loop, overrides
from tfaccel.training.private import private_models
from tfaccel.training.steps.engine import get_engine
from tfaccel.training.steps.replica_state import average_drifting
from tfaccel.training.workers.lost_worker import names_lost_workers


@names_lost_workers
def predict(
    model: keras.Model,
    x: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    check_rows: bool = True,
    **own: Any,
) -> Any:
    """Generates predictions with a Keras 3 model. Arguments have the same meaning as in `Model.predict`.

    Rows are returned in input order, and with several workers each returns all rows. Outputs are copied to host memory
    batch by batch. With `compile(steps_per_execution=k)`, callback hooks run once every `k` batches, as in Keras.

    Args:
        model: a `keras.Model`, compiled or not.
        x, batch_size, verbose, steps, callbacks:
            see https://keras.io/api/models/model_training_apis/#predict-method.
        check_rows: with several replicas, predict the first batch on one device, too, and compare. False leaves this
            out.
        **own: arguments of the model's own `predict`, if it has one with others than Keras's.

    Returns:
        A NumPy array, or nested arrays in the structure of the model's outputs; ragged and sparse outputs stay tensors.

    Raises:
        CoupledRowsError: if several replicas would predict other values than one device.
        TypeError: for an argument that neither Keras nor the model has.
        ValueError: if `Model.predict` refuses the arguments.

    Example:

    >>> import keras, numpy as np, tfaccel
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
    >>> tfaccel.predict(model, np.ones((2, 4)), verbose=0)
    array([[4.],
           [4.]], dtype=float32)
    """
    arguments = given_arguments(predict, locals())
    run = partial(engine_predict, check_rows=check_rows)
    if isinstance(model, keras.Model) and overrides(model, "predict"):
        return call_own_method(model, "predict", arguments, {"predict": run})
    return run(model, **arguments)


@checks_types(WorkloadError, checks_numbers=True)
def engine_predict(
    model: keras.Model,
    x: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    check_rows: bool = True,
) -> Any:
    """`keras.Model.predict`, run by the engine."""
    replicas = prepared_model(model, "predict")
    if needs_keras_loop(model, "predict"):
        return keras.Model.predict(model, x, batch_size, verbose, steps, callbacks)
    source = make_source(
        x, replicas=replicas, batch_size=batch_size, steps=steps, steps_per_execution=model.steps_per_execution
    )
    if not replicas.is_default:
        private_models.build_model(model, source.batch_spec, "predict")
    engine = get_engine(model)
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            checked_callbacks(callbacks),
            add_progbar=verbose != 0 and replicas.is_chief,
            model=model,
            verbose=verbose,
            epochs=1,
            steps=source.steps_per_epoch or source.num_batches,
        )
    average_drifting(model, replicas)
    model.stop_predicting = False
    callbacks.on_predict_begin()
    executions: list[Any] = []
    done = 0
    feed = source.feed()
    while not feed.exhausted and (source.epoch_limit is None or done < source.epoch_limit):
        callbacks.on_predict_batch_begin(done)
        batches: list[Any] = []
        while len(batches) < source.steps_per_execution and not (batches and feed.exhausted):
            with engine.checks.turned(check_rows):
                batches.append(_to_host(engine.checks.predict(feed)))
        done += len(batches)
        executions.append(_joined(batches))
        last = whole_executions(done, source.steps_per_execution) - 1
        callbacks.on_predict_batch_end(last, {"outputs": executions[-1]})
        if model.stop_predicting:
            break
    source.epoch_end(done, stopped=model.stop_predicting)
    source.close()
    callbacks.on_predict_end()
    if not executions:
        raise ValueError("Received data without any batches. `predict` expects at least one row.")
    return _joined(executions)


def _to_host(outputs: Any) -> Any:
    def as_array(value: Any) -> Any:
        return value if isinstance(value, tf.RaggedTensor | tf.SparseTensor) else np.asarray(value)

    return keras.tree.map_structure(as_array, outputs)


def _joined(batches: list[Any]) -> Any:
    """Concatenates the outputs of several batches."""
    return keras.tree.map_structure(lambda *parts: _joined_parts(parts), *batches) if len(batches) > 1 else batches[0]


def _joined_parts(parts: tuple[Any, ...]) -> Any:
    """The rows of several batches; a `tf.RaggedTensor`, as in Keras, if they differ in another dimension."""
    if any(isinstance(part, tf.RaggedTensor) for part in parts):
        return tf.concat([part if isinstance(part, tf.RaggedTensor) else tf.constant(part) for part in parts], axis=0)
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(parts))
    if not parts[0].ndim:
        return np.stack(parts)
    sizes = [set(of_parts) for of_parts in zip(*(part.shape[1:] for part in parts), strict=True)]
    if all(len(found) == 1 for found in sizes):
        return np.concatenate(parts, axis=0)
    num_inner = next(number for number, found in enumerate(reversed(sizes)) if len(found) > 1)
    inner_shape = parts[0].shape[parts[0].ndim - num_inner :] if num_inner else None
    batches = tf.ragged.constant([part.tolist() for part in parts], dtype=parts[0].dtype, inner_shape=inner_shape)
    return batches.merge_dims(0, 1)
