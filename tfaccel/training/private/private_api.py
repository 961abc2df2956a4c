"""The private API of Keras's models, layers, optimizers and callbacks that tfaccel uses.

The other `private_*.py` files cover the rest; all other code in this package uses public API. Docstrings say why public
API is not enough. An untested minor version of Keras or TensorFlow logs one warning; a missing private name raises
`VersionError` (see `tested_versions`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part, warn_if_untested
from tfaccel.training.steps.overrides import attributes_of_each, instance_attributes, keeps_methods, once_per_graph

_SHARED = "_shared_by_updates"
CACHED_EVALUATION = "_use_cached_eval_dataset"  # an argument that Keras's `fit` passes to `evaluate`
PROFILER_FLAGS = ("_is_tracing", "_profiler_started")  # of TensorBoard: they hold for one process
_SINGLE_DEVICE_METHODS = (
    "_backend_update_step",
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_overwrite_model_variables_with_average_value",
)


def check_versions() -> None:
    """Warns once if tfaccel was not tested with the installed minor version of Keras or TensorFlow."""
    warn_if_untested("keras", keras.__version__)
    warn_if_untested("tensorflow", tf.__version__)


# --- Model --------------------------------------------------------------------------------------------------------


def has_trainer(model: Any) -> bool:
    """Whether an object is a `keras.Model`, or a layer that inherits from Keras's trainer."""
    from keras.src.trainers import trainer

    return isinstance(model, private_part(trainer, "Trainer", renamed="BaseTrainer")) and isinstance(
        model, keras.layers.Layer
    )


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Every layer of the model, including nested ones (`Model.layers` stops at the first level)."""
    return list(private_part(model, "_flatten_layers")())


def runs_its_layers(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a functional or sequential model whose `call` is Keras's."""
    from keras.src.models import functional

    kinds = (keras.Sequential, private_part(functional, "Functional"))
    return any(keeps_methods(layer, kind, "call") for kind in kinds)


@contextlib.contextmanager
def outside_of_trace() -> Iterator[None]:
    """Within the block, variables are created in eager mode, unseen by the `tf.function` that is being traced.

    `tf.init_scope` leaves the function's graph, but not its notes: it would trace once more for each new variable.
    """
    from tensorflow.python.ops import resource_variable_ops

    variable = private_part(resource_variable_ops, "ResourceVariable", package="tensorflow")
    with tf.init_scope(), tf.variable_creator_scope(lambda _, use_resource=True, **given: variable(**given)):
        yield


def compiled_parts(model: keras.Model) -> list[Any]:
    """The compiled metrics and losses, which the first step builds."""
    return [private_part(model, name) for name in ("_compile_metrics", "_compile_loss")]


