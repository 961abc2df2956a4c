"""The child process in which TFMOT trains a model: TFMOT supports Keras 2 only, and changes its process.

`methods` starts it and sends a `TfmotJob`, then for each stage its batches and None, then the held-out inputs and None.
It sends reports: dictionaries, of which the last has "done" or "error". Models of `tf_keras` are trained with losses of
Keras 3.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.compressing.methods import TRAINING
from tfaccel.compressing.tfmot.flat_model import FlatModel, TfmotJob, TrainingStage
from tfaccel.compressing.tfmot.quantizing import begin_with_ranges, litert_file, quantized_model
from tfaccel.compressing.tfmot.sparsity import clustered_model, pruned_model
from tfaccel.compressing.tfmot.translation import TranslatedLayers, assemble, check_outputs, translate
from tfaccel.errors import TfaccelError, in_one_line
from tfaccel.processes.child import connect_to_parent

_SECONDS_BETWEEN_REPORTS = 1.0
# Optimizer settings that are not carried over; the learning rate is set separately.
_NOT_KEPT = """
    name learning_rate use_ema ema_momentum ema_overwrite_frequency loss_scale_factor gradient_accumulation_steps
"""


def run(job: TfmotJob, parent: Connection) -> None:
    """Translates the model, checks the translation, and runs the stages of the method.

    Args:
        job: the model, and how to train it.
        parent: sends batches, and receives reports.
    """
    import tf_keras

    tf_keras.utils.set_random_seed(job.options.seed)
    weights = job.weights
    for number, (method, stage) in enumerate(job.stages.items()):
        parent.send({"doing": TRAINING[method].doing})
        flat = FlatModel.from_json(job.model)
        layers = translate(flat, weights, job.inputs)
        if number == 0:
            difference = check_outputs(assemble(flat, layers), flat, job.inputs, job.outputs)
            parent.send({"difference": difference, "kept": layers.kept})
            if note := tf_optimizer(stage)[1]:
                parent.send({"note": note})
        if method in ("qat", "pqat", "cqat"):
            _quantize(job, flat, layers, method, parent)
        else:
            weights = _prune_or_cluster(job, flat, layers, method, parent)


def _quantize(job: TfmotJob, flat: FlatModel, layers: TranslatedLayers, method: str, parent: Connection) -> None:
    """Trains the fake-quantized model, predicts on the held-out data, and converts it."""
    model, notes = quantized_model(flat, layers, method)
    for note in notes:
        parent.send({"note": note})
    begin_with_ranges(model, job.inputs)
    train(model, job.stages[method], flat, _part(parent), report=parent.send)
    rows = [_outputs(model, batch[: len(flat.inputs)]) for batch in _part(parent)]
    parent.send({"doing": "converting"})
    content = litert_file(model, flat, job.input_names, job.output_names)
    parent.send({"predictions": rows, "litert": content})


def _prune_or_cluster(
    job: TfmotJob, flat: FlatModel, layers: TranslatedLayers, method: str, parent: Connection
) -> Mapping[str, Sequence[np.ndarray]]:
    """The weights after training."""
    stage = job.stages[method]
    if method == "cluster":
        made = clustered_model(flat, layers, job.options)
    else:
        made = pruned_model(flat, layers, method, job.options, stage.num_steps)
    for note in made.notes:
        parent.send({"note": note})
    train(made.model, stage, flat, _part(parent), callbacks=made.callbacks, report=parent.send)
    weights = made.weights()
    parent.send({"weights": weights, "changed": made.changed()})
    return weights


def _part(parent: Connection) -> Iterator[list[np.ndarray]]:
    """The batches up to the end of a part (for example, the training data)."""
    while (batch := parent.recv()) is not None:
        yield batch


def _outputs(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    outputs = model.predict_on_batch(inputs if len(inputs) > 1 else inputs[0])
    return [np.asarray(output) for output in tf.nest.flatten(outputs)]


def train(
    model: Any,
    stage: TrainingStage,
    flat: FlatModel,
    batches: Iterator[list[np.ndarray]],
    *,
    callbacks: Sequence[Any] = (),
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Compiles and fits a model.

    Args:
        model: a `tf_keras` model with the inputs and outputs of the model.
        stage: how to train.
        flat: names and shapes of inputs and outputs.
        batches: inputs, targets and sample weights, for exactly as many steps as the stage has.
        callbacks: of `tf_keras`.
        report: called periodically with epoch, step and loss.
    """
    losses = [None if saved is None else _tf_loss(saved) for saved in stage.losses]
    optimizer = tf_optimizer(stage)[0]
    model.compile(optimizer, loss=losses, loss_weights=[float(weight) for weight in stage.loss_weights])
    dataset = _dataset(flat, stage, batches)
    model.fit(
        dataset,
        epochs=stage.epochs,
        steps_per_epoch=stage.steps_per_epoch,
        verbose=0,
        callbacks=[*callbacks, _progress(stage, report)],
    )


