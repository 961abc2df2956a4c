"""The outer loop of training: epochs of windows, validation and callbacks, in the order of `Model.fit`."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from tfaccel.data.sources import whole_executions
from tfaccel.errors import NonFiniteLossError
from tfaccel.training.inputs import Source
from tfaccel.training.private import private_api
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.replica_state import align_seeds, average_drifting, separate_seeds
from tfaccel.training.steps.windows import WindowLength, epoch_windows
from tfaccel.training.validation import Validation


def callbacks_of(
    callbacks: Any, engine: Engine, source: Source, *, verbose: int | str, epochs: int
) -> keras.callbacks.CallbackList:
    """A Keras `CallbackList` of the callbacks, with history and (on the chief) progress bar."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=True,
        add_progbar=verbose != 0 and engine.replicas.is_chief,
        model=engine.model,
        verbose=verbose,
        epochs=epochs,
        steps=source.steps_per_epoch or source.num_batches,
    )


def run_epochs(
    engine: Engine,
    source: Source,
    container: keras.callbacks.CallbackList,
    validation: Validation | None,
    *,
    epochs: int,
    initial_epoch: int,
    first_step: int = 0,
) -> keras.callbacks.History:
    """The outer loop: epochs of windows, validation, callbacks, in the order of `Model.fit`.

    With a `first_step`, the first epoch resumes after that many steps, and its metrics are not reset.
    """
    model, replicas = engine.model, engine.replicas
    length = WindowLength(engine, "train", container.callbacks)
    model.stop_training = False
    separate_seeds(model, replicas)
    container.on_train_begin()
    logs: dict[str, Any] = {}
    last_logs: dict[str, Any] = {}  # training logs of the last epoch
    for epoch in range(private_api.initial_epoch(model, initial_epoch), epochs):
        if not first_step:
            model.reset_metrics()
        container.on_epoch_begin(epoch)
        logs = last_logs = _run_epoch(
            engine, source, container, length, epoch=epoch, first_step=first_step, last_logs=last_logs
        )
        first_step = 0
        align_seeds(model, replicas)
        average_drifting(model, replicas)
        if validation is not None and validation.is_due(epoch):
            logs = {**logs, **validation.run(engine, container)}
        container.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    if isinstance(model.optimizer, keras.optimizers.Optimizer) and epochs > 0:
        model.optimizer.finalize_variable_values(model.trainable_weights)
    container.on_train_end(logs=logs)
    return model.history


def _run_epoch(
    engine: Engine,
    source: Source,
    container: keras.callbacks.CallbackList,
    length: WindowLength,
    *,
    epoch: int,
    first_step: int,
    last_logs: dict[str, Any],
) -> dict[str, Any]:
    """Trains one epoch, or the rest of it. Batches and steps are counted from its begin, also if it is resumed."""
    logs: dict[str, Any] = engine.metric_results() if first_step else {}
    done = first_step
    feed = source.feed()
    windows = epoch_windows(
        engine,
        "train",
        feed,
        length=length,
        limit=source.epoch_limit,
        begin=container.on_train_batch_begin,
        done=first_step,
    )
    for done, result in windows:
        logs = result.logs
        if not result.loss_is_finite:
            raise NonFiniteLossError(
                f"The loss became NaN or infinite at step {done} of epoch {epoch + 1}. Try a lower "
                "learning rate, gradient clipping, or float32, and inspect the data of that step."
            )
        if length.watched:
            average_drifting(engine.model, engine.replicas)
        container.on_train_batch_end(whole_executions(done, source.steps_per_execution) - 1, logs)
        if engine.model.stop_training:
            break
    source.epoch_end(done, stopped=engine.model.stop_training)
    if source.steps_per_epoch and done < source.steps_per_epoch and not engine.model.stop_training:
        warnings.warn(
            f"The data ended after {done} of {source.steps_per_epoch} steps_per_epoch. Give at least steps_per_epoch * "
            "epochs batches, for example with `.repeat()`.",
            stacklevel=6,
        )
    if done == 0:
        warnings.warn("The data contained no batches, so nothing was trained.", stacklevel=6)
        # As Keras does if an epoch after the first has no batch; `last_logs` may come from a custom `train_step`.
        logs = engine.metric_results() if last_logs else {}
        logs = logs if set(logs) == set(last_logs) else last_logs
    return dict(logs)
