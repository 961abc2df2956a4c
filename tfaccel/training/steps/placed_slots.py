"""An optimizer whose slots may each be on one replica: what is summed, who updates, and what the others get."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_slots
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.loss_scaling import has_loss_scale
from tfaccel.training.steps.model_parts import stepping_optimizers
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.owner_sums import can_sum_at_owners, sums_at_owners
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slot_places import SHARDED, SlotPlaces, owners_of_weights, place_slots
from tfaccel.training.steps.weight_exchange import give_weights


class PlacedSlots:
    """The slots of one optimizer.

    Args:
        optimizer, replicas: of a model.
        how: where they are: "replicated", "sharded" or "host".
        pack_bytes: see `all_reduce`.
    """

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

    @contextlib.contextmanager
    def owned_by(self, replica: int) -> Iterator[None]:
        """While tracing the update of a local replica: it updates the weights that it owns."""
        places, number = self._places, self._replicas.first_replica + replica
        with contextlib.ExitStack() as stack:
            for one in [] if places is None else stepping_optimizers(self._optimizer):
                owned = [owner == number for owner in places.owners[id(one)]] if places else []
                stack.enter_context(instance_attributes(one, private_slots.updating_only(one, owned.__getitem__)))
            yield

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
