"""Rematerialization: a model's blocks keep only their inputs, and the backward pass recomputes their activations.

While a training step is traced, the blocks' `call` runs inside `recomputed`. The user's model, its config and
its files stay as they are. The recomputation repeats the forward pass: it draws the same random numbers (a block's
seed generators advance once), in the same dtype, with the same masks. A layer that keeps another state, such as
`BatchNormalization`, or a recurrent one, is left as it is. What cannot be repeated is refused by name.

`tf.recompute_grad` does the same, but returns other gradients than the function itself: zeros for a variable that none
flows to, so that weight decay changes it, and a dense tensor for rows of a table, whose optimizer step is another one.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, https://arxiv.org/abs/1604.06174
"""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.training.private import private_api
from tfaccel.training.private.private_layers import state_around_call
from tfaccel.training.private.private_tensorflow import without_recording
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.steps.overrides import attributes_of_each

logger = logging.getLogger("tfaccel")

_ASSIGN = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_HARMLESS = (
    *("Assert", "ReadVariableOp", "ResourceGather", "VarIsInitializedOp", "VarHandleOp", "VariableShape"),
    "XlaCallModule",  # a pure function: attention
)
_HINT = "Use rematerialization=False, or `keras.remat` in the model where it fits."
_said: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def get_blocks(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers whose activations are recomputed: each direct layer with weights and without a state of its own.

    A functional or sequential model inside the model that has most of its weights counts as its own layers.

    Example:
        >>> layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.ReLU()]
        >>> [type(block).__name__ for block in get_blocks(keras.Sequential([keras.Input((4,)), *layers]))]
        ['Dense']
    """
    found = []
    for layer in model.layers:
        if private_api.runs_its_layers(layer) and 2 * _num_weights(layer) > _num_weights(model):
            found += get_blocks(layer)
        elif layer.weights and _can_run_again(layer):
            found.append(layer)
    return list({id(layer): layer for layer in found}.values())


def _num_weights(layer: keras.layers.Layer) -> int:
    return sum(math.prod(variable.shape) for variable in layer.weights)


def _can_run_again(layer: keras.layers.Layer) -> bool:
    """Whether a layer keeps no state but seeds, and adds no regularization loss for its activations."""
    inner = list(private_api.all_layers(layer))
    seeds = {id(generator.state) for generator in _generators(inner)}
    return (
        all(id(variable) in seeds or _is_frozen(variable, inner) for variable in layer.non_trainable_variables)
        and not any(isinstance(one, keras.layers.RNN) for one in inner)
        and not any(getattr(one, "activity_regularizer", None) for one in inner)
    )


def _is_frozen(variable: keras.Variable, layers: list[keras.layers.Layer]) -> bool:
    """Whether a weight is trainable by itself, in a layer that is not."""
    return any(variable is one for layer in layers for one in private_api.weights_made_trainable(layer))


def _generators(layers: list[keras.layers.Layer]) -> list[keras.random.SeedGenerator]:
    values = [value for layer in layers for value in vars(layer).values()]
    return [value for value in values if isinstance(value, keras.random.SeedGenerator)]


def recomputed_blocks(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """While tracing a training step: the model's blocks recompute their activations in the backward pass."""
    if has_own_train_step(model):
        raise PlanError(
            f"{type(model).__name__} has its own train_step, for which rematerialization is not supported. {_HINT}"
        )
    blocks = get_blocks(model)
    if not blocks:
        raise PlanError(
            f"Model {model.name!r} has no layer that can be recomputed: each has no weights, is recurrent, keeps a "
            f"state, as BatchNormalization does, or has an activity regularizer. {_HINT}"
        )
    if model not in _said:
        _said.add(model)
        logger.info(
            "Activations of %d of %d layers are recomputed in the backward pass.", len(blocks), len(model.layers)
        )
    return attributes_of_each((block, {"call": _recomputed(block)}) for block in blocks)


