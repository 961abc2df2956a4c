"""The only place where tfaccel touches private parts of Keras, with the versions they were tested on.

Everything else in this package uses public API. Each function below says what it needs and why the public API does not
serve. Another minor version of Keras or TensorFlow is warned of once; a part that is gone raises `VersionError`.
"""

import contextlib
import functools
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import VersionError
from tfaccel.training.overrides import instance_attributes, once_per_graph

TESTED_KERAS = ("3.15",)
TESTED_TENSORFLOW = ("2.20", "2.21")


@functools.cache
def check_versions() -> None:
    """Warns once when Keras or TensorFlow is of a minor version that tfaccel was not tested on."""
    for name, version, tested in (
        ("keras", keras.__version__, TESTED_KERAS),
        ("tensorflow", tf.__version__, TESTED_TENSORFLOW),
    ):
        if ".".join(version.split(".")[:2]) not in tested:
            wanted = " or ".join(f"{v}.*" for v in tested)
            warnings.warn(
                f"tfaccel was tested with {name} {wanted}; {version} is installed. It may work; if it does not, "
                f"install {name}=={tested[-1]}.*",
                stacklevel=3,
            )


def _private(root: Any, path: str) -> Any:
    """`root.path`, or a VersionError that names the versions which have it."""
    value = root
    for name in path.split("."):
        if not hasattr(value, name):
            raise VersionError(
                f"keras {keras.__version__} has no `{path}`, which tfaccel needs. "
                f"Install a version that has it: pip install 'keras=={TESTED_KERAS[-1]}.*'."
            )
        value = getattr(value, name)
    return value


# --- Data: what `Model.fit` accepts -------------------------------------------------------------------------------


def data_adapter(
    x: Any, y: Any = None, sample_weight: Any = None, *, batch_size: int | None, steps: int | None, shuffle: Any,
    class_weight: dict[int, float] | None,
) -> Any:  # fmt: skip
    """Keras's own adapter for arrays, tf.data, PyDataset, generators, torch and grain loaders (checks included)."""
    from keras.src.trainers import data_adapters

    return _private(data_adapters, "get_data_adapter")(
        x=x, y=y, sample_weight=sample_weight, batch_size=batch_size, steps_per_epoch=steps, shuffle=shuffle,
        class_weight=class_weight,
    )  # fmt: skip


def dense_arrays(adapter: Any) -> Any | None:
    """The inputs of an array adapter as a nest of dense tensors, or None (another adapter, sparse or ragged data)."""
    from keras.src.trainers.data_adapters import array_data_adapter, array_slicing

    if not isinstance(adapter, _private(array_data_adapter, "ArrayDataAdapter")):
        return None
    inputs = _private(adapter, "_inputs")
    if any(_is_sparse_or_ragged(leaf) for leaf in keras.tree.flatten(inputs)):
        return None
    arrays = _private(array_slicing, "convert_to_sliceable")(inputs, target_backend="tensorflow")
    arrays = keras.tree.lists_to_tuples(arrays)
    with tf.device("/CPU:0"):  # the rows of a batch are gathered in host memory
        return keras.tree.map_structure(lambda a: None if a is None else tf.convert_to_tensor(a), arrays)


def _is_sparse_or_ragged(value: Any) -> bool:
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return True
    return "sparse" in type(value).__module__.lower() or "Sparse" in type(value).__name__


