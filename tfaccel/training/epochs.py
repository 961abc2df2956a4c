"""The outer loop of training: epochs of windows, validation and callbacks, in the order of `Model.fit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras

from tfaccel.data.sources import whole_executions
from tfaccel.errors import NonFiniteLossError, warn_user
from tfaccel.training.evaluate import evaluate, evaluate_source, run_evaluation
from tfaccel.training.front import (
    Source,
    call_own_method,
    callbacks_on_engine,
    make_source,
    methods_on_engine,
    needs_keras_loop,
    overrides,
)
from tfaccel.training.private import private_api, private_models
from tfaccel.training.private.private_api import CACHED_EVALUATION
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.steps.placed_slots import finalize_weights
from tfaccel.training.steps.replica_state import align_seeds, separate_state
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slots import check_callbacks, copy_absent_slots, drop_copies
from tfaccel.training.steps.windows import WindowLength, epoch_windows

_ADVICE = "Try a lower learning rate, gradient clipping, or float32"


class EpochNotNeeded(Exception):
    """Training ended with the epoch before, whose score came late: the model has its state from that time.

    Args:
        logs: of the last epoch.
    """

    def __init__(self, logs: dict[str, Any]) -> None:
        super().__init__()
        self.logs = logs


@dataclass(frozen=True)
class Span:
    """Where training begins and ends.

    Args:
        epochs: the number of the last epoch, from 1.
        initial_epoch: the first epoch, from 0.
        first_step: the first epoch resumes after that many steps, and its metrics are not reset.
        last_steps: how many steps the last epoch has; None for all.
    """

    epochs: int
    initial_epoch: int = 0
    first_step: int = 0
    last_steps: int | None = None


def run_epochs(
    engine: Engine,
    source: Source,
    container: keras.callbacks.CallbackList,
    validation: Validation | None,
    span: Span,
) -> keras.callbacks.History:
    """The outer loop: epochs of windows, validation, callbacks, in the order of `Model.fit`."""
    model, replicas = engine.model, engine.replicas
    length = WindowLength(engine, "train", container.callbacks)
    model.stop_training = False
    check_callbacks(container.callbacks, model, replicas)
    with callbacks_on_engine(model, replicas, check_rows=engine.checks.looks):
        drop_copies(model)
        container.on_train_begin()
        separate_state(model, replicas, accumulated=not span.first_step)
        logs: dict[str, Any] = {}
        last_logs: dict[str, Any] = {}  # training logs of the last epoch
        first_step = span.first_step
        for epoch in range(private_api.initial_epoch(model, span.initial_epoch), span.epochs):
            if not first_step:
                model.reset_metrics()
                engine.left_out.begin_epoch()
            container.on_epoch_begin(epoch)
            steps = first_step, span.last_steps if epoch + 1 == span.epochs else None
            try:
                part: dict[str, Any] = {"epoch": epoch, "steps": steps, "last_logs": last_logs}
                try:
                    logs = last_logs = _run_epoch(engine, source, container, length, **part)
                except NonFiniteLossError:
                    if validation is not None:
                        validation.settle(container)  # the epoch before may have been the last one
                    raise
                first_step = 0
                align_seeds(model, replicas)
                engine.checks.average_statistics()
                if validation is not None and validation.is_due(epoch):
                    logs = {**logs, **validation.run(engine, container)}
            except EpochNotNeeded as ended:
                logs = ended.logs
                break
            container.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and span.epochs > 0:
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
    steps: tuple[int, int | None],
    last_logs: dict[str, Any],
) -> dict[str, Any]:
    """Trains one epoch, or a part of it: after the first number of `steps`, and up to the second one, if given.

    Batches and steps are counted from the begin of the epoch, also if it is resumed.
    """
    first_step, most = steps
    logs: dict[str, Any] = engine.metric_results() if first_step else {}
    done = begun = first_step
    feed = source.feed()
    begin, dropped = container.on_train_batch_begin, source.dropped
    limit = source.epoch_limit if most is None else most
    expected = limit or source.num_batches
    windows = epoch_windows(length, feed, limit=limit, expected=expected, begin=begin, done=first_step, dropped=dropped)
    for done, result in windows:
        if not result.loss_is_finite:
            raise non_finite_loss(epoch, done)
        if len(result.left_out) < done - begun:
            logs = result.logs
        elif not logs:  # there was no step yet
            logs = engine.metric_results()
        window, begun = range(begun, done), done
        if done - 1 in dropped:
            engine.left_out.drop(window[0])
        elif engine.options.leaves_out:
            engine.left_out.add(epoch, window, list(result.left_out))
        if length.watched:
            engine.checks.average_statistics()
        container.on_train_batch_end(whole_executions(done, source.steps_per_execution) - 1, logs)
        if engine.model.stop_training:
            break
    engine.left_out.end_epoch(epoch, done, logs=engine.replicas.is_chief)
    source.epoch_end(done, stopped=engine.model.stop_training or most is not None)
    if source.steps_per_epoch and done < source.steps_per_epoch and not engine.model.stop_training:
        warn_user(
            f"The data ended after {done} of {source.steps_per_epoch} steps_per_epoch. Give at least steps_per_epoch * "
            "epochs batches, for example with `.repeat()`."
        )
    if done == 0:
        warn_user("The data contained no batches, so nothing was trained.")
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


@dataclass
class Validation:
    """Validation data and the epochs that end with validation.

    Attributes:
        source: the batches, or a function that returns them when they are first needed.
        freq: every `freq` epochs, or a list of epochs (from 1).
    """

    source: Source | Callable[[], Source]
    freq: int | list[int] = 1

    def is_due(self, epoch: int) -> bool:
        """Whether the epoch (from 0) ends with validation."""
        if isinstance(self.freq, int):
            return (epoch + 1) % self.freq == 0
        if isinstance(self.freq, list | tuple):
            return epoch + 1 in self.freq
        raise ValueError(
            f"Expected `validation_freq` to be an int or a list of epochs (from 1). Received: {self.freq!r}."
        )

    def run(self, engine: Engine, container: keras.callbacks.CallbackList) -> dict[str, float]:
        """Evaluates; returns the logs with the prefix `val_`."""
        return {f"val_{name}": value for name, value in self.evaluate(engine, container).items()}

    def settle(self, container: keras.callbacks.CallbackList) -> None:
        """Waits for a score that the callbacks wait for; does nothing if `run` returns all of them."""

    def evaluate(self, engine: Engine, container: keras.callbacks.CallbackList) -> dict[str, float]:
        """Evaluates."""
        if callable(self.source):
            self.source = self.source()
        return run_evaluation(engine, self.source, container)

    def close(self) -> None:
        """Releases the resources of the batches."""
        if not callable(self.source):
            self.source.close()


@dataclass
class OwnValidation(Validation):
    """Validation of a model whose class overrides `evaluate`, which is called as Keras's `fit` does.

    Attributes:
        arguments: arguments for `evaluate`.
    """

    arguments: dict[str, Any] = field(default_factory=dict)

    def evaluate(self, engine: Engine, container: keras.callbacks.CallbackList) -> dict[str, float]:
        """Evaluates with the class's own method."""
        if callable(self.source):
            self.source = self.source()
        source, options = self.source, {"check_rows": engine.checks.looks}
        methods = methods_on_engine("evaluate", options)

        def evaluated(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.pop(CACHED_EVALUATION, False) or needs_keras_loop(model, "evaluate"):
                return methods["evaluate"](model, *args, **kwargs)
            given = inspect.signature(evaluate).bind(model, *args, **kwargs).arguments
            given = {name: given[name] for name in ("verbose", "callbacks", "return_dict") if name in given}
            return evaluate_source(model, source, **given, **options)

        takes = inspect.signature(engine.model.evaluate).parameters
        takes_it = CACHED_EVALUATION in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values())
        cached = {CACHED_EVALUATION: True} if takes_it else {}
        arguments = {**self.arguments, "callbacks": container, "return_dict": True, **cached}
        methods_of_own = {**methods, "evaluate": evaluated}
        logs: dict[str, float] = call_own_method(engine.model, "evaluate", arguments, methods_of_own)
        return logs


def validation_of_fit(
    model: keras.Model,
    replicas: Replicas,
    data: Any,
    *,
    batch_size: int | None,
    steps: int | None,
    freq: int | list[int],
) -> Validation:
    """The validation given by the arguments of `fit`; as in Keras, data that run code are opened when first needed."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

    def make() -> Source:
        source = make_source(
            x,
            y,
            sample_weight,
            replicas=replicas,
            batch_size=batch_size,
            steps=steps,
            steps_per_execution=model.steps_per_execution,
        )
        if not replicas.is_default and has_own_train_step(model):
            private_models.build_model(model, source.batch_spec, "test")
        return source

    runs_code = hasattr(x, "__next__") or isinstance(x, keras.utils.PyDataset)
    if overrides(model, "evaluate"):
        arguments = {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch_size, "steps": steps}
        return OwnValidation(make, freq, arguments)
    return Validation(make if runs_code else make(), freq)
