"""`tfaccel.evaluate` and `tfaccel.predict`: Keras's methods, correct under every strategy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.sources import whole_executions
from tfaccel.training.front import Source, checked_callbacks, make_source, on_engine
from tfaccel.training.private import private_api, private_models
from tfaccel.training.steps.engine import Engine, get_engine
from tfaccel.training.steps.merged_metrics import flat_logs
from tfaccel.training.steps.replica_state import average_drifting
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.windows import WindowLength, epoch_windows


@on_engine()
def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool | None = False,
    *,
    check_rows: bool = True,
    **own: Any,
) -> Any:
    """Evaluates a compiled Keras 3 model; all arguments have the same meaning as in `Model.evaluate`.

    Under every strategy, loss and metrics equal those of one device on the same batches. The notes in `fit` on
    executions and on changes after `compile` apply here too.

    Args:
        model: a compiled `keras.Model`.
        x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict:
            see https://keras.io/api/models/model_training_apis/#evaluate-method.
        check_rows: with several replicas, run the first step on one device, too, and compare. False leaves this out.
        **own: arguments of the model's own `evaluate`, if it has one with others than Keras's.

    Returns:
        The loss; or a list of loss and metrics; or, with `return_dict`, a dict from name to value.

    Raises:
        CoupledRowsError: if several replicas cannot evaluate the model as one device does.
        TypeError: for an argument that neither Keras nor the model has.
        ValueError: if the model is not compiled, or `Model.evaluate` refuses the arguments.

    Example:

    >>> import keras, numpy as np, tfaccel
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    >>> model.compile("sgd", "mse")
    >>> tfaccel.evaluate(model, np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    1.0
    """
    source = make_source(
        x,
        y,
        sample_weight,
        replicas=Replicas(model.distribute_strategy),
        batch_size=batch_size,
        steps=steps,
        steps_per_execution=model.steps_per_execution,
    )
    options: dict[str, Any] = {"verbose": verbose, "callbacks": callbacks, "return_dict": return_dict}
    try:
        return evaluate_source(model, source, check_rows=check_rows, **options)
    finally:
        source.close()


def evaluate_source(
    model: keras.Model,
    source: Source,
    *,
    verbose: int | str = "auto",
    callbacks: Any = None,
    return_dict: bool | None = False,
    check_rows: bool = True,
) -> Any:
    """Evaluates on the batches of a source, which stays open; the other arguments are those of `evaluate`."""
    engine, container = _engine_and_callbacks(model, source, "test", callbacks, verbose)
    with engine.checks.turned(check_rows):
        logs = run_evaluation(engine, source, container)
    return logs if return_dict else private_api.flatten_logs(model, logs)


def _engine_and_callbacks(
    model: keras.Model, source: Source, kind: str, callbacks: Any, verbose: int | str
) -> tuple[Engine, keras.callbacks.CallbackList]:
    """The engine of a model that is not trained now, and its callbacks."""
    replicas = Replicas(model.distribute_strategy)
    if not replicas.is_default:
        private_models.build_model(model, source.batch_spec, kind)
    engine = get_engine(model)
    container = make_callbacks(callbacks, engine, source, verbose=verbose)
    average_drifting(model, replicas)
    return engine, container


def make_callbacks(
    callbacks: Any, engine: Engine, source: Source, *, verbose: int | str, epochs: int | None = None
) -> keras.callbacks.CallbackList:
    """A Keras `CallbackList` of the callbacks, with (on the chief) a progress bar, and with history if it trains."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        checked_callbacks(callbacks),
        add_history=epochs is not None,
        add_progbar=verbose != 0 and engine.replicas.is_chief,
        model=engine.model,
        verbose=verbose,
        epochs=1 if epochs is None else epochs,
        steps=source.steps_per_epoch or source.num_batches,
    )


def run_evaluation(engine: Engine, source: Source, container: keras.callbacks.CallbackList) -> dict[str, float]:
    """Runs one pass over the data, calling the callbacks' test hooks; returns the logs as floats."""
    model = engine.model
    source.reset()
    model.stop_evaluating = False
    container.on_test_begin()
    model.reset_metrics()
    logs: dict[str, Any] = {}
    done = 0
    length = WindowLength(engine, "test", container.callbacks)
    feed = source.feed()
    limit, begin = source.epoch_limit, container.on_test_batch_begin
    windows = epoch_windows(length, feed, limit=limit, expected=limit or source.num_batches, begin=begin)
    for done, result in windows:
        logs = result.logs
        container.on_test_batch_end(whole_executions(done, source.steps_per_execution) - 1, logs)
        if model.stop_evaluating:
            break
    source.epoch_end(done, stopped=model.stop_evaluating)
    values = {name: _number(value) for name, value in sorted(flat_logs(logs).items())}
    container.on_test_end(values)
    return values


def _number(value: Any) -> Any:
    """A scalar as a float, any other tensor as a NumPy array."""
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array


@on_engine()
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
    source = make_source(
        x,
        replicas=Replicas(model.distribute_strategy),
        batch_size=batch_size,
        steps=steps,
        steps_per_execution=model.steps_per_execution,
    )
    engine, container = _engine_and_callbacks(model, source, "predict", callbacks, verbose)
    model.stop_predicting = False
    container.on_predict_begin()
    executions: list[Any] = []
    done = 0
    feed = source.feed()
    while not feed.exhausted and (source.epoch_limit is None or done < source.epoch_limit):
        container.on_predict_batch_begin(done)
        batches: list[Any] = []
        while len(batches) < source.steps_per_execution and not (batches and feed.exhausted):
            with engine.checks.turned(check_rows):
                batches.append(_to_host(engine.checks.predict(feed)))
        done += len(batches)
        executions.append(_joined(batches))
        last = whole_executions(done, source.steps_per_execution) - 1
        container.on_predict_batch_end(last, {"outputs": executions[-1]})
        if model.stop_predicting:
            break
    source.epoch_end(done, stopped=model.stop_predicting)
    source.close()
    container.on_predict_end()
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
