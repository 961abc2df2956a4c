"""Leaves out a batch whose loss or gradients are not finite: its step changes nothing, on any replica.

Whether they are finite is one number per step, and the same on all replicas: it is summed over them before anything is
applied. The update of the weights and the optimizer's state runs only if all of them are. What the forward pass changes
(metrics, moving statistics, seeds, states of recurrent layers) gets back its value from before the step. A custom
`train_step` may update anything at any time, so there all variables do.

A `LossScaleOptimizer` expects gradients that overflow, and skips such steps itself: there only the loss counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import NonFiniteLossError
from tfaccel.training.private import private_api
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.gradients import is_bad
from tfaccel.training.steps.loss_scaling import count_overflows, has_loss_scale
from tfaccel.training.steps.model_parts import get_optimizers, get_variables, has_own_train_step
from tfaccel.training.steps.overrides import attributes_of_each
from tfaccel.training.steps.replicas import Replicas

logger = logging.getLogger("tfaccel")

MAX_IN_A_ROW = 10


class StateBefore:
    """While tracing: the values of plain variables before a step."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[tf.Variable, tf.Tensor]] = {}

    def keep(self, variables: Iterable[tf.Variable]) -> None:
        """Copies the values of variables that are not kept yet."""
        for variable in variables:
            if id(variable) not in self._values:
                with tf.device(variable.device or None):
                    self._values[id(variable)] = variable, tf.identity(variable.read_value())

    def put_back_unless(self, finite: tf.Tensor) -> None:
        """Gives each variable its value from before the step, unless everything was finite."""
        for variable, value in self._values.values():
            with tf.device(variable.device or None):
                variable.assign(tf.where(finite, variable.read_value(), value))


def variables_to_keep(model: keras.Model) -> list[keras.Variable]:
    """The variables that a training step may change before it is known whether everything is finite."""
    every = get_variables(model)
    if has_own_train_step(model):
        return every
    kind = keras.layers.SpectralNormalization  # its forward pass assigns the weights
    if any(isinstance(layer, kind) for layer in private_api.all_layers(model)):
        updated: set[int] = set()
    else:
        updated = {id(v) for v in model.trainable_variables}
    updated |= {id(v) for optimizer in get_optimizers(model).values() for v in optimizer.variables}
    return [v for v in every if id(v) not in updated]


