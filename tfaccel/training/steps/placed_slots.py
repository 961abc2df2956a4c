"""Updates with slots that are not on every replica: what is summed, who updates, and what the others get.

The owner of a weight gives its new value to the other replicas: by copies within a process, by broadcasts to others.
Between workers, weights travel in pieces of some 4 MB, several at a time: larger messages are slower, and take memory.
Small weights of one owner share a piece; a large one is divided by rows.

Two workers sum gradients where they are needed: each on the worker that updates the weight. An all-reduce gives both
workers all sums, and moves twice as many bytes. A sum of two is the same to the last bit in either order, so that
weights are those of the all-reduce.

With slots on the host, gradients travel there, and new weights back. The host's copies of the weights are read from the
device before each update, so that a weight that something else has changed is never stale.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api, private_slots, private_workers
from tfaccel.training.private.private_api import tf_variable
from tfaccel.training.private.private_tensorflow import SCRATCH
from tfaccel.training.private.private_workers import PIECE_BYTES
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.gradients import same_numbers_on_all
from tfaccel.training.steps.loss_scaling import has_loss_scale
from tfaccel.training.steps.model_parts import accumulators_by_replica, stepping_optimizers, unlisted_variables
from tfaccel.training.steps.overrides import attributes_of_each
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slots import (
    SHARDED,
    SlotPlaces,
    get_places,
    host_device,
    num_bytes,
    owners_of_weights,
    place_slots,
)

MAX_PIECES = 4  # on their way at a time


class PlacedSlots:
    """The slots of one optimizer."""

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, replicas: Replicas, how: str, *, pack_bytes: int = 0
    ) -> None:
        self._optimizer, self._replicas, self._how, self._pack_bytes = optimizer, replicas, how, pack_bytes
        self._places: SlotPlaces | None = None
        if optimizer.built:
            self.place()

    def place(self) -> None:
        """Moves the slots to their places; the optimizer must be built."""
        self._places = place_slots(self._optimizer, self._replicas, self._how)

    def sums(self, gradients: list[Any], variables: list[keras.Variable]) -> list[Any]:
        """The sums of gradients over all replicas, on each of them, or at least on the one that needs it."""
        if self._places is None or not self._sums_at_owners:
            return all_reduce(self._replicas, gradients, pack_bytes=self._pack_bytes)
        [local] = self._replicas.local_results(gradients)
        dense = [i for i, gradient in enumerate(local) if not isinstance(gradient, tf.IndexedSlices)]
        sparse = [i for i in range(len(local)) if i not in dense]
        owners = owners_of_weights(self._optimizer, self._places)
        found = sums_at_owners([local[i] for i in dense], [variables[i] for i in dense], owners, self._replicas)
        found += all_reduce(self._replicas, [gradients[i] for i in sparse]) if sparse else []
        by_place = dict(zip([*dense, *sparse], found, strict=True))
        return [by_place[i] for i in range(len(local))]

    @property
    def _sums_at_owners(self) -> bool:
        """Whether no replica needs the sums of weights that it does not own, as for a norm over all of them."""
        needs_all = has_loss_scale(self._optimizer) or any(
            one.global_clipnorm for one in stepping_optimizers(self._optimizer)
        )
        return self._how == SHARDED and not needs_all and can_sum_at_owners(self._replicas)

    def owned_by(self, replica: int) -> contextlib.AbstractContextManager[None]:
        """While tracing the update of a local replica: it updates the weights that it owns."""
        places, number = self._places, self._replicas.first_replica + replica
        if places is None:
            return contextlib.nullcontext()
        optimizers = stepping_optimizers(self._optimizer)
        owned = {id(one): [owner == number for owner in places.owners[id(one)]] for one in optimizers}
        return attributes_of_each(
            (one, private_slots.updating_only(one, owned[id(one)].__getitem__)) for one in optimizers
        )

    def give_weights(self, updated: list[keras.Variable], gradients: list[Any]) -> None:
        """Gives the other replicas what the owners of weights have updated, or replaced by moving averages."""
        if self._places is None or self._how != SHARDED:
            return
        averaged = [
            v
            for one in stepping_optimizers(self._optimizer)
            if one.use_ema and one.ema_overwrite_frequency
            for v in private_slots.trained_variables(one)
        ]
        given = list({id(v): v for v in (*updated, *averaged)}.values())
        after = tf.nest.flatten(self._replicas.local_results(gradients)[0], expand_composites=True)
        give_weights(given, owners_of_weights(self._optimizer, self._places), self._replicas, after=after)


@dataclass(frozen=True)
class Piece:
    """What travels in one broadcast: whole weights of one dtype, or rows of one.

    Attributes:
        owner: the replica that sends it.
        variables: the weights.
        rows: first and last row, of a single weight that is divided; None for whole weights.
    """

    owner: int
    variables: tuple[keras.Variable, ...]
    rows: tuple[int, int] | None = None

    def value(self, parts: Sequence[Any]) -> Any:
        """The piece as one tensor, of the owner's components of the weights."""
        if self.rows is not None:
            return parts[0].read_value()[self.rows[0] : self.rows[1]]
        return tf.concat([tf.reshape(part.read_value(), [-1]) for part in parts], 0)

    @property
    def shape(self) -> list[int]:
        """The shape of that tensor."""
        if self.rows is not None:
            return [self.rows[1] - self.rows[0], *self.variables[0].shape[1:]]
        return [sum(int(math.prod(variable.shape)) for variable in self.variables)]

    def assign(self, parts: Sequence[Any], value: Any) -> Any:
        """Assigns the received tensor to the components of another replica; returns an operation."""
        if self.rows is not None:
            done = parts[0][self.rows[0] : self.rows[1]].assign(value)
            with tf.control_dependencies([done]):  # or each later step would copy the weight to read it
                return tf.raw_ops.DisableCopyOnRead(resource=parts[0].handle)
        split = tf.split(value, [int(math.prod(part.shape)) for part in parts])
        done = [
            part.assign(tf.reshape(one, part.shape), read_value=False) for part, one in zip(parts, split, strict=True)
        ]
        return tf.group(*done)


