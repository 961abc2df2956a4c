"""The micro-batches of one optimizer step, side by side: while a stage works on one, the next stage has the one before.

With Keras's accumulation, each micro-batch ends with a condition that may update the weights, so that nothing of the
next one can begin. Here the forward and backward passes of all micro-batches of an optimizer step stand in one graph,
without an order between stages that work on different ones: TensorFlow's executor overlaps them. Gradients are added to
Keras's accumulators in their order, and those of the last micro-batch are applied by Keras's own update.

That is right as long as nothing happens between two micro-batches. A loss that is not finite, a gradient that overflows
or a loss scale that is about to grow does; then the state from before is restored, and the micro-batches run one after
another, as they do where an epoch ends within an optimizer step.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import GraphBatches
from tfaccel.training.private import private_api
from tfaccel.training.stages.staged_model import StagedModel
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.global_batch import global_losses
from tfaccel.training.steps.gradient_update import GradientUpdate
from tfaccel.training.steps.gradients import is_bad
from tfaccel.training.steps.left_out import StateBefore, only_if, variables_to_keep
from tfaccel.training.steps.loss_scaling import count_overflows
from tfaccel.training.steps.model_parts import accumulators_by_replica, inner_optimizer
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.several_replicas import SeveralReplicas

logger = logging.getLogger("tfaccel")

IsFinite = Callable[[], tf.Tensor] | None

Window = Callable[[Any, tf.Tensor], tuple[tf.Tensor, Any, tf.Tensor, Any]]


class MicroBatches(ABC):
    """What the micro-batches of an optimizer step have in common, whatever the number of replicas.

    Attributes:
        number: micro-batches of an optimizer step that run together; 1 if Keras changes weights or their averages after
            each of them.
    """

    def __init__(self, model: keras.Model, replicas: Replicas, *, leaves_out: bool) -> None:
        self.model, self.replicas, self.leaves_out = model, replicas, leaves_out
        self.optimizer: Any = model.optimizer
        self.inner: Any = inner_optimizer(model.optimizer)
        self.number = int(self.inner.gradient_accumulation_steps or 1)
        between = _what_changes_weights(model, self.inner)
        if self.number > 1 and between:
            logger.warning(
                "The stages do not overlap: Keras's optimizers act after each micro-batch because of %s.", between
            )
            self.number = 1

    @property
    def scales_loss(self) -> bool:
        """Whether the optimizer has a loss scale."""
        return self.inner is not self.optimizer

    @abstractmethod
    def train(self, batches: GraphBatches, several: Sequence[Any], *, is_finite: IsFinite) -> tf.Tensor:
        """Trains on the micro-batches of an optimizer step; returns False if that changed nothing."""

    def num_left(self) -> tf.Tensor:
        """Micro-batches until the optimizer step ends."""
        counter = self._first(private_api.raw_iterations(self.inner))
        return self.number - tf.cast(counter % self.number, tf.int32)

    def may_run_together(self) -> tf.Tensor:
        """Whether the loss scale stays as it is during the next optimizer step, if no gradient overflows."""
        if not self.scales_loss:
            return tf.constant(True)
        counter = self._first(self.optimizer.step_counter)
        return counter + self.number < self.optimizer.dynamic_growth_steps

    def begin(self, *, watches: bool) -> StateBefore:
        """Keeps what forward passes change, if that may have to be restored."""
        before = StateBefore()
        if self.checks(watches):
            before.keep(self.replicas.copies(variables_to_keep(self.model)))
        return before

    def checks(self, watches: bool) -> bool:
        """Whether anything may have to be restored."""
        return self.leaves_out or self.scales_loss or watches

    def overflows(self, gradients: Sequence[Any]) -> tf.Tensor:
        """Above 0 if gradients are not finite, where that matters."""
        return count_overflows(list(gradients)) if self.leaves_out or self.scales_loss else tf.constant(0.0)

    def accumulate(self, gradients: Sequence[Any], variables: Sequence[keras.Variable]) -> None:
        """Adds the gradients of a micro-batch to the accumulators of one replica, as Keras does, but counts nothing."""
        accumulators = private_api.gradient_accumulators(self.inner)
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None:
                if self.scales_loss:
                    gradient = keras.ops.divide(gradient, self.optimizer.dynamic_scale)
                accumulator: Any = accumulators[private_api.variable_index(self.inner, variable)]
                accumulator.assign(accumulator.value + gradient)

    def count(self) -> None:
        """Counts all micro-batches but the last, which the update of one replica counts."""
        for counter in self._counters():
            counter.assign_add(self.number - 1)

    def clear_unless(self, fine: tf.Tensor) -> None:
        """Sets the accumulators of all local replicas to zero if the gradients were not applied."""
        cleared = accumulators_by_replica(self.optimizer)

        def clear() -> None:
            for component in self.replicas.copies(cleared):
                component.assign(tf.zeros_like(component))

        only_if(~fine, clear)

    def end(
        self, apply: Callable[[], None], bad: Sequence[tf.Tensor], before: StateBefore, is_finite: IsFinite
    ) -> tf.Tensor:
        """Applies the gradients, unless something is not as expected; then puts back the state from before.

        Args:
            bad: numbers, above 0 where a loss or gradients are not finite.
            is_finite: whether the loss is finite; None if that is not watched.

        Returns:
            Whether the gradients were applied.
        """
        if not self.checks(is_finite is not None):
            apply()
            return tf.constant(True)
        fine = tf.equal(tf.add_n([tf.constant(0.0), *bad]), 0.0)
        fine = fine & is_finite() if is_finite else fine
        only_if(fine, apply)
        self.clear_unless(fine)
        before.put_back_unless(fine)
        return fine

    def _counters(self) -> list[keras.Variable]:
        counters = [private_api.raw_iterations(self.inner)]
        return [*counters, self.optimizer.step_counter] if self.scales_loss else counters

    def _first(self, variable: keras.Variable) -> tf.Tensor:
        return tf.identity(self.replicas.components([variable], 0)[0])


def _what_changes_weights(model: keras.Model, optimizer: Any) -> str:
    """What an optimizer does after each micro-batch besides accumulating gradients; empty if nothing."""
    constrained = [one.path for one in model.trainable_variables if one.constraint is not None]
    if constrained:
        return f"the constraint of {constrained[0]}"
    return "use_ema" if optimizer.use_ema else ""


def window_of_micro_batches(
    steps: Any, together: MicroBatches, batches: GraphBatches, *, is_finite: IsFinite
) -> Window:
    """A window whose steps run the micro-batches of an optimizer step together where they can.

    Args:
        together: runs several. If it leaves out batches, a window that watches the loss ends at the first one.
        is_finite: whether the loss is finite; a window ends where it is not. None if that is not watched.

    Returns:
        A function of a graph call's arguments and the number of steps, which returns the number of steps done, the
        loop state, whether the loss is finite, and for each step whether its batch was left out, if any may be.
    """
    leaves_out = together.leaves_out

    def one_by_one(fetched: list[Any], count: tf.Tensor, first: tf.Tensor, bad: Any) -> Any:
        def body(number: tf.Tensor, finite: tf.Tensor, bad: Any) -> Any:
            del finite
            batch = tf.switch_case(number, [lambda one=one: one for one in fetched])
            steps.train(batches, batch)
            if leaves_out:
                kept = steps.finite
                return number + 1, kept if is_finite else tf.constant(True), (bad[0].write(first + number, ~kept),)
            return number + 1, is_finite() if is_finite else tf.constant(True), bad

        start = (tf.constant(0), tf.constant(True), bad)
        return tf.while_loop(lambda number, finite, bad: (number < count) & finite, body, start)

    def optimizer_step(step: tf.Tensor, state: Any, bad: Any, arguments: Any, num_steps: tf.Tensor) -> Any:
        wanted = tf.minimum(together.num_left(), num_steps - step)
        fetched, count, state = _fetched(batches, arguments, state, step, (together.number, wanted))
        whole = tf.equal(count, together.number) & together.may_run_together()
        ran = tf.cond(whole, lambda: together.train(batches, fetched, is_finite=is_finite), lambda: tf.constant(False))
        done, finite, bad = one_by_one(fetched, tf.where(ran, 0, count), step, bad)
        return step + tf.where(ran, together.number, done), state, finite, bad

    def window(arguments: Any, num_steps: tf.Tensor) -> Any:
        bad = (tf.TensorArray(tf.bool, num_steps, element_shape=()),) if leaves_out else ()
        start = (tf.constant(0), batches.start(arguments), tf.constant(True), bad)
        return tf.while_loop(
            lambda step, state, finite, bad: (step < num_steps) & batches.has_next(state) & finite,
            lambda step, state, finite, bad: optimizer_step(step, state, bad, arguments, num_steps),
            start,
        )

    return window


def _fetched(
    batches: GraphBatches, arguments: Any, state: Any, step: tf.Tensor, limits: tuple[int, tf.Tensor]
) -> tuple[list[Any], tf.Tensor, Any]:
    """The next batches: as many as are wanted and there; the rest of the list repeats the first.

    Args:
        limits: the length of the list, and how many are wanted, at least 1.
    """
    first, state = batches.fetch(arguments, state, step)
    fetched, count = [first], tf.constant(1)
    for number in range(1, limits[0]):
        there = (tf.constant(number) < limits[1]) & tf.equal(count, number) & batches.has_next(state)
        batch, state = tf.cond(
            there,
            lambda state=state, number=number: batches.fetch(arguments, state, step + number),
            lambda state=state: (first, state),
        )
        count += tf.cast(there, tf.int32)
        fetched.append(batch)
    return fetched, count, state


class TogetherOnOne(MicroBatches):
    """The micro-batches of one replica in stages."""

    def __init__(self, steps: OneReplica, staged: StagedModel, *, leaves_out: bool) -> None:
        super().__init__(steps.model, steps.replicas, leaves_out=leaves_out)
        self._steps, self._staged = steps, staged

    def train(self, batches: GraphBatches, several: Sequence[Any], *, is_finite: IsFinite) -> tf.Tensor:
        """Trains on the micro-batches of an optimizer step; returns False if that changed nothing."""
        with self._steps.on_device():
            data = [batches.rows(batch) for batch in several]
            ran: tf.Tensor = self._steps.on_replica(lambda: partial(self._run, is_finite=is_finite))(data)
        return ran

    def _run(self, data: Sequence[Any], is_finite: IsFinite) -> tf.Tensor:
        optimizer, watches = self.optimizer, is_finite is not None
        before, bad = self.begin(watches=watches), []
        last: list[tuple[Any, Any]] = []
        update, scale = optimizer.apply, optimizer.scale_loss

        def record(gradients: Any, trainable_variables: Any = None) -> None:
            gradients, variables = list(gradients), list(trainable_variables)
            bad.append(self.overflows(gradients))
            if len(bad_losses) == len(data):
                last.append((gradients, variables))
            else:
                self.accumulate(gradients, variables)

        def scale_loss(loss: Any) -> Any:
            bad_losses.append(is_bad(loss) if self.leaves_out else tf.constant(0.0))
            return scale(loss)

        bad_losses: list[tf.Tensor] = []
        with instance_attributes(optimizer, {"apply": record, "scale_loss": scale_loss}):
            for one in data:
                self.model.train_step(one)

        def apply() -> None:
            self.count()
            update(*last[0])

        with self._staged.on_last():
            return self.end(apply, [*bad, *bad_losses], before, is_finite)


class TogetherOnSeveral(MicroBatches):
    """The micro-batches of several replicas, each in stages on devices of its own: gradients and slots stay there."""

    def __init__(self, steps: SeveralReplicas, *, leaves_out: bool) -> None:
        super().__init__(steps.model, steps.replicas, leaves_out=leaves_out)
        self._steps = steps
        self._update: GradientUpdate = steps.updates["optimizer"]

    def train(self, batches: GraphBatches, several: Sequence[Any], *, is_finite: IsFinite) -> tf.Tensor:
        """Trains on the micro-batches of an optimizer step; returns False if that changed nothing."""
        before, rows = self.begin(watches=is_finite is not None), self._steps.rows
        with self.replicas.strategy.scope(), global_losses(self.model):
            outputs = [
                self._steps.get_gradients(batches, rows.checked(batches, batch), if_empty="borrow") for batch in several
            ]
        with self.replicas.strategy.scope():
            for gradients, *_ in outputs[:-1]:
                self._accumulate(gradients)
            counts = [overflows for _, overflows, _, _ in outputs] if self.scales_loss else []
            counts += [bad for _, _, bad, _ in outputs] if self.leaves_out else []
            sums = all_reduce(self.replicas, counts) if counts else []
            total = [self.replicas.local_results(one)[0] for one in sums]
            return self.end(lambda: self._apply(outputs[-1][0]), total, before, is_finite)

    def _accumulate(self, gradients: list[Any]) -> None:
        """Adds the gradients of a micro-batch to each replica's accumulators."""

        def add(values: list[Any], variables: list[keras.Variable]) -> None:
            with self._update.placed():
                self.accumulate(values, variables)

        self._update.on_each_replica(add, *self._with_gradients(gradients))

    def _apply(self, gradients: list[Any]) -> None:
        """Applies what is accumulated and the gradients of the last micro-batch of an optimizer step."""
        kept, variables = self._with_gradients(gradients)
        self._update.on_each_replica(lambda values, variables: self.count(), [], variables)
        self._update.apply_accumulated(kept, variables)

    def _with_gradients(self, gradients: list[Any]) -> tuple[list[Any], list[keras.Variable]]:
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        kept = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        return [gradient for gradient, _ in kept], [variable for _, variable in kept]


def make_together(staged: StagedModel, steps: Any, *, leaves_out: bool) -> MicroBatches:
    """Runs the micro-batches of a staged model's optimizer steps together."""
    if isinstance(steps, OneReplica):
        return TogetherOnOne(steps, staged, leaves_out=leaves_out)
    return TogetherOnSeveral(steps, leaves_out=leaves_out)