def _recomputed(block: keras.layers.Layer) -> Callable[..., Any]:
    """The block's `call`, which keeps nothing but its inputs for the backward pass."""
    call = block.call

    def recomputed_call(*args: Any, **kwargs: Any) -> Any:
        flat = keras.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(flat) if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating]
        if not places or tf.executing_eagerly():
            return call(*args, **kwargs)
        inputs = [flat[place] for place in places]
        masks = [private_api.keras_mask(tensor) for tensor in inputs]
        run = _Runs(block, state_around_call(block))

        def compute(*tensors: tf.Tensor) -> Any:
            leaves = list(flat)
            for place, tensor, mask in zip(places, tensors, masks, strict=True):
                leaves[place] = tensor if mask is None else private_api.with_mask(tensor, mask)
            given, named = keras.tree.pack_sequence_as((args, kwargs), leaves)
            with run.once():
                return call(*given, **named)

        return recomputed(compute, inputs)

    return recomputed_call


class _Runs:
    """The forward pass of a block, and its recomputation with the same random numbers.

    Args:
        state: makes the context of `Layer.__call__`, which the backward pass lacks.
    """

    def __init__(self, block: keras.layers.Layer, state: Callable[[], Any]) -> None:
        self._block = block
        self._state = state
        self._layers = list(private_api.all_layers(block))
        self._generators = _generators(self._layers)
        self._seeds: list[list[Any]] | None = None

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """The forward pass on first use, and recomputations later."""
        if self._seeds is None:
            yield from self._forward()
            return
        pairs = zip(self._generators, self._seeds, strict=True)
        with self._state(), attributes_of_each((one, {"next": _replaying(seeds)}) for one, seeds in pairs):
            yield

    def _forward(self) -> Iterator[None]:
        self._seeds = [[] for _ in self._generators]
        graph = tf.compat.v1.get_default_graph()
        num_operations, num_losses = len(graph.get_operations()), self._num_losses()
        pairs = zip(self._generators, self._seeds, strict=True)
        with attributes_of_each((one, {"next": _noting(one, seeds)}) for one, seeds in pairs):
            yield
        if self._num_losses() > num_losses:
            raise self._refusal("adds a loss")
        self._check_operations(graph.get_operations()[num_operations:])

    def _num_losses(self) -> int:
        return sum(len(private_api.losses_added_by(layer)) for layer in self._layers)

    def _check_operations(self, operations: list[Any]) -> None:
        """Refuses what happens once more, or otherwise, in a recomputation."""
        assigned = sum(operation.type in _ASSIGN for operation in operations)
        if assigned > sum(map(len, self._seeds or [])):
            raise self._refusal("changes a variable, or draws random numbers from a seed generator that is not its own")
        for operation in operations:
            if operation.type not in (*_ASSIGN, *_HARMLESS) and operation.op_def.is_stateful:
                raise self._refusal(f"runs the stateful operation {operation.type}")

    def _refusal(self, what: str) -> PlanError:
        return PlanError(
            f"Layer {self._block.name!r} ({type(self._block).__name__}) cannot be recomputed in the backward pass: it "
            f"{what}. {_HINT}"
        )


def _noting(generator: keras.random.SeedGenerator, seeds: list[Any]) -> Callable[..., Any]:
    def next_seed(ordered: bool = True) -> Any:
        seeds.append(type(generator).next(generator, ordered=ordered))
        return seeds[-1]

    return next_seed


def _replaying(seeds: list[Any]) -> Callable[..., Any]:
    rest = iter(seeds)
    return lambda ordered=True: next(rest)


