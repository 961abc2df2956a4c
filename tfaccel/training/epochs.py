"""The outer loop of training: epochs of windows, validation and callbacks, in the order of `Model.fit`."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from tfaccel.data.sources import whole_executions
from tfaccel.errors import NonFiniteLossError
from tfaccel.training.inputs import Source, checked_callbacks
from tfaccel.training.private import private_api
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.placed_slots import finalize_weights
from tfaccel.training.steps.replica_state import align_seeds, average_drifting, separate_seeds
from tfaccel.training.steps.slots import check_callbacks, copy_absent_slots, drop_copies
from tfaccel.training.steps.windows import Counted, WindowLength, epoch_windows
from tfaccel.training.validation import Validation

_ADVICE = "Try a lower learning rate, gradient clipping, or float32"


def make_callbacks(
    callbacks: Any, engine: Engine, source: Source, *, verbose: int | str, epochs: int
) -> keras.callbacks.CallbackList:
    """A Keras `CallbackList` of the callbacks, with history and (on the chief) progress bar."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        checked_callbacks(callbacks),
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
    check_callbacks(container.callbacks, model, replicas)
    drop_copies(model)
    container.on_train_begin()
    logs: dict[str, Any] = {}
    last_logs: dict[str, Any] = {}  # training logs of the last epoch
    for epoch in range(private_api.initial_epoch(model, initial_epoch), epochs):
        if not first_step:
            model.reset_metrics()
            engine.left_out.begin_epoch()
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
        finalize_weights(model.optimizer, model.trainable_weights, replicas)
    copy_absent_slots(model, replicas)
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
    done = begun = first_step
    feed = source.feed()
    windows = epoch_windows(
        engine,
        "train",
        feed,
        length=length,
        limit=source.epoch_limit,
        begin=container.on_train_batch_begin,
        counted=Counted(done=first_step, dropped=source.dropped),
    )
    for done, result in windows:
        if not result.loss_is_finite:
            raise non_finite_loss(epoch, done)
        if len(result.left_out) < done - begun:
            logs = result.logs
        elif not logs:  # there was no step yet
            logs = engine.metric_results()
        window, begun = range(begun, done), done
        if done - 1 in source.dropped:
            engine.left_out.drop(window[0])
        elif engine.options.leaves_out:
            engine.left_out.add(epoch, window, list(result.left_out))
        if length.watched:
            average_drifting(engine.model, engine.replicas)
        container.on_train_batch_end(whole_executions(done, source.steps_per_execution) - 1, logs)
        if engine.model.stop_training:
            break
    engine.left_out.end_epoch(epoch, done, logs=engine.replicas.is_chief)
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


def non_finite_loss(epoch: int, step: int, *, what: str = "The loss", cause: str = "") -> NonFiniteLossError:
    """The error for a loss or a gradient that is not finite.

    Args:
        epoch: the epoch, from 0.
        step: the step in it, from 1.
        what: what is not finite.
        cause: what is known about the cause, and what helps; "" for general advice.
    """
    cause = cause or f"{_ADVICE}, and inspect the data of that step."
    return _at(epoch, step, f"{what} became NaN or infinite at step {step} of epoch {epoch + 1}. {cause}")


def non_finite_weight(path: str, epoch: int, step: int) -> NonFiniteLossError:
    """The error for a weight that is not finite; arguments as of `non_finite_loss`, and the weight's path."""
    return _at(
        epoch,
        step,
        f"A weight ({path}) became NaN or infinite by step {step} of epoch {epoch + 1}, so no checkpoint is saved. "
        f"{_ADVICE}.",
    )


def _at(epoch: int, step: int, text: str) -> NonFiniteLossError:
    error = NonFiniteLossError(text)
    error.epoch, error.step = epoch + 1, step
    return error