def bad_gradients(gradients: list[Any], optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """The number of gradients that are not finite, as a float32 scalar; 0 if a loss scale checks them itself."""
    return tf.constant(0.0) if has_loss_scale(optimizer) else count_overflows(gradients)


def bad_logs(logs: Any, model: keras.Model, read: Callable[[keras.Variable], Any]) -> tf.Tensor:
    """Above 0 if the loss that a custom `train_step` returns or tracks is not finite."""
    found = [logs["loss"]] if isinstance(logs, dict) and "loss" in logs else []
    tracker = private_api.loss_tracker(model)
    found += [] if tracker is None else [read(tracker.total)]
    found = [tf.convert_to_tensor(value) for value in found]
    return tf.add_n([tf.constant(0.0), *(is_bad(value) for value in found if value.dtype.is_floating)])


class OneReplicaGuard:
    """Runs a training step of one replica, and leaves out its batch if the loss or gradients are not finite.

    Args:
        component: returns the plain variable behind a Keras variable.
    """

    def __init__(self, model: keras.Model, component: Callable[[keras.Variable], tf.Variable]) -> None:
        self._model = model
        self._component = component
        self._is_own = has_own_train_step(model)
        self._bad: list[tf.Tensor] = []
        self._before = StateBefore()

    def run(self, step: Callable[[Any], Any], data: Any) -> tuple[Any, tf.Tensor]:
        """What the step returns, and whether everything was finite. Call it where `optimizer.apply` may be replaced."""
        self._bad, self._before = [], StateBefore()
        self._before.keep(map(self._component, variables_to_keep(self._model)))
        optimizers = get_optimizers(self._model).values()
        with attributes_of_each((optimizer, self._watching(optimizer)) for optimizer in optimizers):
            logs = step(data)
        if self._is_own:
            self._bad.append(bad_logs(logs, self._model, self._component))
        finite = self._finite
        self._before.put_back_unless(finite)
        self._before = StateBefore()
        return logs, finite

    @property
    def _finite(self) -> tf.Tensor:
        return tf.equal(tf.add_n([tf.constant(0.0), *self._bad]), 0.0)

    def _watching(self, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
        """Attributes with which an optimizer's losses and gradients are checked, and not applied if they are bad."""
        scale, update = optimizer.scale_loss, optimizer.apply

        def scale_loss(loss: Any) -> Any:
            self._bad.append(is_bad(loss))
            return scale(loss)

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            gradients = list(gradients)
            self._bad.append(bad_gradients(gradients, optimizer))
            if self._is_own:
                update(gradients, trainable_variables)
            else:
                only_if(self._finite, lambda: update(gradients, trainable_variables))

        return {"scale_loss": scale_loss, "apply": apply}


def only_if(finite: tf.Tensor, update: Callable[[], Any]) -> None:
    """Runs an update in the graph if everything is finite."""

    def applied() -> tf.Tensor:
        update()
        return tf.constant(True)

    tf.cond(finite, applied, lambda: tf.constant(False))


class ReplicasGuard:
    """Leaves out the batch of a step on all replicas if the loss or gradients are not finite on any of them.

    Args:
        leaves_out: False to leave out nothing; gradients are then always applied.

    Attributes:
        finite: while tracing: whether everything was finite in the last step.
    """

    def __init__(self, model: keras.Model, replicas: Replicas, *, leaves_out: bool) -> None:
        self._model, self._replicas, self._leaves_out = model, replicas, leaves_out
        self._before = StateBefore()
        self.finite: tf.Tensor | None = None

    def begin(self) -> None:
        """Keeps what the forward pass changes on the local replicas. Call it before the step."""
        self._before = StateBefore()
        if self._leaves_out:
            self._before.keep(self._replicas.copies(variables_to_keep(self._model)))

    def end(self, bad: Any, update: Callable[[], None] = lambda: None) -> None:
        """Runs the update, or gives all replicas their state from before the step.

        Args:
            bad: per-replica numbers, above 0 where something is not finite.
        """
        if not self._leaves_out:
            update()
            return
        total = self._replicas.local_results(all_reduce(self._replicas, [bad]))[0][0]
        self.finite = tf.equal(total, 0.0)
        only_if(self.finite, update)
        self._before.put_back_unless(self.finite)
        self._before = StateBefore()


class LeftOutCount:
    """The batches of an epoch that were left out, because their loss or gradients were not finite.

    Attributes:
        of_epoch: how many.
    """

    def __init__(self) -> None:
        self.of_epoch = 0
        self._first: int | None = None
        self._in_a_row = 0

    def begin_epoch(self, of_epoch: int = 0) -> None:
        """Starts an epoch, of which `of_epoch` batches have been left out before training was interrupted."""
        self.of_epoch, self._first = of_epoch, None

    def add(self, epoch: int, window: range, steps: Sequence[int]) -> None:
        """Adds the steps of a window whose batches were left out."""
        if not steps:
            self._in_a_row = 0
            return
        self._note(steps[0], len(steps))
        chosen = set(steps)
        for step in window:
            self._in_a_row = self._in_a_row + 1 if step in chosen else 0
            if self._in_a_row == MAX_IN_A_ROW:
                raise NonFiniteLossError(
                    f"{MAX_IN_A_ROW} batches in a row were left out, up to step {step + 1} of epoch {epoch + 1}: their "
                    "loss or gradients became NaN or infinite. That is no fault of single examples. Try a lower "
                    "learning rate, gradient clipping, or float32, and inspect the data."
                )

    def drop(self, step: int) -> None:
        """Adds a step whose batch is dropped, because an earlier attempt to train on it failed."""
        self._note(step, 1)

    def _note(self, first: int, number: int) -> None:
        if not self.of_epoch:
            self._first = first + 1
        self.of_epoch += number

    def end_epoch(self, epoch: int, num_steps: int, *, logs: bool) -> None:
        """Ends an epoch with one line, if batches were left out."""
        if not self.of_epoch:
            return
        if self.of_epoch == num_steps:
            raise NonFiniteLossError(
                f"All {num_steps} batches of epoch {epoch + 1} were left out: their loss or gradients became NaN or "
                "infinite. Try a lower learning rate, gradient clipping, or float32, and inspect the data."
            )
        if logs:
            which = "" if self._first is None else f" (the first one at step {self._first})"
            logger.warning(
                f"Epoch {epoch + 1}: {self.of_epoch} of {num_steps} batches were left out{which}, because their loss "
                "or gradients became NaN or infinite."
            )