def recomputed(function: Callable[..., Any], inputs: Sequence[tf.Tensor]) -> Any:
    """Calls a function that runs once more for its gradient: only its inputs are stored for the backward pass.

    Gradients with respect to the inputs and the variables that the function reads are those of a plain call: None where
    there is none, and `tf.IndexedSlices` for rows of a variable.

    Args:
        function: takes the inputs and returns a tensor or a nest of tensors and Nones; the second run must repeat the
            first one.

    Returns:
        What the function returns, with Keras's masks.

    Example:
        >>> x, table = tf.constant([2.0]), tf.Variable([[1.0], [3.0]])
        >>> with tf.GradientTape() as tape:
        ...     y = recomputed(lambda x: x * tf.gather(table, [1]), [x])
        >>> tape.gradient(y, table).indices.numpy().tolist()
        [1]
    """
    returned: list[Any] = []

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        with without_recording() if tf.executing_eagerly() else contextlib.nullcontext():
            returned.append(function(*tensors))

        def gradients(*upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            with tf.GradientTape() as tape:
                late = _after(upstream[0], tensors)
                tape.watch([tensor for tensor in late if tensor.dtype.is_floating])
                again = _tensors(function(*late))
            pairs = [pair for pair in zip(again, upstream, strict=True) if pair[0].dtype.is_floating]
            targets, given = [target for target, _ in pairs], [gradient for _, gradient in pairs]
            found = tape.gradient(targets, [*late, *variables], output_gradients=given)
            of_inputs = [None if one is None else tf.convert_to_tensor(one) for one in found[: len(late)]]
            return (of_inputs, found[len(late) :]) if variables else of_inputs

        return _tensors(returned[0]), gradients

    tensors = iter(run(*inputs))
    leaves = [None if leaf is None else private_api.like(leaf, next(tensors)) for leaf in tf.nest.flatten(returned[0])]
    return tf.nest.pack_sequence_as(returned[0], leaves)


def _tensors(outputs: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(outputs) if leaf is not None]


def _after(upstream: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same values, which depend on `upstream`: compilers neither compute them earlier nor reuse the first run's."""
    first = tf.reshape(upstream, [-1])[:1]
    never = tf.reduce_any(tf.math.is_nan(first) & tf.math.is_inf(first))
    is_number = [tensor.dtype.is_floating or tensor.dtype.is_integer for tensor in tensors]
    return [
        tensor + tf.cast(never, tensor.dtype) if number else tensor
        for tensor, number in zip(tensors, is_number, strict=True)
    ]


def rematerialize(block: keras.Model) -> keras.Model:
    """Recomputes a block's activations in the backward pass: saves memory at the cost of a second forward pass.

    Gradients, weights and masks are unchanged. `keras.remat` alone would update BatchNormalization's moving statistics
    twice in each step, drop masks, and give other gradients for embeddings and for weights that have none. The block is
    saved as an ordinary model.

    Args:
        block: a functional or sequential model with one input, used as a layer of a larger one.

    Returns:
        The same block.

    Raises:
        WorkloadError: if a layer has other state, such as Dropout's seed, which recomputing would change.

    Example:
        >>> block = rematerialize(keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu")]))
        >>> model = keras.Sequential([keras.Input((4,)), block, keras.layers.Dense(1)])
    """
    normalizations = [layer for layer in block.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in block.layers:
        state = _state(layer)
        if layer not in normalizations and state:
            raise WorkloadError(
                f"Layer {layer.name!r} ({type(layer).__name__}) cannot be recomputed: it keeps a state "
                f"({state[0].path}). Leave it out of the block."
            )
    call = block.call

    def rematerialized_call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training:
            return call(inputs, training=training, mask=mask)
        num_runs = 0

        def compute(*leaves: Any) -> Any:
            nonlocal num_runs
            num_runs += 1
            values = keras.tree.pack_sequence_as(inputs, leaves)
            with kept_statistics(normalizations) if num_runs > 1 else contextlib.nullcontext():
                return call(values, training=True, mask=mask)

        return recomputed(compute, keras.tree.flatten(inputs))

    block.call = rematerialized_call
    return block


def _state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The variables that a layer changes when it is called, unlike the weights of a frozen one."""
    weights = [one for inner in private_api.all_layers(layer) for one in private_api.weights_made_trainable(inner)]
    return [variable for variable in layer.non_trainable_variables if all(variable is not one for one in weights)]


@contextlib.contextmanager
def kept_statistics(normalizations: list[keras.layers.BatchNormalization]) -> Iterator[None]:
    """Restores moving statistics afterwards, without changing the layers, which other replicas use too."""
    variables = [variable for layer in normalizations for variable in _state(layer)]
    before = [keras.ops.copy(variable) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
