"""The optimizer step of several replicas: sums the gradients, then updates each replica as one device would.

Keras's optimizer code runs once per local replica, on that replica's variables and the summed gradients, as if there
were no strategy. Clipping, the finite check of a loss scale, weight decay, EMA and the optimizer's own conditions
therefore act on the gradient of the global batch, and all replicas make the same update.

`GradientUpdate` sums with `all_reduce`, between the replicas' backward passes and updates; `UpdateInStep`, for TPUs,
inside of each replica's step.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api
from tfaccel.training.private.private_tensorflow import update_context
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.global_batch import current_share, gradient_weight
from tfaccel.training.steps.gradients import (
    CombineSlices,
    apply_as_class,
    applying_pairs,
    check_updated,
    densify,
    each_row_once,
    have_equal_indices,
    merged_slices,
    same_numbers_on_all,
    scaled,
)
from tfaccel.training.steps.left_out import bad_gradients
from tfaccel.training.steps.loss_scaling import (
    count_overflows,
    get_gradient_scale,
    has_loss_scale,
    weighted_scale_loss,
    with_overflows,
)
from tfaccel.training.steps.model_parts import has_own_train_step, inner_optimizer, unlisted_variables
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.placed_slots import HostUpdate, PlacedSlots
from tfaccel.training.steps.python_numbers import numbers_kept
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slots import HOST, REPLICATED
from tfaccel.training.steps.tracing import TraceAgain, is_same_on_all_replicas

SAME_ROWS = "same rows"  # those of all replicas have the same indices
EACH_ROW_ONCE = "each row once"  # one device has one slice for each row, such as of a dense layer's sparse inputs
# By optimizer and the ids of variables, what has turned out to make their `IndexedSlices` those of one device.
_rows: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, dict[int, str]] = weakref.WeakKeyDictionary()
_plain: list[bool] = []  # one for each `plain_descent` block


class GradientUpdate:
    """Sums gradients over the replicas and applies them on each.

    Args:
        optimizer: a built Keras optimizer; with `gradient_accumulation_steps`, gradients are reduced once per update.
        combine_slices: what to do with `IndexedSlices` first, such as `densify`; None to leave them to Keras.
        optimizer_state: where slots are: "replicated", "sharded" or "host"; see `slots`.
        placed: a context, while tracing, that decides on which of a replica's devices gradients and weights are used.

    Attributes:
        saw_sparse_gradients: whether the gradients of a traced step include `IndexedSlices`.
        own_rows: the variables whose `IndexedSlices` are taken to be each replica's own, by id.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        replicas: Replicas,
        *,
        jit_compile: bool = False,
        combine_slices: CombineSlices | None = None,
        pack_bytes: int = 0,
        optimizer_state: str = REPLICATED,
        placed: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.optimizer = optimizer
        self.replicas = replicas
        self.jit_compile = jit_compile
        self.combine_slices = combine_slices
        self.placed = placed
        self.saw_sparse_gradients = False
        self._same_rows: set[int] = set()
        self.own_rows: dict[int, keras.Variable] = {}
        self._num_contributors: Any = replicas.num_replicas
        self._inner = inner_optimizer(optimizer)
        self._scales_loss = has_loss_scale(optimizer)
        self._slots = PlacedSlots(optimizer, replicas, optimizer_state, pack_bytes=pack_bytes)
        self._host = HostUpdate(optimizer, replicas) if optimizer_state == HOST else None

    def build(self, variables: list[keras.Variable]) -> None:
        """Builds the optimizer outside the graph being traced, unless it is built, and moves its slots."""
        build_optimizer(self.optimizer, variables, self.replicas.strategy)
        self._slots.place()

    @property
    def accumulation_steps(self) -> int:
        return self._inner.gradient_accumulation_steps or 1

    def captured(self, *, leaves_out: bool) -> contextlib.AbstractContextManager[None]:
        """While tracing: the loss is weighted by the replica's rows, and its `Share` keeps the gradients, unapplied."""

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            del trainable_variables
            share = current_share()
            if share is not None:
                share.gradients = list(gradients)

        scale_loss = weighted_scale_loss(self.optimizer, notes_bad=leaves_out)
        attributes = {"scale_loss": scale_loss, "apply": apply, "apply_gradients": applying_pairs(apply)}
        return instance_attributes(self.optimizer, attributes)

    def in_step(self, model: keras.Model, *, leaves_out: bool) -> contextlib.AbstractContextManager[None]:
        """While tracing a custom step: it weights, sums and applies the gradients on every replica."""

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            share = current_share()
            weight = 1.0 if share is None else share.row_weight
            weighted = [None if g is None else scaled(g, weight) for g in gradients]
            variables = list(trainable_variables or model.trainable_variables)
            present = [g is not None for g in weighted]
            self.note_same_rows(weighted, variables, None if share is None else share.data)
            if share is not None and leaves_out:
                share.bad.append(bad_gradients(weighted, self.optimizer))

            def merge(_: tf.distribute.Strategy, kept: Any, overflows: Any) -> None:
                self.build(variables)
                kept = iter(kept)
                self.apply([next(kept) if p else None for p in present], variables, overflows)

            tf.distribute.get_replica_context().merge_call(
                merge, args=([g for g in weighted if g is not None], count_overflows(weighted))
            )

        apply = tf.autograph.experimental.do_not_convert(apply)
        return instance_attributes(self.optimizer, {"apply": apply, "apply_gradients": applying_pairs(apply)})

    def note_same_rows(self, gradients: list[Any], variables: list[keras.Variable], data: Any) -> None:
        """While tracing one replica: records the variables whose `IndexedSlices` have the same indices on all replicas.

        An example is a position embedding: its indices do not depend on the batch, so one device has one slice per
        position, to which all examples contribute. A token embedding has one slice per token.
        """
        for gradient, variable in zip(gradients, variables, strict=True):
            if not isinstance(gradient, tf.IndexedSlices):
                continue
            known = _rows.get(self.optimizer, {}).get(id(variable))
            if known == SAME_ROWS or is_same_on_all_replicas(gradient.indices, data):
                self._same_rows.add(id(variable))
            else:
                self.own_rows[id(variable)] = variable

    def apply(
        self,
        gradients: list[Any],
        variables: list[keras.Variable],
        overflows: Any = None,
        *,
        num_contributors: Any = None,
    ) -> None:
        """Calls `optimizer.apply` on every replica. Call it in the strategy's cross-replica context.

        Args:
            gradients: one per-replica value for each variable (None if it has no gradient); their sum over the replicas
                is the gradient of the global batch.
            overflows: per-replica count of non-finite gradients; required for accumulation with a loss scale.
            num_contributors: number of replicas whose `IndexedSlices` have slices; None for all.
        """
        if self.replicas.num_replicas > 1:
            check_updated(variables, self.replicas.num_replicas)
        private_api.check_gradients(self._inner, gradients, variables)
        self._num_contributors = self.replicas.num_replicas if num_contributors is None else num_contributors
        present = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        kept, kept_variables = [g for g, _ in present], [v for _, v in present]
        if _plain:
            shared = [
                not isinstance(private_api.tf_variable(v), tf.distribute.DistributedValues) for v in kept_variables
            ]

            def once(values: list[Any], variables: list[keras.Variable]) -> None:
                """A variable that all replicas share, such as a table on the host, moves on the first one only."""
                mine = [not (is_shared and self.replicas.current_local) for is_shared in shared]
                descend(itertools.compress(values, mine), itertools.compress(variables, mine))

            self.on_each_replica(once, all_reduce(self.replicas, kept), kept_variables)
            return
        first = self.replicas.local_results(kept)[0]
        self.saw_sparse_gradients |= any(isinstance(g, tf.IndexedSlices) for g in first)
        if self.accumulation_steps == 1:
            self._apply_sum(kept, kept_variables)
            return
        counter = self.replicas.components([private_api.raw_iterations(self._inner)], 0)[0]
        last = tf.equal((counter + 1) % self.accumulation_steps, 0)
        tf.cond(
            last,
            lambda: self.apply_accumulated(kept, kept_variables),
            lambda: self._accumulate(kept, kept_variables, overflows),
        )

    def _apply_sum(self, gradients: list[Any], variables: list[keras.Variable]) -> None:
        summed = self._slots.sums(gradients, variables)
        same = [id(variable) in self._same_rows for variable in variables]
        if tf.executing_eagerly():  # no graph shows what the indices depend on
            same = [have_equal_indices(parts) for parts in zip(*self.replicas.local_results(gradients), strict=True)]
        num = self._num_contributors
        known = _rows.get(self.optimizer, {})
        once = [known.get(id(variable)) == EACH_ROW_ONCE for variable in variables]

        def apply(values: list[Any], variables: list[keras.Variable]) -> None:
            pairs = zip(values, same, strict=True)
            values = [merged_slices(value, num) if merge else value for value, merge in pairs]
            values = [each_row_once(value) if is_once else value for value, is_once in zip(values, once, strict=True)]
            self._keras_apply(values, variables)

        self._update(apply, summed, variables)

    def _accumulate(self, gradients: list[Any], variables: list[keras.Variable], overflows: Any) -> None:
        """Adds to each replica's accumulators; only the overflow count of a loss scale is reduced."""
        if not self._scales_loss:
            self.on_each_replica(self._keras_apply, gradients, variables)
            self._slots.give_weights([], gradients)
            return
        total = all_reduce(self.replicas, [overflows])

        def apply(values: list[Any], variables: list[keras.Variable]) -> None:
            *gradients, count = values
            self._keras_apply(with_overflows(gradients, count), variables)

        self.on_each_replica(apply, [*gradients, *total], variables)
        self._slots.give_weights([], gradients)

    def apply_accumulated(self, gradients: list[Any], variables: list[keras.Variable]) -> None:
        """Last batch of an update: sums what the replicas accumulated and its gradients in one reduction."""

        def with_accumulated(gradients: list[Any]) -> list[tf.Tensor]:
            scale = get_gradient_scale(self.optimizer)
            with self.placed():
                return [
                    tf.convert_to_tensor(g) + tf.cast(scale, g.dtype) * a.value
                    for g, a in zip(gradients, self._accumulators(variables), strict=True)
                ]

        totals = self.replicas.strategy.run(with_accumulated, args=(gradients,))
        summed = self._slots.sums(list(totals), variables)
        if self._host is not None:
            self._apply_accumulated_on_host(summed, variables)
            return

        def apply(values: list[Any], variables: list[keras.Variable]) -> None:
            accumulators = self._accumulators(variables)
            before = [tf.identity(a.value) for a in accumulators]
            counter = private_api.raw_iterations(self._inner)
            applied = tf.identity(counter.value)
            for accumulator in accumulators:
                accumulator.assign(tf.zeros_like(accumulator.value))
            self._keras_apply(values, variables)
            if self._scales_loss:  # a skipped step keeps what was accumulated
                skipped = tf.equal(applied, counter.value)
                for accumulator, old in zip(accumulators, before, strict=True):
                    accumulator.assign(tf.where(skipped, old, accumulator.value))

        self._update(apply, summed, variables)

    def _apply_accumulated_on_host(self, summed: list[Any], variables: list[keras.Variable]) -> None:
        """The same with slots on the host, while the accumulators are on the replicas' devices."""
        counter = self.replicas.components([private_api.raw_iterations(self._inner)], 0)[0]
        applied = tf.identity(counter)
        self._update(self._keras_apply, summed, variables)
        skipped = tf.equal(applied, counter.read_value())

        def reset(values: list[Any], variables: list[keras.Variable]) -> None:
            for accumulator in self._accumulators(variables):
                accumulator.assign(tf.where(values[0], accumulator.value, tf.zeros_like(accumulator.value)))

        self.on_each_replica(reset, [skipped], variables)

    def _update(
        self,
        apply: Callable[[list[Any], list[keras.Variable]], None],
        summed: list[Any],
        variables: list[keras.Variable],
    ) -> None:
        """Calls `apply` with summed gradients where the slots are."""
        if self._host is None:
            self.on_each_replica(apply, summed, variables)
            self._slots.give_weights(variables, summed)
        else:
            local = self.replicas.local_results(summed)[0]
            self._host.run(local, lambda values: apply(values, variables), jit_compile=self.jit_compile)

    def _accumulators(self, variables: list[keras.Variable]) -> list[keras.Variable]:
        every = private_api.gradient_accumulators(self._inner)
        found = [every[private_api.variable_index(self._inner, v)] for v in variables]
        return [accumulator for accumulator in found if accumulator is not None]

    def on_each_replica(
        self,
        apply: Callable[[list[Any], list[keras.Variable]], None],
        values: list[Any],
        variables: list[keras.Variable],
    ) -> None:
        """Calls a function with each replica's values, on its device, where the variables are its own."""
        own = (*self.optimizer.variables, *unlisted_variables(self.optimizer))
        swapped = list({id(v): v for v in (*variables, *own)}.values())
        for replica, local in enumerate(self.replicas.local_results(values)):

            def update(local: list[Any], replica: int = replica) -> None:
                with (
                    self.replicas.local(swapped, replica),
                    private_api.single_device_optimizer(self.optimizer),
                    self._slots.owned_by(replica),
                    same_numbers_on_all(self.replicas.num_replicas),
                    update_context(replica),
                    numbers_kept() if replica + 1 < len(self.replicas.devices) else contextlib.nullcontext(),
                ):
                    apply(list(local), variables)

            if self.jit_compile:
                update = graph_function(update, jit_compile=True)
            with tf.device(self.replicas.devices[replica]):
                update(local)

    def _keras_apply(self, gradients: list[Any], variables: list[keras.Variable]) -> None:
        if self.combine_slices is not None:
            gradients = self.combine_slices(gradients)
        with private_api.one_learning_rate(self.optimizer), self.placed():
            apply_as_class(self.optimizer, gradients, variables)


