"""The micro-batches of an optimizer step of a staged model, run together on one replica or on several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import GraphBatches
from tfaccel.training.stages.micro_batches import IsFinite, MicroBatches
from tfaccel.training.stages.staged_model import StagedModel
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.global_batch import global_losses
from tfaccel.training.steps.gradient_update import GradientUpdate
from tfaccel.training.steps.gradients import is_bad
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.several_replicas import SeveralReplicas


class TogetherOnOne(MicroBatches):
    """The micro-batches of one replica in stages.

    Args:
        steps: its steps.
        staged: the model's stages.
        leaves_out: see `MicroBatches`.
    """

    def __init__(self, steps: OneReplica, staged: StagedModel, *, leaves_out: bool) -> None:
        super().__init__(steps.model, steps.replicas, leaves_out=leaves_out)
        self._steps, self._staged = steps, staged

    def train(self, batches: GraphBatches, several: Sequence[Any], *, is_finite: IsFinite) -> tf.Tensor:
        """Trains on the micro-batches of an optimizer step; returns False if that changed nothing."""
        with tf.device(self.replicas.devices[0] or None):
            data = [batches.rows(batch) for batch in several]
        ran: tf.Tensor = self._steps.on_replica(lambda data: self._run(data, is_finite))(data)
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
    """The micro-batches of several replicas, each in stages on devices of its own: gradients and slots stay there.

    Args:
        steps: their steps.
        leaves_out: see `MicroBatches`.
    """

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
    """Runs the micro-batches of a staged model's optimizer steps together.

    Args:
        staged: its stages.
        steps: `OneReplica` or `SeveralReplicas`.
        leaves_out: see `MicroBatches`.
    """
    if isinstance(steps, OneReplica):
        return TogetherOnOne(steps, staged, leaves_out=leaves_out)
    return TogetherOnSeveral(steps, leaves_out=leaves_out)
