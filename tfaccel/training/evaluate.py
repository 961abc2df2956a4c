"""`tfaccel.evaluate`: `Model.evaluate`, correct under every strategy."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np

from tfaccel.argument_types import checks_types
from tfaccel.data.sources import whole_executions
from tfaccel.errors import WorkloadError
from tfaccel.training.inputs import Source, checked_callbacks, make_source, prepared_model
from tfaccel.training.own_methods import call_own_method, given_arguments, needs_keras_loop, overrides
from tfaccel.training.predict import engine_predict
from tfaccel.training.private import private_api, private_models
from tfaccel.training.steps.engine import Engine, get_engine
from tfaccel.training.steps.replica_state import average_drifting
from tfaccel.training.steps.step_graphs import flat_logs
from tfaccel.training.steps.windows import WindowLength, epoch_windows
from tfaccel.training.workers.lost_worker import names_lost_workers


@names_lost_workers
def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
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
    arguments = given_arguments(evaluate, locals())
    run = partial(engine_evaluate, check_rows=check_rows)
    if isinstance(model, keras.Model) and overrides(model, "evaluate"):
        return call_own_method(
            model, "evaluate", arguments, {"evaluate": run, "predict": partial(engine_predict, check_rows=check_rows)}
        )
    return run(model, **arguments)


@checks_types(WorkloadError, checks_numbers=True)
def engine_evaluate(
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
    held_out: Source | None = None,
    check_rows: bool = True,
) -> Any:
    """`keras.Model.evaluate` on the engine; reads `held_out` if that source already exists."""
    replicas = prepared_model(model, "evaluate")
    if needs_keras_loop(model, "evaluate"):
        return keras.Model.evaluate(model, x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict)
    source = held_out or make_source(
        x,
        y,
        sample_weight,
        replicas=replicas,
        batch_size=batch_size,
        steps=steps,
        steps_per_execution=model.steps_per_execution,
    )
    if not replicas.is_default:
        private_models.build_model(model, source.batch_spec, "test")
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
    try:
        with engine.checks.turned(check_rows):
            logs = run_evaluation(engine, source, callbacks)
    finally:
        if held_out is None:
            source.close()
    return logs if return_dict else private_api.flatten_logs(model, logs)


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
    windows = epoch_windows(
        engine, "test", feed, length=length, limit=source.epoch_limit, begin=container.on_test_batch_begin
    )
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
