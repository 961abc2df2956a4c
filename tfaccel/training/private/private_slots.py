"""The private API that finds, moves, replaces and creates slots of an optimizer, weights, and embedding tables.

A Keras variable that moves stays the same object, and so does the key under which an optimizer knows it. `AbsentSlot`
is what a worker has in place of a slot that another worker holds.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_api import variable_index
from tfaccel.training.private.private_layers import patched
from tfaccel.training.steps.overrides import instance_attributes

_AVERAGES = "_model_variables_moving_average"
_OF_AVERAGES = ("_update_model_variables_moving_average", "_overwrite_model_variables_with_average_value")
_ACCUMULATED = "_accumulated_gradients"
_NO_SLOTS = ("_trainable_variables", "_variables", _ACCUMULATED)


def adam_slots(optimizer: keras.optimizers.Adam, variable: Any) -> tuple[keras.Variable, keras.Variable]:
    """First and second moment of a weight's gradients."""
    index = variable_index(optimizer, variable)
    return private_part(optimizer, "_momentums")[index], private_part(optimizer, "_velocities")[index]


def get_slots(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> list[keras.Variable]:
    """All slots of a weight that have its shape, in the optimizer's lists by weight."""
    index = variable_index(optimizer, variable)
    slots = [one[index] for one in _lists_by_weight(optimizer) if isinstance(one[index], keras.Variable)]
    return [slot for slot in slots if tuple(slot.shape) == tuple(variable.shape)]


def _lists_by_weight(optimizer: keras.optimizers.Optimizer) -> list[Sequence[Any]]:
    """An optimizer's lists with one entry for each weight, but those of the weights and of accumulated gradients."""
    number = len(trained_variables(optimizer))
    return [
        one
        for name, one in vars(optimizer).items()
        if isinstance(one, list | tuple) and len(one) == number and name not in _NO_SLOTS
    ]


def slots_by_weight(optimizer: keras.optimizers.Optimizer) -> list[list[keras.Variable]]:
    """The slots of each weight that an optimizer was built with, of any shape, its moving average included.

    Accumulated gradients are no slots: they are sums of a replica's own gradients.
    """
    own = {id(one) for one in optimizer.variables}
    lists = _lists_by_weight(optimizer)
    columns = zip(*lists, strict=True) if lists else iter([()] * len(trained_variables(optimizer)))
    return [[one for one in column if isinstance(one, keras.Variable) and id(one) in own] for column in columns]


def shared_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables of an optimizer that the updates of several weights may change.

    Not its counter and learning rate, nor Nadam's product, which change once in a step.
    """
    columns = slots_by_weight(optimizer)
    users = Counter(key for column in columns for key in {id(one) for one in column})
    others = [getattr(optimizer, name, None) for name in ("_iterations", "_learning_rate", "_u_product", _ACCUMULATED)]
    once = {id(one) for other in others for one in (other if isinstance(other, list) else [other])}
    return [one for one in optimizer.variables if users[id(one)] != 1 and id(one) not in once]


def trained_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The weights that an optimizer was built with, in its order."""
    return list(private_part(optimizer, "_trainable_variables"))


def moving_averages(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable | None]:
    """The moving averages of the weights that an optimizer with `use_ema` was built with, in its order."""
    return list(private_part(optimizer, _AVERAGES))


def updating_only(optimizer: keras.optimizers.Optimizer, owns: Callable[[int], bool]) -> dict[str, Any]:
    """Attributes that make an optimizer update some of its weights only, with their slots and moving averages.

    `apply` still takes the gradients of all: they are unscaled, checked and clipped together.

    Args:
        optimizer: the optimizer, built, of which every part runs as on a single device.
        owns: whether it updates the weight at a position of `trained_variables`.
    """

    def owned(variables: Any) -> list[int]:
        return [i for i, variable in enumerate(variables) if owns(variable_index(optimizer, variable))]

    def update_step(gradients: Any, variables: Any, learning_rate: Any) -> None:
        own = owned(variables)
        some = [gradients[i] for i in own], [variables[i] for i in own]
        private_part(type(optimizer), "_backend_update_step")(optimizer, *some, learning_rate)

    def decay(variables: Any) -> None:
        private_part(type(optimizer), "_apply_weight_decay")(optimizer, [variables[i] for i in owned(variables)])

    def of_averages(name: str) -> Callable[[Any], None]:
        def run(variables: Any) -> None:
            own = owned(variables)
            averages = private_part(optimizer, _AVERAGES)
            with instance_attributes(optimizer, {_AVERAGES: [averages[i] for i in own]}):
                private_part(type(optimizer), name)(optimizer, [variables[i] for i in own])

        return run

    attributes = {"_backend_update_step": update_step, "_apply_weight_decay": decay}
    return attributes | {name: of_averages(name) for name in _OF_AVERAGES}


def get_keys(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], copies: Sequence[tf.Variable]
) -> dict[str, Any]:
    """Attributes that make an optimizer know weights whose values are, for now, in copies of their variables."""
    name = "_var_key"
    key_of = private_part(type(optimizer), name)
    keys = {id(copy): key_of(optimizer, one) for one, copy in zip(variables, copies, strict=True)}

    def key(variable: Any) -> Any:
        stored = variable._value if isinstance(variable, keras.Variable) else variable
        return keys[id(stored)] if id(stored) in keys else key_of(optimizer, variable)

    return {name: key}


