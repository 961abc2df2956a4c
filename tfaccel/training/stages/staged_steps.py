"""The steps of a staged model: those of one replica or of several, with the micro-batches of a step run together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from tfaccel.data.graph_batches import GraphBatches
from tfaccel.training.stages.micro_batches import MicroBatches, is_whole
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
        watches = is_finite is not None
        before, bad = together.begin(watches=watches), []
        last: list[tuple[Any, Any]] = []
        update, scale = optimizer.apply, optimizer.scale_loss

        def record(gradients: Any, trainable_variables: Any = None) -> None:
            gradients, variables = list(gradients), list(trainable_variables)
            bad.append(together.overflows(gradients))
            if len(bad_losses) == len(data):
                last.append((gradients, variables))
            else:
                together.accumulate(gradients, variables)

        def scale_loss(loss: Any) -> Any:
            bad_losses.append(is_bad(loss) if together.leaves_out else tf.constant(0.0))
            return scale(loss)

        bad_losses: list[tf.Tensor] = []
        with instance_attributes(optimizer, {"apply": record, "scale_loss": scale_loss}):
            for one in data:
                self._model.train_step(one)

        def apply() -> None:
            together.count()
            update(*last[0])

        with self._staged.on_last():
            if not together.checks(watches):
                apply()
                return tf.constant(True)
            fine = is_whole([*bad, *bad_losses], is_finite)
            only_if(fine, apply)
            together.clear_unless(fine)
            before.put_back_unless(fine)
            return fine


class StagedUpdate(GradientUpdate):
    """The optimizer step of several staged replicas: gradients and slots stay on their stage's device."""

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """While tracing: operations run where their inputs are."""
        with tf.compat.v1.device(following()):
            yield

    def accumulate(self, gradients: list[Any], together: MicroBatches, variables: list[keras.Variable]) -> None:
        """Adds the gradients of a micro-batch to each replica's accumulators."""

        def add(values: list[Any], variables: list[keras.Variable]) -> None:
            with self.placed():
                together.accumulate(values, variables)

        present = [place for place, gradient in enumerate(gradients) if gradient is not None]
        self._on_each_replica(add, [gradients[place] for place in present], [variables[place] for place in present])

    def apply_last(self, gradients: list[Any], together: MicroBatches, variables: list[keras.Variable]) -> None:
        """Applies what is accumulated and the gradients of the last micro-batch of an optimizer step."""
        present = [place for place, gradient in enumerate(gradients) if gradient is not None]
        kept = [variables[place] for place in present]
        self._on_each_replica(lambda values, variables: together.count(), [], kept)
        self._apply_accumulated([gradients[place] for place in present], kept)


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
        before, update = together.begin(watches=watches), cast(StagedUpdate, self._updates["optimizer"])
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
        with self._replicas.strategy.scope():
            variables = self._model.trainable_variables
            for gradients, *_ in outputs[:-1]:
                update.accumulate(gradients, together, variables)
            if not together.checks(watches):
                update.apply_last(outputs[-1][0], together, variables)
                return tf.constant(True)
            counts = [overflows for _, overflows, _, _ in outputs] if together.scales_loss else []
            counts += [bad for _, _, bad, _ in outputs] if self._leaves_out else []
            total = [self._replicas.local_results(one)[0] for one in self._replicas.sum(counts)] if counts else []
            fine = is_whole(total, is_finite)
            only_if(fine, lambda: update.apply_last(outputs[-1][0], together, variables))
            together.clear_unless(fine)
            before.put_back_unless(fine)
            return fine

    def _gradients(self, data: Any) -> tuple[list[Any], tf.Tensor, Any, Any]:
        with self._staged.on_last():
            return super()._gradients(data)


def staged_steps(
    staged: StagedModel,
    replicas: Replicas,
    *,
    bytes_per_pack: int,
    combine_slices: CombineSlices | None,
    leaves_out: bool,
) -> StagedReplica | StagedReplicas:
    """The steps of a staged model; arguments as for `SeveralReplicas`."""
    options: dict[str, Any] = {"combine_slices": combine_slices, "leaves_out": leaves_out}
    if replicas.num_replicas == 1:
        return StagedReplica(staged.model, replicas, staged, **options)
    return StagedReplicas(staged.model, replicas, staged, bytes_per_pack=bytes_per_pack, **options)
