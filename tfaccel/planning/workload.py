"""The noun `Workload`: what to train, a value made of functions. Another process can build it from its import path."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from tfaccel.errors import WorkloadError
from tfaccel.planning.workload_calls import check_parameters

_OPTIONAL_FUNCTIONS = ("validation_data", "callbacks", "augment", "judge", "show_result")
_FROM_DATA = ("train_data", "validation_data", "augment", "augment_mixes_rows", "raw_input", "num_train_examples")


@dataclass(frozen=True)
class Workload:
    """What to train: a model, how to compile it, and its data.

    Each function makes a fresh object at every call; none is called when the workload is made, so that a workload can
    be planned for without importing TensorFlow.

    Args:
        name: a short name, such as "image_classification".
        build_model: `build_model()` returns an uncompiled Keras model. It is called inside the strategy's scope.
        compile_args: `compile_args(num_steps)` returns the keyword arguments of `Model.compile`, with a fresh
            optimizer, loss and metrics. It is called inside the strategy's scope too. `num_steps` is the number of
            optimizer steps of the whole run, for a learning-rate schedule; whoever runs the training passes it. A
            function that has no parameter of this name is called without it.
        train_data: `train_data(global_batch_size, *, seed, epoch)` returns one epoch as a finite `tf.data.Dataset`
            of global batches. Seed and epoch decide the order, so that an epoch can be repeated exactly. It may take
            two more arguments: `start_step=0`, full batches to leave out at the beginning without reading them, and
            `shard=None`, or (index, count) for the rows of worker `index` out of `count` of each batch, all of which
            must then be full; see `tfaccel.data.epoch_positions`. With `augment` it takes `augmented=True` too.
        validation_data: `validation_data(global_batch_size)` returns a finite `tf.data.Dataset` of global batches,
            the same at every call; None if there is none.
        augment: what makes training batches of those that `train_data(..., augmented=False)` returns, so that the plan
            can say where: `augment(batch)` of such a batch is the batch that `train_data` returns otherwise. All that
            is random about it lies in the batch already, such as the numbers drawn for each row, so that it gives the
            same wherever it runs. It is traced. None where nothing is augmented, or in `train_data` only.
        augment_mixes_rows: `augment` needs all rows of a global batch to make one of them, because they are mixed
            (MixUp), or their random numbers are drawn for the batch; `train_data(..., augmented=False)` is then never
            asked for a shard. False: of some rows it makes those rows.
        callbacks: `callbacks()` returns fresh Keras callbacks to train with; None for none.
        judge: `judge(model)` of a compiled model in training returns names with numbers, which a search takes for
            metrics after each epoch, where losses do not tell how good a model is (a GAN's). None where they do.
        show_result: `show_result(workload, result)` of a finished run writes into `result.run_dir` what people want to
            see, and returns the `tfaccel.reporting.BaselineScores` that the verdict takes, or None; `tfaccel train`
            calls it. None where nothing more is shown.
        raw_input: what the model's tensors are made of (image files, texts, rows of a table), and the names of its
            classes: one of the nouns in `tfaccel.data.raw_input`. A run keeps it, so that what is exported from it
            takes raw inputs. None where only tensors are taken.
        global_batch_size: the recommended number of examples per optimizer step, over all replicas.
        min_replica_batch_size: the fewest examples of a step that are worth a GPU of their own; a step that takes a
            millisecond is not worth summing gradients over several. None: 32, for models that nothing is known of.
        epochs: the recommended number of passes over the training data; None if there is none.
        num_train_examples: examples in one epoch; None if it is not known.
        bfloat16_on_cpu: recommends mixed_bfloat16 on CPUs that multiply in bfloat16 (AVX512_BF16, AMX). It pays where a
            step multiplies large matrices: from about 1e8 floating-point operations on, which
            `tfaccel.measuring.step_costs.step_costs` counts.
        data: an object with some of `train_data`, `validation_data`, `augment`, `augment_mixes_rows`, `raw_input` and
            `num_train_examples`, such as `tfaccel.data.Batches`; these then need not be given. None where they are.
        options: name -> JSON value of whatever else decides the outcome (learning rate, place of the data ...). A run
            goes on (`resume="auto"`) with the same options only.

    Raises:
        WorkloadError: if an argument is not what is said above.

    Example:
        >>> Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=32).name
        'made_up'
    """

    name: str
    build_model: Callable[[], Any]
    compile_args: Callable[..., dict[str, Any]]
    train_data: Callable[..., Any] = None  # type: ignore[assignment]  # `data` may have it
    validation_data: Callable[..., Any] | None = None
    _: KW_ONLY
    callbacks: Callable[[], Sequence[Any]] | None = None
    augment: Callable[[Any], Any] | None = None
    augment_mixes_rows: bool = False
    judge: Callable[[Any], Mapping[str, float]] | None = None
    show_result: Callable[[Any, Any], Any] | None = None
    raw_input: Any = None
    global_batch_size: int
    min_replica_batch_size: int | None = None
    epochs: int | None = None
    num_train_examples: int | None = None
    bfloat16_on_cpu: bool = False
    data: Any = field(default=None, hash=False, compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in _FROM_DATA:
            if not getattr(self, name) and (value := getattr(self.data, name, None)) is not None:
                object.__setattr__(self, name, value)
        if not isinstance(self.name, str) or not self.name:
            raise WorkloadError(f"A workload's name must be a text. Received: name={self.name!r}.")
        for name in ("build_model", "compile_args", "train_data", *_OPTIONAL_FUNCTIONS):
            value = getattr(self, name)
            if not callable(value) and not (name in _OPTIONAL_FUNCTIONS and value is None):
                raise WorkloadError(f"A workload's {name} must be a function. Received: {name}={value!r:.200}.")
            check_parameters(name, value)
        if self.augment is not None and "augmented" not in inspect.signature(self.train_data).parameters:
            raise WorkloadError(
                "A workload with `augment` has a train_data that takes `augmented`, for batches before augmentation: "
                "train_data(global_batch_size, *, seed, epoch, augmented=True). Received one that does not take it."
            )
        if self.raw_input is not None and not callable(getattr(self.raw_input, "to_json", None)):
            raise WorkloadError(
                "A workload's raw_input must be an ImageInput, TextInput or TableInput of `tfaccel.data.raw_input`, or "
                f"None. Received: raw_input={self.raw_input!r:.200}."
            )
        for name in ("global_batch_size", "min_replica_batch_size", "epochs", "num_train_examples"):
            value = getattr(self, name)
            optional = name != "global_batch_size"
            if not (optional and value is None) and (type(value) is not int or value < 1):
                raise WorkloadError(
                    f"A workload's {name} must be a whole number of at least 1{' or None' if optional else ''}. "
                    f"Received: {name}={value!r}."
                )
        if not isinstance(self.bfloat16_on_cpu, bool):
            raise WorkloadError(
                f"A workload's bfloat16_on_cpu must be True or False. Received: {self.bfloat16_on_cpu!r:.200}."
            )
        try:
            json.dumps(dict(self.options))
        except (TypeError, ValueError) as error:
            raise WorkloadError(
                f"A workload's options must be names with JSON values. Received: {self.options!r:.200} ({error})."
            ) from error