def give_weights(
    variables: Sequence[keras.Variable], owners: Mapping[int, int], replicas: Replicas, *, after: Sequence[Any] = ()
) -> None:
    """Gives each weight of its owner to all other replicas.

    Args:
        variables: the weights, in the same order on all workers.
        owners: the replica that has each weight's new value, by the weight's id.
        after: tensors that must be there before weights are received.
    """
    if replicas.num_workers == 1:
        for variable in variables:
            _copy(variable, owners[id(variable)], replicas)
    elif tf.executing_eagerly():  # the collectives of several devices must run at the same time
        graph_function(lambda: _broadcast(variables, owners, replicas, ()))()
    else:
        _broadcast(variables, owners, replicas, after)


def finalize_weights(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], replicas: Replicas) -> None:
    """`optimizer.finalize_variable_values`, which overwrites weights with their moving averages if there are some."""
    places = get_places(optimizer)
    if places is None or places.how != SHARDED or replicas.num_workers == 1:
        optimizer.finalize_variable_values(variables)
        return
    owners = owners_of_weights(optimizer, places)
    for one in (one for one in stepping_optimizers(optimizer) if one.use_ema):
        weights = private_slots.trained_variables(one)
        for weight, average in zip(weights, private_slots.moving_averages(one), strict=True):
            own = owners[id(weight)] - replicas.first_replica
            if average is not None and 0 <= own < len(replicas.devices):
                replicas.components([weight], own)[0].assign(tf_variable(average))
        give_weights(weights, owners, replicas)


def _copy(variable: keras.Variable, owner: int, replicas: Replicas) -> None:
    parts = replicas.strategy.experimental_local_results(tf_variable(variable))
    with tf.device(replicas.devices[owner]):
        new = parts[owner].read_value()
    for replica, part in enumerate(parts):
        if replica != owner:
            with tf.device(replicas.devices[replica]):
                part.assign(tf.identity(new))


