"""Training of `tf_keras` models with batches from a pipe, and with losses of Keras 3. Used in a child process only."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tfaccel.compressing.tfmot.translation_source import FlatModel

_SECONDS_BETWEEN_REPORTS = 1.0
# Optimizer settings that are not carried over; the learning rate is set separately.
_NOT_KEPT = (
    "name",
    "learning_rate",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One stage of training.

    Args:
        losses: for each output the loss as `job.saved_loss` gives it, or None.
        loss_weights: one for each output.
        optimizer: class name and config of the Keras 3 optimizer.
        learning_rate: the peak; it decays to 0 over all steps.
        steps_per_epoch, epochs: the length.
        num_sample_weights: arrays of sample weights in each batch.
    """

    losses: Sequence[Any]
    loss_weights: Sequence[float]
    optimizer: Mapping[str, Any]
    learning_rate: float
    steps_per_epoch: int
    epochs: int
    num_sample_weights: int

    @property
    def num_steps(self) -> int:
        """Total number of steps."""
        return self.steps_per_epoch * self.epochs


def train(
    model: Any,
    job: TrainingJob,
    flat: FlatModel,
    batches: Iterator[list[np.ndarray]],
    *,
    callbacks: Sequence[Any] = (),
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Compiles and fits a model.

    Args:
        model: a `tf_keras` model with the inputs and outputs of the model.
        job: how to train.
        flat: names and shapes of inputs and outputs.
        batches: inputs, targets and sample weights, for exactly as many steps as the job has.
        callbacks: of `tf_keras`.
        report: called periodically with epoch, step and loss.
    """
    losses = [None if saved is None else _tf_loss(saved) for saved in job.losses]
    optimizer = tf_optimizer(job)[0]
    model.compile(optimizer, loss=losses, loss_weights=[float(weight) for weight in job.loss_weights])
    dataset = _dataset(flat, job, batches)
    model.fit(
        dataset,
        epochs=job.epochs,
        steps_per_epoch=job.steps_per_epoch,
        verbose=0,
        callbacks=[*callbacks, _progress(job, report)],
    )


def tf_optimizer(job: TrainingJob) -> tuple[Any, str]:
    """The optimizer in `tf_keras`, and a note if it had to be replaced."""
    import tf_keras

    rate = tf_keras.optimizers.schedules.CosineDecay(job.learning_rate, max(1, job.num_steps))
    name = job.optimizer["class_name"]
    cls: Any = getattr(tf_keras.optimizers, name, None)
    note = ""
    if cls is None or not inspect.isclass(cls) or name == "Optimizer":
        cls, note = tf_keras.optimizers.Adam, f"fine-tuned with Adam, since tf_keras has no optimizer {name}"
    accepted = inspect.signature(cls.__init__).parameters
    options = {
        option: value
        for option, value in job.optimizer["config"].items()
        if option in accepted and option not in _NOT_KEPT and value is not None
    }
    return cls(learning_rate=rate, **options), note


def keras_loss(saved: Any) -> Any:
    """The Keras 3 loss that was saved: a name, {"import": [module, name]}, or that with a "config"."""
    import keras

    if isinstance(saved, str):
        found = keras.losses.get(saved)
    else:
        module, name = saved["import"]
        found = getattr(import_module(module), name)
        if "config" in saved:
            found = found.from_config(saved["config"])
    if isinstance(found, keras.losses.Loss):
        return found

    class FunctionLoss(keras.losses.Loss):
        """The mean of a function's value for each example."""

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return found(y_true, y_pred)

    return FunctionLoss()


def _tf_loss(saved: Any) -> Any:
    """A `tf_keras` loss that wraps a Keras 3 loss."""
    import tensorflow as tf
    import tf_keras

    loss = keras_loss(saved)

    class LossOfKeras(tf_keras.losses.Loss):
        """Calls the Keras 3 loss.

        `tf_keras` has already applied the mask to the weights, so predictions are passed without it.
        """

        @tf.autograph.experimental.do_not_convert
        def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return loss(y_true, tf.identity(y_pred), sample_weight)

    return LossOfKeras(name=getattr(loss, "name", None) or "loss")


def _dataset(flat: FlatModel, job: TrainingJob, batches: Iterator[list[np.ndarray]]) -> Any:
    """Batches as `fit` takes them: inputs, targets, and weights if any."""
    import tensorflow as tf

    first = next(batches)
    num_inputs, num_outputs = len(flat.inputs), len(flat.outputs)

    def generate() -> Iterator[tuple[np.ndarray, ...]]:
        yield tuple(first)
        for batch in batches:
            yield tuple(batch)

    def arranged(*arrays: Any) -> Any:
        x, y = arrays[:num_inputs], arrays[num_inputs : num_inputs + num_outputs]
        weights = arrays[num_inputs + num_outputs :]
        if not job.num_sample_weights:
            return _one_or_all(x), _one_or_all(y)
        return _one_or_all(x), _one_or_all(y), _one_or_all(weights * (num_outputs if len(weights) == 1 else 1))

    is_open = any(None in one.shape[1:] for one in flat.inputs)
    specs = []
    for number, array in enumerate(first):
        shape = [None, *([None] * (array.ndim - 1) if is_open else array.shape[1:])] if array.ndim else []
        if number < num_inputs:
            shape = list(flat.inputs[number].shape)
        specs.append(tf.TensorSpec(shape, array.dtype))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=tuple(specs))
    return dataset.map(arranged).prefetch(2)


def _one_or_all(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _progress(job: TrainingJob, report: Callable[[dict[str, Any]], None]) -> Any:
    import tf_keras

    class Progress(tf_keras.callbacks.Callback):
        """Reports periodically, and at the end of each epoch."""

        epoch, told = 0, 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            is_last = batch + 1 == job.steps_per_epoch
            if is_last or time.monotonic() - self.told >= _SECONDS_BETWEEN_REPORTS:
                self.told = time.monotonic()
                report(
                    {
                        "epoch": self.epoch + 1,
                        "epochs": job.epochs,
                        "step": batch + 1,
                        "steps": job.steps_per_epoch,
                        "loss": float((logs or {}).get("loss", 0.0)),
                    }
                )

    return Progress()
