"""The steps of a staged model: those of one replica or of several, with the micro-batches of a step run together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import GraphBatches
from tfaccel.training.private import private_api
from tfaccel.training.stages.micro_batches import MicroBatches, is_whole, summed
from tfaccel.training.stages.stage_devices import following
from tfaccel.training.stages.staged_model import StagedModel
from tfaccel.training.steps.global_batch import global_losses
from tfaccel.training.steps.gradient_update import GradientUpdate, recording
from tfaccel.training.steps.gradients import CombineSlices, is_bad
from tfaccel.training.steps.left_out import only_if
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.several_replicas import SeveralReplicas

IsFinite = Callable[[], tf.Tensor] | None


class StagedReplica(OneReplica):
    """The steps of one replica in stages.

    Args:
        model, replicas, options: as for `OneReplica`.
        staged: the model's stages.
    """

    def __init__(self, model: keras.Model, replicas: Replicas, staged: StagedModel, **options: Any) -> None:
        super().__init__(model, replicas, jit_compile=False, **options)
        self._staged = staged
        self.micro_batches = MicroBatches(model, replicas, leaves_out=options["leaves_out"])

    def train_together(self, batches: GraphBatches, several: Sequence[Any], *, is_finite: IsFinite) -> tf.Tensor:
        """Trains on the micro-batches of an optimizer step; returns False if that changed nothing."""
        with tf.device(self._replicas.devices[0] or None):
            data = [batches.rows(batch) for batch in several]
        ran: tf.Tensor = self._function(lambda data: self._together(data, is_finite))(data)
        return ran

    def _together(self, data: Sequence[Any], is_finite: IsFinite) -> tf.Tensor:
        together, optimizer = self.micro_batches, self.micro_batches.optimizer
        before, bad = together.begin(watches=is_finite is not None), []
        recorded: list[tuple[list[Any], list[keras.Variable]]] = []
        update, scale = optimizer.apply, optimizer.scale_loss

        def record(gradients: Any, trainable_variables: Any = None) -> None:
            recorded.append((list(gradients), list(trainable_variables)))
            bad.append(together.overflows(recorded[-1][0]))

        def scale_loss(loss: Any) -> Any:
            bad.extend([is_bad(loss)] * together.leaves_out)
            return scale(loss)

        with instance_attributes(optimizer, {"apply": record, "scale_loss": scale_loss}):
            for one in data:
                self._model.train_step(one)
        with self._staged.on_last():
            if not together.checks(is_finite is not None):
                self._apply(recorded, update)
                return tf.constant(True)
            fine = is_whole(bad, is_finite)
            only_if(fine, lambda: self._apply(recorded, update))
            before.put_back_unless(fine)
            return fine

    def _apply(self, recorded: Sequence[tuple[list[Any], list[keras.Variable]]], update: Callable[..., None]) -> None:
        """Keras's update with the sum of the gradients, as at the last micro-batch of an optimizer step."""
        together, optimizer = self.micro_batches, self.micro_batches.optimizer
        gradients, variables = [of_one for of_one, _ in recorded], recorded[0][1]
        if not together.scales_loss:
            together.count_micro_batches()
            update(summed(gradients), variables)
            return
        scale = optimizer.dynamic_scale
        unscaled = [[None if g is None else keras.ops.divide(g, scale) for g in of_one] for of_one in gradients]
        together.count_micro_batches()
        with private_api.one_learning_rate(optimizer):
            type(together.inner).apply(together.inner, summed(unscaled), variables)
        optimizer.step_counter.assign_add(together.number)


class StagedUpdate(GradientUpdate):
    """The optimizer step of several staged replicas: gradients and slots stay on their stage's device."""

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """While tracing: operations run where their inputs are."""
        with tf.compat.v1.device(following()):
            yield

    def apply_together(self, gradients: Sequence[list[Any]], variables: list[keras.Variable], number: int) -> None:
        """Applies the gradients of all micro-batches of an optimizer step.

        Args:
            gradients: of each micro-batch, one per-replica value for each variable, or None.
            variables: the trainable variables.
            number: how many micro-batches there are.
        """
        present = [place for place, gradient in enumerate(gradients[0]) if gradient is not None]
        kept = [[of_one[place] for place in present] for of_one in gradients]

        def total(several: list[list[Any]]) -> list[Any]:
            with self.placed():
                return summed(several)

        totals = self.replicas.strategy.run(total, args=(kept,))
        counters = [private_api.raw_iterations(self._inner)]
        counters += [self.optimizer.step_counter] if self.checks_finite else []
        for replica in range(len(self.replicas.devices)):
            for counter in self.replicas.components(counters, replica):
                counter.assign_add(tf.cast(number - 1, counter.dtype))
        self._apply_accumulated(list(totals), [variables[place] for place in present])


class StagedReplicas(SeveralReplicas):
    """The steps of several replicas, each in stages on devices of its own.

    Args:
        model, replicas, options: as for `SeveralReplicas`.
        staged: the model's stages.
    """

    update_class = StagedUpdate

    def __init__(self, model: keras.Model, replicas: Replicas, staged: StagedModel, **options: Any) -> None:
        super().__init__(model, replicas, jit_compile=False, **options)
        self._staged = staged
        self.micro_batches = MicroBatches(model, replicas, leaves_out=options["leaves_out"])

    def train_together(self, batches: GraphBatches, several: Sequence[Any], *, is_finite: IsFinite) -> tf.Tensor:
        """Trains on the micro-batches of an optimizer step; returns False if that changed nothing."""
        together = self.micro_batches
        watches = is_finite is not None
        before, update = together.begin(watches=watches), self._updates["optimizer"]
        with self._replicas.strategy.scope(), global_losses(self._model), contextlib.ExitStack() as stack:
            stack.enter_context(
                instance_attributes(update.optimizer, recording(update.optimizer, leaves_out=self._leaves_out))
            )
            stack.enter_context(self._statistics())
            outputs = []
            for batch in several:
                batch = self._rows.checked(batches, batch)
                denominators = self._denominators(batches, batch, training=True)
                outputs.append(self._rows.run(batches, batch, self._forward_backward, denominators, if_empty="borrow"))

        def apply() -> None:
            gradients = [of_one[0] for of_one in outputs]
            update.apply_together(gradients, self._model.trainable_variables, together.number)

        with self._replicas.strategy.scope():
            if not together.checks(watches):
                apply()
                return tf.constant(True)
            counts = [of_one[1] for of_one in outputs] if together.scales_loss else []
            counts += [of_one[2] for of_one in outputs] if self._leaves_out else []
            total = [self._replicas.local_results(one)[0] for one in self._replicas.sum(counts)] if counts else []
            fine = is_whole(total, is_finite)
            only_if(fine, apply)
            before.put_back_unless(fine)
            return fine

    def _gradients(self, data: Any) -> tuple[list[Any], tf.Tensor, Any, Any]:
        with self._staged.on_last():
            return super()._gradients(data)


def staged_steps(
    staged: StagedModel, replicas: Replicas, *, bytes_per_pack: int, combine_slices: CombineSlices | None, leaves_out: bool
) -> StagedReplica | StagedReplicas:
    """The steps of a staged model; arguments as for `SeveralReplicas`."""
    options: dict[str, Any] = {"combine_slices": combine_slices, "leaves_out": leaves_out}
    if replicas.num_replicas == 1:
        return StagedReplica(staged.model, replicas, staged, **options)
    return StagedReplicas(staged.model, replicas, staged, bytes_per_pack=bytes_per_pack, **options)