def _broadcast(
    variables: Sequence[keras.Variable], owners: Mapping[int, int], replicas: Replicas, after: Sequence[Any]
) -> None:
    done: list[list[Any]] = [[] for _ in replicas.devices]  # operations of each local replica, in order
    for piece in pieces(variables, owners):
        own = piece.owner - replicas.first_replica
        values: list[Any] = [None] * len(replicas.devices)
        before = [[*after, *ops[-MAX_PIECES : len(ops) - MAX_PIECES + 1]] for ops in done]
        if 0 <= own < len(values):
            with tf.device(replicas.devices[own]), tf.control_dependencies(before[own]):
                values[own] = piece.value(replicas.components(piece.variables, own))
        dtype = tf.as_dtype(piece.variables[0].dtype)
        results = private_workers.broadcast(replicas.strategy, values, piece.shape, dtype, after=before)
        for replica, result in enumerate(results):
            if values[replica] is None:
                with tf.device(replicas.devices[replica]):
                    result = piece.assign(replicas.components(piece.variables, replica), result)
            done[replica].append(result)


def pieces(variables: Sequence[keras.Variable], owners: Mapping[int, int]) -> list[Piece]:
    """The pieces in which weights travel, those of all owners in turn, so that all of them send at the same time."""
    by_owner: dict[int, list[Piece]] = {}
    for variable in variables:
        by_owner.setdefault(owners[id(variable)], [])
    for owner, own in by_owner.items():
        own += _get_pieces([v for v in variables if owners[id(v)] == owner], owner)
    turns = itertools.zip_longest(*by_owner.values())
    return [piece for turn in turns for piece in turn if piece is not None]


