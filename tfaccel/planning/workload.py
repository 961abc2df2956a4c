"""`Workload`: what to train, as a set of functions, and calls of these: an error is reported with file and line."""

import inspect
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tfaccel.data.bad_data import BadData
from tfaccel.data.given_data import given_data, prepared_by_task
from tfaccel.data.hub_presets import prepares_data
from tfaccel.errors import TfaccelError, WorkloadError, in_one_line
from tfaccel.known_names import hint_of_keras_error
from tfaccel.planning.compile_arguments import compile_function, data_after_model
from tfaccel.planning.own_model import checked_build_model, get_name
from tfaccel.short_repr import noun

_OPTIONAL_FUNCTIONS = ("validation_data", "callbacks", "augment", "judge", "show_result")
_FROM_DATA = (
    "train_data",
    "validation_data",
    "augment",
    "augment_mixes_rows",
    "raw_input",
    "num_train_examples",
    "example_bytes",
)
# The arguments that tfaccel calls each function of a workload with.
_CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "build_model": ("build_model()", (), {}),
    "compile_args": ("compile_args(num_steps) or compile_args()", (), {}),
    "train_data": ("train_data(global_batch_size, *, seed, epoch)", (1,), {"seed": 0, "epoch": 0}),
    "validation_data": ("validation_data(global_batch_size)", (1,), {}),
    "callbacks": ("callbacks()", (), {}),
    "augment": ("augment(batch)", (None,), {}),
    "judge": ("judge(model)", (None,), {}),
    "show_result": ("show_result(workload, result)", (None, None), {}),
}