class UpdateInStep:
    """Sums gradients inside the replicas' steps; each then updates as one device does, by Keras's own code.

    Args:
        optimizer: a Keras optimizer without a loss scale.

    Attributes:
        saw_sparse_gradients, own_rows: as of `GradientUpdate`; gradients are dense.
    """

    saw_sparse_gradients = False

    def __init__(self, optimizer: keras.optimizers.Optimizer, replicas: Replicas) -> None:
        self.optimizer, self.replicas = optimizer, replicas
        self.own_rows: dict[int, keras.Variable] = {}
        self._thread = threading.local()  # `updates`: whether a replica's thread traces the update

    @contextlib.contextmanager
    def in_step(self, model: keras.Model, *, leaves_out: bool) -> Iterator[None]:
        """While tracing a step: it sums and applies the gradients on every replica."""
        del leaves_out  # such steps leave out nothing
        optimizer, num_replicas = self.optimizer, self.replicas.num_replicas

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            share, context = current_share(), tf.distribute.get_replica_context()
            variables = list(trainable_variables or model.trainable_variables)
            if num_replicas > 1:
                check_updated(variables, num_replicas)
            if not optimizer.built:
                context.merge_call(lambda strategy: build_optimizer(optimizer, variables, strategy))
            private_api.check_gradients(optimizer, list(gradients), variables)
            pairs = [(g, v) for g, v in zip(densify(list(gradients)), variables, strict=True) if g is not None]
            weighted = share is not None and share.weighs_gradients
            own = [scaled(gradient, gradient_weight()) if weighted else gradient for gradient, _ in pairs]
            summed = context.all_reduce(tf.distribute.ReduceOp.SUM, own) if num_replicas > 1 else own
            self._thread.updates = True
            try:
                apply_as_class(optimizer, list(summed), [v for _, v in pairs])
            finally:
                self._thread.updates = False

        attributes: dict[str, Any] = {"apply": apply, "apply_gradients": applying_pairs(apply)}
        if not has_own_train_step(model):
            attributes["scale_loss"] = weighted_scale_loss(optimizer)
        updates = partial(getattr, self._thread, "updates", False)
        with (
            private_api.single_device_optimizer(optimizer),
            instance_attributes(optimizer, attributes),
            same_numbers_on_all(num_replicas, when=updates),
        ):
            yield