def tf_optimizer(stage: TrainingStage) -> tuple[Any, str]:
    """The optimizer in `tf_keras`, and a note if it had to be replaced."""
    import tf_keras

    rate = tf_keras.optimizers.schedules.CosineDecay(stage.learning_rate, max(1, stage.num_steps))
    name = stage.optimizer["class_name"]
    cls: Any = getattr(tf_keras.optimizers, name, None)
    note = ""
    if cls is None or not inspect.isclass(cls) or name == "Optimizer":
        cls, note = tf_keras.optimizers.Adam, f"fine-tuned with Adam, since tf_keras has no optimizer {name}"
    accepted = inspect.signature(cls.__init__).parameters
    options = {
        option: value
        for option, value in stage.optimizer["config"].items()
        if option in accepted and option not in _NOT_KEPT.split() and value is not None
    }
    return cls(learning_rate=rate, **options), note


def keras_loss(saved: Any) -> Any:
    """The Keras 3 loss that was saved: a name, {"import": [module, name]}, or that with a "config"."""
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


def _dataset(flat: FlatModel, stage: TrainingStage, batches: Iterator[list[np.ndarray]]) -> Any:
    """Batches as `fit` takes them: inputs, targets, and weights if any."""
    first = next(batches)
    num_inputs, num_outputs = len(flat.inputs), len(flat.outputs)

    def generate() -> Iterator[tuple[np.ndarray, ...]]:
        yield tuple(first)
        for batch in batches:
            yield tuple(batch)

    def arranged(*arrays: Any) -> Any:
        x, y = arrays[:num_inputs], arrays[num_inputs : num_inputs + num_outputs]
        weights = arrays[num_inputs + num_outputs :]
        if not stage.num_sample_weights:
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


def _progress(stage: TrainingStage, report: Callable[[dict[str, Any]], None]) -> Any:
    import tf_keras

    class Progress(tf_keras.callbacks.Callback):
        """Reports periodically, and at the end of each epoch."""

        epoch, told = 0, 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            is_last = batch + 1 == stage.steps_per_epoch
            if is_last or time.monotonic() - self.told >= _SECONDS_BETWEEN_REPORTS:
                self.told = time.monotonic()
                report(
                    {
                        "epoch": self.epoch + 1,
                        "epochs": stage.epochs,
                        "step": batch + 1,
                        "steps": stage.steps_per_epoch,
                        "loss": float((logs or {}).get("loss", 0.0)),
                    }
                )

    return Progress()


def main(argv: list[str]) -> None:
    """Runs the job, and reports how it ended."""
    parent = connect_to_parent(argv)
    job: TfmotJob = parent.recv()
    sys.path.extend(path for path in job.sys_path if path not in sys.path)
    try:
        for module in job.modules:
            import_module(module)
        run(job, parent)
        parent.send({"done": True})
    except TfaccelError as error:
        parent.send({"error": str(error)})
    except Exception as error:
        traceback.print_exc()
        text = in_one_line(error, 600)
        parent.send({"error": f"{type(error).__name__}: {text}", "unexpected": True})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips the libraries' exit handlers, which may hang


if __name__ == "__main__":
    main(sys.argv)
