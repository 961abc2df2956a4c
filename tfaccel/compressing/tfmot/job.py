"""The job of TFMOT's child process: the model, how to train it, and its batches."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.call_signature import CallSignature
from tfaccel.compressing.tfmot.options import TfmotOptions, get_stages
from tfaccel.compressing.tfmot.training import TrainingJob
from tfaccel.compressing.tfmot.translation_source import FlatModel, named_arrays, save_arrays
from tfaccel.errors import CompressionError
from tfaccel.planning.run_length import compile_arguments, num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.training.steps.model_parts import inner_optimizer

# Fraction of the workload's peak learning rate to fine-tune with.
_RATE_PARTS = {
    "prune": 0.5,
    "prune_2_4": 0.3,
    "prune_block": 0.5,
    "cluster": 0.05,
    "qat": 0.1,
    "pqat": 0.1,
    "cqat": 0.05,
}
_LOOKS = 200  # samples of the schedule, to find its peak


class TrainingBatches:
    """The training data of a workload as lists of arrays: inputs, targets, sample weights.

    Args:
        workload: its training data are used.
        flat: the model, which determines their order.
        seed: shuffles them.
    """

    def __init__(self, workload: Workload, flat: FlatModel, *, seed: int) -> None:
        self._workload = workload
        self._flat = flat
        self._seed = seed
        first = next(iter(self._dataset(0).take(1).as_numpy_iterator()), None)
        if first is None:
            raise CompressionError(f"The training data of workload {workload.name!r} are empty.")
        self.first_x = keras.utils.unpack_x_y_sample_weight(first)[0]
        self.first = self._leaves(first)
        num_inputs, num_outputs = len(flat.inputs), len(flat.outputs)
        self.num_sample_weights = len(self.first) - num_inputs - num_outputs
        if self.num_sample_weights not in (0, 1, num_outputs):
            raise CompressionError(
                f"Workload {workload.name!r} gives {self.num_sample_weights} more arrays than the {num_inputs} inputs "
                f"and {num_outputs} outputs of the model. Give a target for each output, and "
                "sample weights for all outputs or none."
            )
        self.steps_per_epoch = self._count()

    def steps(self, num_steps: int, first_epoch: int) -> Iterator[list[np.ndarray]]:
        """This many batches, over as many epochs as needed."""
        epoch = first_epoch
        while num_steps > 0:
            for batch in self._epoch(epoch):
                yield batch
                num_steps -= 1
                if num_steps == 0:
                    return
            epoch += 1

    def _epoch(self, epoch: int) -> Iterator[list[np.ndarray]]:
        return map(self._leaves, self._dataset(epoch).as_numpy_iterator())

    def _dataset(self, epoch: int) -> Any:
        return self._workload.train_data(self._workload.global_batch_size, seed=self._seed, epoch=epoch)

    def _leaves(self, batch: Any) -> list[np.ndarray]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        leaves = self._flat.get_inputs(x)
        for part in (y, sample_weight):
            leaves = leaves + (self._flat.get_outputs(part) if part is not None else [])
        return [as_sendable_array(leaf, f"workload {self._workload.name!r}") for leaf in leaves]

    def _count(self) -> int:
        count = int(self._dataset(0).cardinality())
        return count if count > 0 else sum(1 for _ in self._epoch(0))


def write_job(
    folder: Path,
    flat: FlatModel,
    batches: TrainingBatches,
    *,
    method: str,
    workload: Workload,
    options: TfmotOptions,
    signature: CallSignature,
) -> dict[str, TrainingJob]:
    """Writes the job for the child; returns the training job of each stage.

    Args:
        folder: an empty folder.
        flat: the model.
        batches: its training data.
        method: one of `TRAINED_METHODS`.
        workload: gives loss and optimizer.
        options: how to train.
        signature: the model's call signature.
    """
    num_steps = num_optimizer_steps(workload, num_batches=batches.steps_per_epoch)
    arguments = compile_arguments(workload, num_steps=num_steps)
    losses, weights = _losses(arguments, flat)
    optimizer = inner_optimizer(keras.optimizers.get(arguments.get("optimizer", "rmsprop")))
    training = {
        stage: TrainingJob(
            losses=losses,
            loss_weights=weights,
            optimizer={"class_name": type(optimizer).__name__, "config": _plain_config(optimizer)},
            learning_rate=options.learning_rate or _RATE_PARTS[stage] * _highest_rate(optimizer, workload),
            steps_per_epoch=batches.steps_per_epoch,
            epochs=options.get_epochs(stage),
            num_sample_weights=batches.num_sample_weights,
        )
        for stage in get_stages(method)
    }
    inputs = batches.first[: len(flat.inputs)]
    outputs = keras.tree.flatten(flat.model(batches.first_x, training=False))
    arrays = {f"in{n}": array for n, array in enumerate(inputs)}
    arrays |= {f"out{n}": np.asarray(array) for n, array in enumerate(outputs)}
    save_arrays(folder / "check.npz", arrays)
    save_arrays(folder / "weights.npz", named_arrays(flat.weights()))
    modules = {*flat.modules, *(saved["import"][0] for saved in losses if isinstance(saved, Mapping))}
    job = {
        "method": method,
        "model": flat.serialized,
        "options": options.to_json(),
        "sys_path": sys.path,
        "modules": sorted(modules),
        "training": {stage: asdict(one) for stage, one in training.items()},
        "signature": {"inputs": flat.get_inputs(signature.input_nest), "outputs": signature.output_names},
    }
    (folder / "job.json").write_text(json.dumps(job))
    return training


def saved_loss(loss: Any) -> Any:
    """A loss as JSON for another process: a name, or the import path of its class or function.

    Raises:
        CompressionError: if the loss cannot be serialized; the message names it.

    Example:
        >>> saved_loss(keras.losses.Huber())["import"][1]
        'Huber'
    """
    if loss is None or isinstance(loss, str):
        return loss
    is_object = isinstance(loss, keras.losses.Loss)
    target = type(loss) if is_object else loss
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    try:
        found = getattr(import_module(str(module)), name, None)
        saved: dict[str, Any] = {"import": [module, name]}
        if is_object:
            saved["config"] = json.loads(json.dumps(loss.get_config()))
    except (ImportError, TypeError, ValueError, RuntimeError) as error:
        raise _no_loss(name or repr(loss), str(error)) from error
    if module == "__main__" or found is not target:
        raise _no_loss(name or repr(loss), f"it is not found as {module}.{name}")
    return saved


def _no_loss(name: str, why: str) -> CompressionError:
    return CompressionError(
        f"The loss {name} cannot be sent to another process: {why}. Define it at the top level of a module (a class "
        "with get_config), or use a post-training method."
    )


def _losses(arguments: Mapping[str, Any], flat: FlatModel) -> tuple[list[Any], list[float]]:
    """The loss and the loss weight of each output."""
    names = flat.output_names
    loss, factors = arguments.get("loss"), arguments.get("loss_weights")
    if loss is None:
        raise CompressionError("The workload has no loss to fine-tune with (`compile_args` gives none).")
    of_outputs = _spread(loss, names)
    of_factors = [1.0] * len(names) if factors is None else _spread(factors, names)
    return [saved_loss(one) for one in of_outputs], [1.0 if one is None else float(one) for one in of_factors]


def _spread(given: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise CompressionError(f"There is no output {unknown[0]!r}. Outputs: {', '.join(names)}.")
        return [given.get(name) for name in names]
    if isinstance(given, (list, tuple)):
        if len(given) != len(names):
            raise CompressionError(
                f"{len(given)} losses or loss weights for {len(names)} outputs ({', '.join(names)})."
            )
        return list(given)
    return [given] * len(names)


def _plain_config(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The settings of an optimizer that are numbers, strings or booleans."""
    config = optimizer.get_config()
    return {name: value for name, value in config.items() if isinstance(value, (int, float, str, bool))}


def _highest_rate(optimizer: keras.optimizers.Optimizer, workload: Workload) -> float:
    """The peak learning rate of the workload's schedule."""
    rate = optimizer.get_config().get("learning_rate")
    if not isinstance(rate, Mapping):
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    schedule = keras.optimizers.schedules.deserialize(dict(rate))
    examples = workload.num_train_examples or workload.global_batch_size * 1000
    num_steps = max(_LOOKS, 100 * -(-examples // workload.global_batch_size))
    looks = {0, *np.geomspace(1, num_steps, _LOOKS).astype(int).tolist()}
    return max(float(schedule(step)) for step in looks)


def as_sendable_array(leaf: Any, what: str) -> np.ndarray:
    """An array that can be sent to another process.

    Raises:
        CompressionError: for a non-numeric array.
    """
    array = np.asarray(leaf)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise CompressionError(
            f"Batches of {what} are of {array.dtype}, which TFMOT cannot train on. Give numeric arrays."
        )
    return array