def take_rows_as(optimizer: keras.optimizers.Optimizer, variable: keras.Variable, rows: str | None) -> None:
    """Decides for later traces what the `IndexedSlices` of a variable are: SAME_ROWS, EACH_ROW_ONCE, or None."""
    known = _rows.setdefault(optimizer, {})
    known.pop(id(variable), None)
    if rows is not None:
        known[id(variable)] = rows


@contextlib.contextmanager
def plain_descent() -> Iterator[None]:
    """While tracing: every update subtracts the gradients from the weights, and leaves the optimizer as it is."""
    _plain.append(True)
    try:
        yield
    finally:
        _plain.pop()


def is_plain() -> bool:
    """Whether a `plain_descent` block is active."""
    return bool(_plain)


def descend(gradients: Any, variables: Any) -> None:
    """Subtracts gradients from weights."""
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None:
            variable.assign_sub(tf.cast(tf.convert_to_tensor(gradient), variable.dtype))


def build_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable], strategy: tf.distribute.Strategy
) -> None:
    """Builds an optimizer outside the graph being traced, under the strategy of its model.

    Raises TraceAgain for a `LossScaleOptimizer`: until it is built, it scales the loss by its initial scale.
    """
    if not optimizer.built:
        with private_api.outside_of_trace(), strategy.scope():
            optimizer.build(variables)
        if has_loss_scale(optimizer) and tf.inside_function():
            raise TraceAgain