def accumulating_nothing(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Attributes that make an optimizer take gradients as sums of those of all its accumulation steps."""

    def nothing(*arguments: Any) -> None:
        del arguments

    name = _ACCUMULATED
    zeros = [0.0] * len(private_part(optimizer, name))
    resets = ("_backend_reset_gradient_accumulators", "_backend_increment_gradient_accumulators")
    return {name: zeros, **dict.fromkeys(resets, nothing)}


def set_stored(variable: keras.Variable, value: Any) -> None:
    """Makes a Keras variable store its value in another TensorFlow variable."""
    private_part(variable, "_value")
    variable._value = value


def set_dtype(variable: keras.Variable, dtype: str) -> None:
    """Changes the dtype that a Keras variable says it has."""
    private_part(variable, "_dtype")
    variable._dtype = dtype


def dtype_attribute(variable: keras.Variable, dtype: str) -> dict[str, str]:
    """The attribute that makes a Keras variable say that it has a dtype."""
    private_part(variable, "_dtype")
    return {"_dtype": dtype}


def plain_variable(value: Any, name: str, *, shape: Any = None) -> tf.Variable:
    """A new variable on the current device: no strategy whose scope the caller is in takes part."""
    from tensorflow.python.ops import resource_variable_ops

    kind = private_part(resource_variable_ops, "ResourceVariable", package="tensorflow")
    with tf.init_scope():
        return kind(value, trainable=False, name=name, shape=shape)


def has_weight_decay(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Whether an optimizer decays a weight."""
    return bool(optimizer.weight_decay) and bool(private_part(optimizer, "_use_weight_decay")(variable))


def known_index(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> dict[str, Callable[[Any], int]]:
    """Attributes that make an optimizer find a weight whose value, which Keras looks it up by, is replaced."""
    index = variable_index(optimizer, variable)
    private_part(optimizer, "_get_variable_index")
    return {"_get_variable_index": lambda variable: index}


def knows(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Whether an optimizer is built, and updates a variable."""
    known = private_part(optimizer, "_trainable_variables_indices") if optimizer.built else {}
    return _key(optimizer, variable) in known


def replace(variable: keras.Variable, value: Any, optimizers: Sequence[keras.optimizers.Optimizer] = ()) -> None:
    """Gives a Keras variable another TensorFlow variable; its optimizers still know it, or leave out its decay."""
    known = [one for one in optimizers if knows(one, variable)]
    indices = [private_part(one, "_trainable_variables_indices") for one in known]
    places = [index.pop(_key(one, variable)) for one, index in zip(known, indices, strict=True)]
    excluding = [(one, vars(one).get("_exclude_from_weight_decay", ())) for one in optimizers]
    excluding = [(one, keys) for one, keys in excluding if _key(one, variable) in keys]
    for one, keys in excluding:
        keys.remove(_key(one, variable))
    variable._value = value
    for one, keys in excluding:
        keys.add(_key(one, variable))
    for one, index, place in zip(known, indices, places, strict=True):
        index[_key(one, variable)] = place


def new_value(variable: keras.Variable, value: Any) -> tf.Variable:
    """A TensorFlow variable in the current scope, as Keras creates it for a variable, which keeps its own."""
    before = variable._value
    try:
        private_part(variable, "_initialize")(value)
        return variable._value
    finally:
        variable._value = before


def clipping_slices(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Attributes with which clipping keeps gradients that are slices of distinct rows; `global_clipnorm` would not."""
    usual = private_part(optimizer, "_clip_gradients")

    def clip(gradients: list[Any]) -> list[Any]:
        clipped = usual([one.values if isinstance(one, tf.IndexedSlices) else one for one in gradients])
        return [
            tf.IndexedSlices(new, old.indices, old.dense_shape) if isinstance(old, tf.IndexedSlices) else new
            for old, new in zip(gradients, clipped, strict=True)
        ]

    return {"_clip_gradients": clip}


def _key(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> Any:
    return private_part(optimizer, "_var_key")(variable)


def new_slot(optimizer: keras.optimizers.Optimizer, variable: Any, name: str | None, initializer: Any) -> Any:
    """A new slot of a variable on the caller's device; Keras's method for TensorFlow puts it beside the variable."""
    from keras.src.optimizers import base_optimizer

    kind = private_part(base_optimizer, "BaseOptimizer")
    return kind.add_variable_from_reference(optimizer, variable, name=name, initializer=initializer)


def embeddings_built_by(build: Callable[..., None]) -> contextlib.AbstractContextManager[None]:
    """Within the block, embedding layers are built by `build(usual, layer, input_shape)`, also those built after it."""
    kind, usual = keras.layers.Embedding, keras.layers.Embedding.build

    @functools.wraps(usual)
    def replaced(layer: keras.layers.Embedding, input_shape: Any = None) -> None:
        build(usual, layer, input_shape)

    return patched(kind, build=replaced)


class AbsentSlot:
    """Stands for a slot that another worker holds; takes no memory while training.

    Attributes:
        copy: its value, while there is one on this worker.
    """

    device, shape = "", tf.TensorShape([0])

    def __init__(self, name: str, dtype: Any, worker: int) -> None:
        self.name, self.dtype, self.worker = name, tf.as_dtype(dtype), worker
        self.copy: np.ndarray | None = None

    def numpy(self) -> np.ndarray:
        """The copied value."""
        if self.copy is None:
            raise PlanError(
                f"The slot {self.name!r} is held by worker {self.worker}, since optimizer_state='sharded'. Read it "
                "on the chief after training, save with `tfaccel.Resume` while training, or use "
                "optimizer_state='replicated'."
            )
        return self.copy

    def assign(self, value: Any) -> None:
        """Changes the copied value, which the worker that holds the slot does not see."""
        del value
        raise PlanError(
            f"The slot {self.name!r} is held by worker {self.worker}, since optimizer_state='sharded', so that this "
            "worker cannot assign it. Use optimizer_state='replicated'."
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del copy
        return self.numpy().astype(dtype) if dtype is not None else self.numpy()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.constant(self.numpy(), dtype or self.dtype, name=name or "slot")


def move(variable: keras.Variable, devices: Sequence[str]) -> None:
    """Moves a variable's values, one for each replica, to devices."""
    value = variable._value
    if isinstance(value, tf.distribute.DistributedValues):
        components = list(value.values)
        if all(component.device.endswith(device) for component, device in zip(components, devices, strict=True)):
            return
        moved = [_moved(one, device) for one, device in zip(components, devices, strict=True)]
        policy = private_part(value, "_policy", package="tensorflow")
        kind: Any = type(value)
        variable._value = kind(value.distribute_strategy, moved, value.aggregation, var_policy=policy)
    elif not value.device.endswith(devices[0]):
        variable._value = _moved(value, devices[0])


def _moved(value: Any, device: str) -> Any:
    """A variable with the same value, name and key on another device, whatever scope of a strategy is entered."""
    from tensorflow.python.ops import resource_variable_ops

    kind = private_part(resource_variable_ops, "ResourceVariable", package="tensorflow")
    with tf.init_scope(), tf.device(device):
        moved = kind(
            tf.identity(value.read_value()),
            trainable=value.trainable,
            name=value.name.split(":")[0],
            dtype=value.dtype,
            aggregation=value.aggregation,
        )
    private_part(moved, "_unique_id", package="tensorflow")
    moved._unique_id = value._unique_id
    return moved


def get_every_slot(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> list[keras.Variable]:
    """All that an optimizer keeps for a weight, in lists by weight: slots of any shape, averages, accumulators."""
    known = private_part(optimizer, "_trainable_variables")
    index = next((place for place, one in enumerate(known) if one is variable), None)
    if index is None:
        return []
    found = []
    for name, values in vars(optimizer).items():
        if name in ("_trainable_variables", "_variables"):
            continue
        if isinstance(values, list | tuple) and len(values) == len(known):
            found.append(values[index])
        elif isinstance(values, dict):
            found += [values[key] for key in (index, private_part(optimizer, "_var_key")(variable)) if key in values]
    return [one for one in found if isinstance(one, keras.Variable) and one is not variable]