def compiled_parts_built(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """While tracing: the variables of the compiled metrics and losses are created `outside_of_trace`."""

    def build(part: Any) -> Callable[..., None]:
        def built(*args: Any) -> None:
            with outside_of_trace():
                type(part).build(part, *args)

        return built

    unbuilt = [part for part in compiled_parts(model) if part is not None and not part.built]
    return attributes_of_each((part, {"build": build(part)}) for part in unbuilt)


def names_of_layers_that_add_losses(model: keras.Model) -> list[str]:
    """Layers that added losses in the model's last call; the public `Layer.losses` includes those of inner layers."""
    return [f"{layer.name!r} ({type(layer).__name__})" for layer in all_layers(model) if private_part(layer, "_losses")]


def losses_added_by(layer: keras.layers.Layer) -> list[Any]:
    """The losses that the layer itself added in the current call; the public `losses` evaluates regularizers too."""
    return list(private_part(layer, "_losses"))


def weights_made_trainable(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The layer's own weights created as trainable, even if it is frozen; public properties depend on `trainable`."""
    return list(private_part(layer, "_trainable_variables"))


def call_model(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Calls the model on `x`, passing `training` only if the model takes it, as Keras's steps do."""
    return model(x, training=training) if private_part(model, "_call_has_training_arg") else model(x)


def compute_loss(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
    """`Model.compute_loss`, also of subclasses whose override does not take `training`."""
    return private_part(model, "_compute_loss")(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def flatten_logs(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Logs as the list (or single value) that `Model.evaluate` returns."""
    return private_part(model, "_flatten_metrics_in_order")(logs)


def loss_tracker(model: keras.Model) -> Any:
    """The `keras.metrics.Mean` of an epoch's loss; each `Model.compile` creates a new one."""
    return private_part(model, "_loss_tracker")


def initial_epoch(model: keras.Model, default: int) -> int:
    """The epoch to start from after restoring a backup (`BackupAndRestore` sets it on the model)."""
    return getattr(model, "_initial_epoch", None) or default


def traces_batches(callback: keras.callbacks.TensorBoard) -> bool:
    """Whether a callback profiles batches (`profile_batch`), for which there is no public attribute."""
    return bool(private_part(callback, "_should_trace"))


def keras_mask(value: Any) -> Any:
    """The mask that a layer set on its output, or None."""
    return getattr(value, "_keras_mask", None)


def with_mask(value: Any, mask: Any) -> Any:
    """Attaches a mask to a tensor as a layer does to its output."""
    value._keras_mask = mask
    return value


# --- Variables and optimizers of one replica ------------------------------------------------------------------------


@contextlib.contextmanager
def local_variables(variables: Sequence[keras.Variable], components: Sequence[tf.Variable]) -> Iterator[None]:
    """While tracing: makes each Keras variable refer to one replica's component of its distributed variable.

    Keras code then reads and writes plain variables, exactly as on one device. What the code keeps by variable, such as
    `tf.train.ExponentialMovingAverage`, it finds by a component, too.
    """
    saved = [variable._value for variable in variables]
    known = [(one, value.ref) for one, value in zip(components, saved, strict=True) if one is not value]
    try:
        for variable, component in zip(variables, components, strict=True):
            variable._value = component
        with attributes_of_each((component, {"ref": ref}) for component, ref in known):
            yield
    finally:
        for variable, value in zip(variables, saved, strict=True):
            variable._value = value


def tf_variable(variable: keras.Variable) -> Any:
    """The TensorFlow variable (distributed or plain) behind a Keras variable, never autocast."""
    return variable if isinstance(variable, tf.Variable) else variable._value


def create_again(variable: keras.Variable, value: Any) -> None:
    """Creates the TensorFlow variable behind a Keras variable again, in the current scope."""
    private_part(variable, "_initialize")(value)


def build_under(strategy: tf.distribute.Strategy, optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer create its slots under a strategy; Keras chooses the one in whose scope it was created."""
    for one in optimizers_in(optimizer):
        private_part(one, "_distribution_strategy")
        one._distribution_strategy = strategy


@contextlib.contextmanager
def changed_class(instance: Any, kind: type) -> Iterator[None]:
    """Temporarily changes an object's class, bypassing any `__setattr__` that would track it."""
    before = type(instance)
    object.__setattr__(instance, "__class__", kind)
    try:
        yield
    finally:
        object.__setattr__(instance, "__class__", before)


@contextlib.contextmanager
def single_device_optimizer(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """While tracing: makes an optimizer use Keras's device-agnostic code instead of its tf.distribute code.

    The tf.distribute code sums gradients after clipping them, and needs a replica context, which XLA does not allow.
    Without a strategy, it permanently registers a gradient function that keeps the step's whole graph alive.
    """
    with contextlib.ExitStack() as stack:
        for one in optimizers_in(optimizer):
            kind: Any = type(one)
            stack.enter_context(changed_class(one, _single_device_class(kind)))
            if hasattr(one, "_common_apply"):
                stack.enter_context(instance_attributes(one, {"_tf_apply": private_part(one, "_common_apply")}))
        yield


@functools.cache
def _single_device_class(kind: type[keras.optimizers.Optimizer]) -> type[keras.optimizers.Optimizer]:
    """A subclass without Keras's tf.distribute methods; keeps those that `kind` itself overrides, as Nadam does."""
    from keras.src.backend.tensorflow import optimizer as tensorflow_optimizer
    from keras.src.optimizers import base_optimizer

    distributed = private_part(tensorflow_optimizer, "TFOptimizer")
    base = private_part(base_optimizer, "BaseOptimizer")
    methods = {name: private_part(base, name) for name in _SINGLE_DEVICE_METHODS}
    return type(kind.__name__, (kind, type("SingleDevice", (distributed,), methods)), {})


def one_learning_rate(optimizer: keras.optimizers.Optimizer) -> contextlib.AbstractContextManager[None]:
    """During one `apply`: computes the learning rate, and what updates share, once per graph; Keras, for each variable.

    TensorFlow removes the duplicates when a graph is first called. Avoiding them shortens that call, which is part of
    the published training time of the recipe `image_classification`.
    """
    rate, every = "_get_current_learning_rate", optimizers_in(optimizer)
    return attributes_of_each((one, {rate: once_per_graph(private_part(one, rate)), _SHARED: {}}) for one in every)


def once_per_apply(optimizer: keras.optimizers.Optimizer, key: Any, compute: Callable[[], Any]) -> Any:
    """What `compute()` returns; within `one_learning_rate`, the updates of all weights in one graph share it.

    Args:
        key: tells values of one optimizer apart.
    """
    shared: dict[Any, Any] = vars(optimizer).get(_SHARED, {})
    key = (key, tf.compat.v1.get_default_graph())
    if key not in shared:
        shared[key] = compute()
    return shared[key]


def optimizers_in(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """An optimizer, and those that it holds, such as the inner one of a `LossScaleOptimizer` or of a lookahead."""
    found: dict[int, keras.optimizers.Optimizer] = {}
    parts = [optimizer]
    while parts:
        part = parts.pop(0)
        if id(part) not in found:
            found[id(part)] = part
            held = [one for value in vars(part).values() for one in (value if isinstance(value, list) else [value])]
            parts += [one for one in held if isinstance(one, keras.optimizers.Optimizer)]
    return list(found.values())


def learning_rate_schedule(optimizer: keras.optimizers.Optimizer) -> Any:
    """An optimizer's schedule, or None; the public `learning_rate` is only its value at the current step."""
    schedule = private_part(optimizer, "_learning_rate")
    return schedule if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule) else None


def learning_rate_function(optimizer: keras.optimizers.Optimizer) -> Any:
    """The function without arguments that an optimizer calls for its learning rate, or None if it has none."""
    rate = private_part(optimizer, "_learning_rate")
    return rate if callable(rate) and learning_rate_schedule(optimizer) is None else None


def learning_rate_from(
    optimizer: keras.optimizers.Optimizer, rate: Callable[[], Any]
) -> contextlib.AbstractContextManager[None]:
    """Within the block, an optimizer's learning rate is what `rate()` returns, in new graphs as well.

    The public setter cannot put a number back in place of a schedule, and a schedule in place of a number changes the
    optimizer's variables.
    """
    name = "_get_current_learning_rate"
    private_part(optimizer, name)
    return instance_attributes(optimizer, {name: rate})


def raw_iterations(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The counter of `apply` calls; the public `iterations` divides it by the accumulation steps."""
    return private_part(optimizer, "_iterations")


def gradient_accumulators(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable | None]:
    """Keras's gradient accumulators, in the order of the variables that the optimizer was built with; may be empty."""
    if not (optimizer.gradient_accumulation_steps and optimizer.built):
        return []
    return list(private_part(optimizer, "_accumulated_gradients"))


def variable_index(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> int:
    """The position of a model variable in the optimizer's lists."""
    index: int = private_part(optimizer, "_get_variable_index")(variable)
    return index


def check_gradients(
    optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], variables: Sequence[keras.Variable]
) -> None:
    """What Keras says of gradients that are None: it warns of some, and raises ValueError if all of them are."""
    if gradients:
        private_part(optimizer, "_filter_empty_gradients")(gradients, variables)


def get_graph(model: keras.Model) -> Any:
    """The functional graph that a model's `call` runs; None if it runs something else, or is not built yet."""
    if not runs_its_layers(model):
        return None
    return private_part(model, "_functional") if isinstance(model, keras.Sequential) else model


def get_nodes(graph: Any) -> list[Any]:
    """The calls of operations in a graph, without its inputs, in the order in which they run."""
    by_depth = private_part(graph, "_nodes_by_depth")
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]


def name_of_maker(symbol: Any) -> str:
    """The name of the operation that makes a symbolic tensor."""
    return str(private_part(symbol, "_keras_history").operation.name)


def values_of_inputs(graph: Any, inputs: Any, mask: Any) -> dict[int, Any]:
    """The values of a graph's symbolic inputs, by their ids, as `Functional.call` prepares them."""
    values = private_part(graph, "_standardize_inputs")(inputs)
    masks = [None] * len(values) if mask is None else keras.tree.flatten(mask)
    for value, own in zip(values, masks, strict=False):
        if own is not None:
            with_mask(value, own)
    return {id(symbol): value for symbol, value in zip(graph.inputs, values, strict=True)}


def run_nodes(nodes: Iterable[Any], values: dict[int, Any], context: dict[str, Any]) -> None:
    """Runs calls of operations as `Functional.call` does, and adds their outputs to `values`.

    Args:
        values: by the ids of symbolic tensors.
        context: what the model's call was given for its layers, such as `training`.
    """
    for node in nodes:
        if any(id(symbol) not in values for symbol in node.input_tensors):
            continue
        args, named = node.arguments.fill_in(values)
        taken = getattr(node.operation, "_call_context_args", {})  # of layers
        named |= {name: value for name, value in context.items() if name in taken and value is not None}
        outputs = node.operation(*args, **named)
        for symbol, value in zip(node.outputs, keras.tree.flatten(outputs), strict=False):
            values[id(symbol)] = value


def outputs_from(graph: Any, values: dict[int, Any]) -> Any:
    """What `Functional.call` returns, from the values of the graph's outputs."""
    structure = private_part(graph, "_outputs_struct")
    outputs = keras.tree.pack_sequence_as(structure, [values[id(symbol)] for symbol in graph.outputs])
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def like(value: Any, tensor: Any) -> Any:
    """The tensor, with the mask of a value."""
    mask = keras_mask(value)
    return tensor if mask is None else with_mask(tensor, mask)


def replace_losses(layer: keras.layers.Layer, losses: list[Any]) -> None:
    """Replaces the losses that a layer added in the current call."""
    private_part(layer, "_losses")[:] = losses


def regularizer_attribute(variable: keras.Variable, regularizer: Any) -> dict[str, Any]:
    """The attribute that gives a variable another regularizer; the public one checks nothing, but is a property."""
    private_part(variable, "_regularizer")
    return {"_regularizer": regularizer}


class OwnWeightDecay(keras.optimizers.Optimizer):
    """An optimizer whose `update_step` applies `weight_decay`, in place of Keras's decay before the update."""

    def _apply_weight_decay(self, variables: Any) -> None:
        """Overrides Keras's decoupled weight decay: `update_step` decays."""

    def decays(self, variable: Any) -> bool:
        """Whether a variable is decayed: not if `exclude_from_weight_decay` excluded it."""
        return self.weight_decay is not None and bool(private_part(self, "_use_weight_decay")(variable))

    def position(self, variable: Any) -> int:
        """The position of a model's variable, or of TensorFlow's variable behind it, among those built for."""
        return variable_index(self, variable)


def lookup_tables(model: keras.Model) -> list[Any]:
    """The tables of layers such as IntegerLookup and StringLookup, which Keras does not count as weights.

    Example:
        >>> lookup = keras.layers.IntegerLookup(vocabulary=[5, 7])
        >>> model = keras.Sequential([keras.Input((3,), dtype="int64"), lookup])
        >>> len(lookup_tables(model))
        1
    """
    found: dict[int, Any] = {}
    for layer in all_layers(model):
        for value in vars(layer).values():
            if isinstance(value, tf.saved_model.experimental.TrackableResource):
                found[id(value)] = value
    return list(found.values())