def _get_pieces(variables: Sequence[keras.Variable], owner: int) -> Iterator[Piece]:
    small: dict[str, list[keras.Variable]] = {}
    for variable in variables:
        size, num_rows = num_bytes(variable), variable.shape[0] if len(variable.shape) else 1
        if size > PIECE_BYTES and num_rows > 1:
            at_once = max(1, PIECE_BYTES * num_rows // size)
            for first in range(0, num_rows, at_once):
                yield Piece(owner, (variable,), (first, min(num_rows, first + at_once)))
            continue
        pack = small.setdefault(str(variable.dtype), [])
        pack.append(variable)
        if sum(map(num_bytes, pack)) >= PIECE_BYTES:
            yield Piece(owner, tuple(small.pop(str(variable.dtype))))
    for pack in small.values():
        yield Piece(owner, tuple(pack))


class HostUpdate:
    """Runs an optimizer on the host, once in each process."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, replicas: Replicas) -> None:
        self._optimizer, self._replicas = optimizer, replicas
        self._copies: dict[int, tf.Variable] = {}

    def run(self, gradients: list[Any], apply: Callable[[list[Any]], None], *, jit_compile: bool) -> None:
        """Updates the weights of all local replicas.

        Args:
            gradients: the summed gradients of one replica.
            apply: calls the optimizer with gradients on the host.
        """
        with tf.device(host_device(self._replicas)):
            moved = self._moved()
            copies = [self._get_copy(variable) for variable in moved]
            for copy, component in zip(copies, self._replicas.components(moved, 0), strict=True):
                copy.assign(tf.identity(component))

            steppers = {id(one): one for one in (self._optimizer, *stepping_optimizers(self._optimizer))}
            keys = [(one, private_slots.get_keys(one, moved, copies)) for one in steppers.values()]

            def update(gradients: list[Any]) -> None:
                with (
                    private_api.local_variables(moved, copies),
                    private_api.single_device_optimizer(self._optimizer),
                    attributes_of_each(keys),
                    self._without_accumulators(),
                    same_numbers_on_all(self._replicas.num_workers),
                ):
                    apply(gradients)

            run = graph_function(update, jit_compile=True) if jit_compile else update
            run([_on_this_device(gradient) for gradient in gradients])
            new = [copy.read_value() for copy in copies]
        for replica, device in enumerate(self._replicas.devices):
            with tf.device(device or None):
                for component, value in zip(self._replicas.components(moved, replica), new, strict=True):
                    component.assign(tf.identity(value))

    def _moved(self) -> list[keras.Variable]:
        """The weights, and what the optimizer keeps beside slots and accumulated gradients, such as its counter."""
        places = get_places(self._optimizer)
        stay = set() if places is None else set(places.replica_of_slot)
        stay |= {id(one) for one in accumulators_by_replica(self._optimizer)}
        weights = [v for one in stepping_optimizers(self._optimizer) for v in private_slots.trained_variables(one)]
        every = {id(one): one for one in (*weights, *self._optimizer.variables, *unlisted_variables(self._optimizer))}
        return [one for key, one in every.items() if key not in stay]

    def _get_copy(self, variable: keras.Variable) -> tf.Variable:
        if id(variable) not in self._copies:
            value = self._replicas.components([variable], 0)[0]
            with tf.init_scope(), tf.device(host_device(self._replicas)):
                copy = private_slots.plain_variable(tf.identity(value), variable.name)
            setattr(copy, SCRATCH, True)
            self._copies[id(variable)] = copy
        return self._copies[id(variable)]

    def _without_accumulators(self) -> contextlib.AbstractContextManager[None]:
        """The gradients include what was accumulated on the devices, where the accumulators are."""
        optimizers = stepping_optimizers(self._optimizer) if accumulators_by_replica(self._optimizer) else ()
        return attributes_of_each((one, private_slots.accumulating_nothing(one)) for one in optimizers)


def _on_this_device(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.dense_shape
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), None if shape is None else tf.identity(shape)
        )
    return tf.identity(gradient)


def can_sum_at_owners(replicas: Replicas) -> bool:
    """Whether there are two workers with one replica each."""
    return replicas.num_workers == replicas.num_replicas == 2 and not tf.executing_eagerly()


def sums_at_owners(
    gradients: Sequence[Any], variables: Sequence[keras.Variable], owners: Mapping[int, int], replicas: Replicas
) -> list[Any]:
    """The sums over both workers of the gradients of the weights that this worker owns; its own for the others.

    Args:
        gradients: dense gradients of this worker.
        variables: their weights, in the same order on both workers.
        owners: the replica that owns each weight, by the weight's id.
    """
    sums = {id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
    done: list[Any] = []
    with tf.device(replicas.devices[0]):
        for piece in pieces(variables, owners):
            mine = piece.owner == replicas.first_replica
            if mine and piece.rows is not None and piece.rows[0] == 0:  # a copy: others may read the gradient
                sums[id(piece.variables[0])] = tf.raw_ops.DeepCopy(x=sums[id(piece.variables[0])])
            own = [sums[id(variable)] for variable in piece.variables]
            before = [*done[-MAX_PIECES : len(done) - MAX_PIECES + 1], *(own if mine else ())]
            with tf.control_dependencies(before):
                value = None if mine else _cut(piece, own)
            [result] = private_workers.broadcast(replicas.strategy, [value], piece.shape, own[0].dtype, after=[before])
            if mine:
                added = _added(piece, own, result)
                sums.update(zip(map(id, piece.variables), added, strict=True))
            done.append(added[0] if mine else result)
    return [sums[id(variable)] for variable in variables]


def _cut(piece: Piece, gradients: list[Any]) -> tf.Tensor:
    if piece.rows is not None:
        return gradients[0][piece.rows[0] : piece.rows[1]]
    return tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)


def _added(piece: Piece, gradients: list[Any], received: tf.Tensor) -> list[tf.Tensor]:
    """Gradients plus a received piece: new tensors, but rows are added in place, which takes no further memory."""
    if piece.rows is not None:
        return [tf.raw_ops.InplaceAdd(x=gradients[0], i=tf.range(*piece.rows), v=received)]
    parts = tf.split(received, [int(math.prod(one.shape)) for one in piece.variables])
    return [gradient + tf.reshape(part, gradient.shape) for gradient, part in zip(gradients, parts, strict=True)]