def validation_split(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """The first part for training and the last `fraction` for validation, as `Model.fit` cuts them."""
    from keras.src.trainers.data_adapters import array_slicing

    train, validation = _private(array_slicing, "train_validation_split")(arrays, validation_split=fraction)
    return train, validation


# --- Model --------------------------------------------------------------------------------------------------------


def build_model(model: keras.Model, batch_spec: Any) -> None:
    """Builds model, loss, metrics and optimizer from the specs of one batch, reading no data.

    Variables must exist before the first trace under a strategy; Keras has this as `Model._symbolic_build` only.
    """
    specs = keras.tree.map_structure(_as_keras_tensor, batch_spec)
    with model.distribute_strategy.scope():
        _private(model, "_symbolic_build")(data_batch=specs)


def _as_keras_tensor(spec: Any) -> Any:
    if spec is None or not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
        return None
    return keras.KerasTensor(spec.shape, keras.backend.standardize_dtype(spec.dtype))


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Every layer of the model, those inside layers included (`Model.layers` stops at the first level)."""
    return list(_private(model, "_flatten_layers")())


def weights_made_trainable(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The layer's own weights that are trained unless they are frozen; public properties go by the present state."""
    return list(_private(layer, "_trainable_variables"))


def call_model(model: keras.Model, x: Any, *, training: bool) -> Any:
    """The model's predictions for `x`; `training` is passed only to models that take it, as Keras's steps do."""
    return model(x, training=training) if _private(model, "_call_has_training_arg") else model(x)


def compute_loss(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
    """`Model.compute_loss`, also where a subclass overrides it without the argument `training`."""
    return _private(model, "_compute_loss")(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def flatten_logs(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Logs as the list (or single value) that `Model.evaluate` returns."""
    return _private(model, "_flatten_metrics_in_order")(logs)


def moments_of(layer: keras.layers.Layer, rows: Callable[[Any], Any]) -> dict[str, Any]:
    """Attributes that let a batch normalization take its statistics from `rows(inputs)` only."""
    moments = _private(layer, "_moments")

    def moments_of_rows(inputs: Any, mask: Any = None) -> Any:
        return moments(rows(inputs), None if mask is None else rows(mask))

    return {"_moments": moments_of_rows}


def loss_tracker(model: keras.Model) -> Any:
    """The metric (`keras.metrics.Mean`) of an epoch's loss; each `Model.compile` makes another one."""
    return _private(model, "_loss_tracker")


def initial_epoch(model: keras.Model, default: int) -> int:
    """The epoch that a restored backup asks to start from (`BackupAndRestore` sets it on the model)."""
    return getattr(model, "_initial_epoch", None) or default


# --- Variables and optimizers of one replica ------------------------------------------------------------------------


@contextlib.contextmanager
def local_variables(variables: Sequence[keras.Variable], components: Sequence[tf.Variable]) -> Iterator[None]:
    """While tracing, lets each Keras variable stand for one replica's component of its distributed variable.

    Keras code then reads and writes plain variables, exactly as on one device.
    """
    saved = [variable._value for variable in variables]
    try:
        for variable, component in zip(variables, components, strict=True):
            variable._value = component
        yield
    finally:
        for variable, value in zip(variables, saved, strict=True):
            variable._value = value


def tf_variable(variable: keras.Variable) -> Any:
    """The TensorFlow variable (distributed or plain) behind a Keras variable, never autocast."""
    return variable._value


_SINGLE_DEVICE_METHODS = ("_backend_update_step", "_apply_weight_decay", "_backend_increment_gradient_accumulators",
                          "_overwrite_model_variables_with_average_value")  # fmt: skip


@contextlib.contextmanager
def single_device_optimizer(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """While tracing, gives an optimizer Keras's device-agnostic code in place of its tf.distribute code.

    The tf.distribute code sums gradients after clipping them and needs a replica context that cannot be inside XLA.
    """
    from keras.src.optimizers import base_optimizer

    base = _private(base_optimizer, "BaseOptimizer")
    with contextlib.ExitStack() as stack:
        for one in _optimizers_in(optimizer):
            methods = {name: types.MethodType(_private(base, name), one) for name in _SINGLE_DEVICE_METHODS
                       if hasattr(base, name)}  # fmt: skip
            if hasattr(one, "_common_apply"):
                methods["_tf_apply"] = _private(one, "_common_apply")
            stack.enter_context(instance_attributes(one, methods))
        yield


@contextlib.contextmanager
def learning_rate_once(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """During one `apply`, asks a schedule once in each graph, not once for each variable with weight decay."""
    name = "_get_current_learning_rate"
    with contextlib.ExitStack() as stack:
        for one in _optimizers_in(optimizer):
            stack.enter_context(instance_attributes(one, {name: once_per_graph(_private(one, name))}))
        yield


def _optimizers_in(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list({id(one): one for one in (optimizer, inner, *getattr(inner, "optimizers", ()))}.values())


def learning_rate_schedule(optimizer: keras.optimizers.Optimizer) -> Any:
    """The schedule of an optimizer, or None; the public `learning_rate` is its value at the present step only."""
    schedule = _private(optimizer, "_learning_rate")
    return schedule if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule) else None


def raw_iterations(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The counter of `apply` calls; the public `iterations` divides it by the accumulation steps."""
    return _private(optimizer, "_iterations")


def gradient_accumulators(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable | None]:
    """The variables in which Keras accumulates gradients, in the order the optimizer was built with."""
    return list(_private(optimizer, "_accumulated_gradients"))


def variable_index(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> int:
    """The position of a model variable in the optimizer's lists."""
    index: int = _private(optimizer, "_get_variable_index")(variable)
    return index


# --- Losses: the reduction over the batch -----------------------------------------------------------------------------

_patch_lock = threading.RLock()


@contextlib.contextmanager
def loss_reduction(reduce_fn: Callable[..., Any], update_mean_fn: Callable[..., Any]) -> Iterator[None]:
    """While tracing, lets `reduce_fn(original, values, sample_weight, mask, reduction, dtype)` reduce every loss.

    Keras reduces over the replica's rows and divides by the number of replicas; that is not the mean over the global
    batch when rows are uneven, masked or weighted. `update_mean_fn(original, metric, values, sample_weight)` replaces
    `keras.metrics.Mean.update_state` likewise. Both receive the original function first.
    """
    from keras.src.losses import loss as loss_module

    _private(loss_module, "scale_loss_for_distribution")
    _private(loss_module, "unscale_loss_for_distribution")
    original_reduce = _private(loss_module, "reduce_weighted_values")
    original_update = keras.metrics.Mean.update_state

    def reduce(values: Any, sample_weight: Any = None, mask: Any = None, reduction: Any = "sum_over_batch_size",
               dtype: Any = None) -> Any:  # fmt: skip
        return reduce_fn(original_reduce, values, sample_weight, mask, reduction, dtype)

    def update(self: keras.metrics.Mean, values: Any, sample_weight: Any = None) -> Any:
        return update_mean_fn(original_update, self, values, sample_weight)

    patches = {
        "reduce_weighted_values": reduce,
        "scale_loss_for_distribution": lambda value: value,
        "unscale_loss_for_distribution": lambda value: value,
    }
    with _patch_lock:
        saved = {name: getattr(loss_module, name) for name in patches}
        try:
            for name, value in patches.items():
                setattr(loss_module, name, value)
            keras.metrics.Mean.update_state = update
            yield
        finally:
            for name, value in saved.items():
                setattr(loss_module, name, value)
            keras.metrics.Mean.update_state = original_update


def merge_mask(sample_weight: Any, mask: Any, *, dtype: Any, values: Any) -> Any:
    """Weights and mask merged as Keras merges them for a sum, with the rank of `values` where they can have it."""
    from keras.src.losses import loss as loss_module

    merged = _private(loss_module, "apply_mask")(sample_weight, mask, dtype=dtype, reduction="sum")
    return _private(loss_module, "squeeze_or_expand_to_same_rank")(values, merged)[1]