@noun(kw_only=False, suggests=True)
class Workload:
    """What to train: a model, how to compile it, and its data.

    Each function returns a fresh object at every call. None is called when the workload is created, so planning does
    not import TensorFlow.

    Args:
        name: a short name, such as "image_classification".
        build_model: `build_model()` returns an uncompiled Keras model. It is called inside the strategy's scope.
        compile_args: `compile_args(num_steps)` returns the keyword arguments of `Model.compile`, with a fresh
            optimizer, loss and metrics. It is called inside the strategy's scope too. `num_steps` is the number of
            optimizer steps of the whole run, for a learning-rate schedule. A function without this parameter is called
            without it.
        train_data: `train_data(global_batch_size, *, seed, epoch)` returns one epoch as a finite `tf.data.Dataset`
            of global batches. Seed and epoch determine the order, so that an epoch is reproducible. It may take
            more arguments: `start_step=0`, the number of full batches to skip at the beginning without reading them,
            and `shard=None`, or (index, count) for the rows of worker `index` out of `count` in each batch, all of
            which must then be full; and `num_epochs=1`, the number of consecutive epochs to return. With
            `every=None`, or (index, count) for every `count`-th batch from the `index`-th after `start_step` on,
            several data workers can prepare the batches. See `tfaccel.data.epochs.Part`. With `augment` it also
            takes `augmented=True`.
        validation_data: `validation_data(global_batch_size)` returns a finite `tf.data.Dataset` of global batches,
            the same at every call; None if there is none.
        augment: turns a batch of `train_data(..., augmented=False)` into the batch that `train_data` returns by
            default, so that the plan can choose where this happens. All its random numbers, such as those drawn for
            each row, are in the batch already, so that the result is the same wherever it runs. It is traced. None if
            nothing is augmented, or only in `train_data`.
        augment_mixes_rows: whether `augment` needs all rows of a global batch for each of them, because they are mixed
            (MixUp), or their random numbers are drawn for the batch; `train_data(..., augmented=False)` is then never
            called with a shard. False: it can augment any subset of the rows.
        callbacks: `callbacks()` returns fresh Keras callbacks to train with; None for none.
        judge: `judge(model)` returns name -> number for a compiled model in training. A search uses these as metrics
            after each epoch if the loss does not measure the quality of the model (as in a GAN). None if it does.
        show_result: `show_result(workload, result)` writes reports of a finished run into `result.run_dir`, and returns
            the `tfaccel.reporting.BaselineScores` for the verdict, or None; `tfaccel train` calls it. None for no
            further reports.
        raw_input: the raw data behind the model's tensors (image files, texts, rows of a table), and its class names:
            one of the classes in `tfaccel.data.raw_input`. It is saved in the run, so that exported models accept raw
            inputs. None if they accept only tensors.
        bad_data: the `tfaccel.data.BadData` that the data were read with: `result.json` has its counts, and a run is
            resumed only if the same examples were left out. None if damaged data are an error.
        global_batch_size: the recommended number of examples per optimizer step, over all replicas.
        min_replica_batch_size: the smallest number of examples per step that is worth another GPU; with steps of a
            millisecond, summing gradients over several does not pay. None: 32, for unknown models.
        epochs: the recommended number of passes over the training data; None if there is none.
        num_train_examples: examples in one epoch; None if unknown.
        example_bytes: about how many bytes one training example has when it is copied to a device; None if unknown.
            Large batches are copied to a GPU during the step before.
        bfloat16_on_cpu: recommends mixed_bfloat16 on CPUs that multiply in bfloat16 (AVX512_BF16, AMX). It pays if a
            step multiplies large matrices: from about 1e8 floating-point operations, as counted by
            `tfaccel.estimates.get_cost`.
        data: an object with some of `train_data`, `validation_data`, `augment`, `augment_mixes_rows`, `raw_input`,
            `num_train_examples` and `example_bytes`, such as `tfaccel.data.Batches`; these then need not be given.
            None if they are.
        options: name -> JSON value of everything else that affects the result (learning rate, path of the data ...). A
            run can be resumed (`resume="auto"`) only with the same options.

    Raises:
        WorkloadError: if an argument does not meet its description.

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
    bad_data: BadData | None = field(default=None, hash=False, compare=False)
    global_batch_size: int
    min_replica_batch_size: int | None = None
    epochs: int | None = None
    num_train_examples: int | None = None
    example_bytes: int | None = None
    bfloat16_on_cpu: bool = False
    data: Any = field(default=None, hash=False, compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in _FROM_DATA:
            if (
                any(getattr(self, name) is one for one in (None, False))
                and (value := getattr(self.data, name, None)) is not None
            ):
                object.__setattr__(self, name, value)
        if self.example_bytes is None:
            object.__setattr__(self, "example_bytes", getattr(self.train_data, "example_bytes", None))
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
        for name in ("global_batch_size", "min_replica_batch_size", "epochs", "num_train_examples", "example_bytes"):
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

    @classmethod
    @data_after_model
    def of(
        cls,
        build_model: Any,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        shuffle: bool | str = True,
        validation_data: Any = None,
        validation_split: float = 0.0,
        batch_size: int | None = None,
        epochs: int | None = None,
        name: str | None = None,
        callbacks: Callable[[], Sequence[Any]] | None = None,
        raw_input: Any = None,
        **compile_args: Any,
    ) -> Self:
        """A workload from a model, or the function that builds it, and data in any form that `Model.fit` accepts.

        Arrays are reshuffled in each epoch, in an order determined by seed and epoch, so that an epoch can be resumed;
        `Model.fit` repeats one order after `keras.utils.set_random_seed`. With `shuffle=False`, and for a
        `tf.data.Dataset`, which defines its own order, the batches are those of `Model.fit`.

        Args:
            build_model: `build_model()` returns a Keras model, which may be uncompiled if compile arguments are given.
                It is called inside the scope of the strategy. Or a compiled model, which is recreated there from its
                config, with its weights; a task of KerasHub prepares the data by its preprocessor, as in its `fit`.
            x, y: arrays, dictionaries or lists of arrays, data frames; or x a `tf.data.Dataset` of batches, a
                `keras.utils.PyDataset` or a Grain pipeline, which yields the targets itself.
            sample_weight, class_weight, shuffle: as in `Model.fit`.
            validation_data: (x, y) or (x, y, sample_weight), a `tf.data.Dataset` or a `PyDataset`.
            validation_split: the fraction of the arrays, from their end, to validate on.
            batch_size: examples in a batch over all replicas; None: that of the dataset, or 32 for arrays.
            epochs: the recommended number of epochs.
            name: the name of the workload; None for that of the file that defines `build_model`.
            callbacks: returns fresh callbacks at every call.
            raw_input: as in `Workload`.
            **compile_args: `optimizer`, `loss`, `metrics` and other arguments of `Model.compile`. Optimizers and
                metrics are recreated from their config for each use; they may also be given as a function that makes
                one, which gets the number of optimizer steps if it has the parameter `num_steps`. All of them may also
                come as one argument directly after the model, `Workload.of(build_model, compile_args, x, y)`: a
                dictionary, or a function as in `Workload`, `compile_args(num_steps)` or `compile_args()`.

        Raises:
            WorkloadError: for a model that is not compiled, and for unknown compile arguments.
            DataError: for data of another kind, such as a generator, or arrays of different lengths.

        Example:
            >>> import numpy as np
            >>> work = Workload.of(object, np.zeros((10, 3)), np.zeros(10), validation_split=0.2, loss="mse")
            >>> work.num_train_examples, work.global_batch_size
            (8, 32)
        """
        name = name or get_name(build_model)
        task = build_model if prepares_data(build_model) else None
        build_model = checked_build_model(build_model)
        if task is not None:
            batch_size = batch_size or (given_data(x).batch_size if hasattr(x, "element_spec") else None)
            x, y, sample_weight = prepared_by_task(task, x, y, sample_weight)
        compiled, identity = compile_function(build_model, compile_args)
        data = given_data(x, y, sample_weight, shuffle=shuffle, class_weight=class_weight)
        held_out = None
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, tuple | list) else (validation_data,)
            held_out = given_data(*(parts if task is None else prepared_by_task(task, *parts)))
        elif validation_split:
            if not hasattr(data, "split"):
                raise WorkloadError(f"`validation_split` is for arrays. Give validation_data beside a {data.what}.")
            data, held_out = data.split(validation_split)
        if batch_size is not None and data.batch_size not in (None, batch_size):
            raise WorkloadError(
                f"The {data.what} has batches of {data.batch_size} rows. Received: batch_size={batch_size}."
            )
        size = batch_size or data.batch_size or (32 if data.num_examples else None)
        if size is None:
            raise WorkloadError(
                "The batch size of the dataset is not known. Pass batch_size; or call `.batch(32)`, if the dataset "
                "yields single examples."
            )
        options = {f"train_{key}": value for key, value in data.identity.items()}
        options |= {} if held_out is None else {"validation_data": held_out.identity["data"]}
        return cls(
            name,
            build_model,
            compiled,
            data,
            None if held_out is None else held_out.validation,
            callbacks=callbacks,
            raw_input=raw_input,
            global_batch_size=size,
            epochs=epochs,
            num_train_examples=data.num_examples,
            options={**options, **identity},
        )


def check_parameters(name: str, function: Any) -> None:
    """Raises WorkloadError if a workload's function does not take the arguments that tfaccel passes.

    Example:
        >>> check_parameters("validation_data", lambda global_batch_size: None)
    """
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return
    text, positional, named = _CALLS[name]
    signature = inspect.signature(function)
    if name == "compile_args" and takes_num_steps(function):
        named = {"num_steps": 1}
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        raise WorkloadError(
            f"A workload's {name} is called as {text}. Received a function of {signature}: {error}."
        ) from error


def takes_num_steps(function: Callable[..., Any]) -> bool:
    """Whether a workload's `compile_args` has the parameter `num_steps`.

    Example:
        >>> takes_num_steps(lambda num_steps: {}), takes_num_steps(dict)
        (True, False)
    """
    try:
        return "num_steps" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a class or builtin without a signature
        return False


def call_own(of: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a user's function.

    Args:
        of: a description of the function, such as "build_model of workload 'digits'".
        function: the function, which is called with the other arguments.

    Raises:
        WorkloadError: for any error of the function except tfaccel's; the message names the line.

    Example:
        >>> call_own("the sum", sum, [1, 2])
        3
    """
    try:
        return function(*args, **kwargs)
    except TfaccelError:
        raise
    except Exception as error:
        rest = error.__traceback__ and error.__traceback__.tb_next  # this function is of no interest
        text = in_one_line(error) or "no message"
        raise WorkloadError(
            f"{of} raised {type(error).__name__}: {text:.1000}{hint_of_keras_error(text)}{_place(rest)}"
        ) from error.with_traceback(rest)


def _place(trace: TracebackType | None) -> str:
    """The innermost line outside of libraries, such as " (mine.py, line 3, in build_model)"."""
    frames = traceback.extract_tb(trace)
    files = [(Path(frame.filename), frame) for frame in frames]
    own = [(file, frame) for file, frame in files if "site-packages" not in file.parts and file.exists()]
    return "".join(f" ({file.name}, line {frame.lineno}, in {frame.name})" for file, frame in own[-1:])
