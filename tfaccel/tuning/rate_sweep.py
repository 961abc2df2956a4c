"""The steps of a learning-rate range test: a model trains with another learning rate in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import DataError, PlanError, WorkloadError
from tfaccel.training.front import Source
from tfaccel.training.private import private_api
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers
from tfaccel.tuning.learning_rate_curve import SmoothedLoss, suggestion
from tfaccel.tuning.learning_rate_report import LearningRateReport, LearningRateTest

OnStep = Callable[[int, float, float], Any]  # number of tested rates, the last one, the smoothed loss

_MAX_SKIPPED = 60  # steps in a row whose gradients overflow; a loss scale of 2**60 has come down to 1 by then


class RateSweep:
    """Trains a built and compiled model for the steps of a test. The caller keeps the model's state.

    Args:
        engine: the model's engine.
        source: batches; epochs are repeated until the test ends.
        test: the rates.
        on_step: called after each step with the number of tested rates, the last of them, and the smoothed loss.

    Raises:
        WorkloadError: for a model that has not exactly one optimizer with one learning rate.
        PlanError: with several workers.
    """

    def __init__(self, engine: Engine, source: Source, test: LearningRateTest, on_step: OnStep) -> None:
        if engine.replicas.num_workers > 1:
            raise PlanError(
                "A learning-rate range test runs in one process. Received: a strategy with "
                f"{engine.replicas.num_workers} workers. Test on one worker with the same global batch size: the "
                "suggestion does not depend on the number of replicas."
            )
        self._engine = engine
        self._source = source
        self._test = test
        self._on_step = on_step
        self._optimizer = tested_optimizer(engine.model)
        self._batches_per_step = self._optimizer.gradient_accumulation_steps or 1
        self._rates = np.array([test.learning_rate(step) for step in range(test.num_steps)], "float32")
        self._feed: Any = None
        self._num_batches = 0  # of the epoch so far

    def run(self, *, workload: str, global_batch_size: int | None) -> LearningRateReport:
        """Tests the rates.

        Args:
            workload: what is trained, for the report.
            global_batch_size: examples in an optimizer step; None if unknown.
        """
        usual = _number(self._optimizer.learning_rate)
        smoothed, losses = SmoothedLoss(self._test), list[float]()
        with private_api.learning_rate_from(
            self._optimizer, self._rate_in_graph(int(_number(self._optimizer.iterations)))
        ):
            stopped = self._steps(losses, smoothed)
        rates = tuple(float(rate) for rate in self._rates[: len(losses)])
        suggested, reason = suggestion(rates, losses, smoothed.values, self._test)
        return LearningRateReport(
            workload=workload,
            optimizer=type(self._optimizer).__name__,
            global_batch_size=global_batch_size,
            learning_rate=usual,
            test=self._test,
            learning_rates=rates,
            losses=tuple(losses),
            smoothed_losses=tuple(smoothed.values),
            suggestion=suggested,
            reason=reason if rates else stopped,
            stopped_because=stopped,
        )

    def _rate_in_graph(self, first: int) -> Callable[[], tf.Tensor]:
        """The function that gives the rate of a step, counted from the optimizer's present number of steps."""

        def rate() -> tf.Tensor:
            step = tf.convert_to_tensor(self._optimizer.iterations) - tf.cast(first, self._optimizer.iterations.dtype)
            return tf.gather(tf.constant(self._rates), tf.clip_by_value(step, 0, len(self._rates) - 1))

        return rate

    def _steps(self, losses: list[float], smoothed: SmoothedLoss) -> str:
        """Runs steps until the test ends; returns why it ended."""
        num_skipped = 0
        while len(losses) < self._test.num_steps:
            rate, before = float(self._rates[len(losses)]), int(_number(self._optimizer.iterations))
            loss = self._step()
            if loss is None or not np.isfinite(loss):
                return f"The loss is NaN or infinite at learning rate {rate:.2e}, step {len(losses) + 1}."
            if int(_number(self._optimizer.iterations)) == before:  # a loss scale skips a step whose gradients overflow
                num_skipped += 1
                if num_skipped > _MAX_SKIPPED:
                    return f"The gradients are not finite at learning rate {rate:.2e}, whatever the loss scale."
                continue
            num_skipped = 0
            losses.append(loss)
            self._on_step(len(losses), rate, smoothed.add(loss))
            if smoothed.diverged:
                return (
                    f"The smoothed loss was more than {self._test.divergence_factor:g} times its lowest value at "
                    f"learning rate {rate:.2e}."
                )
        return f"All {len(losses)} rates were tested."

    def _step(self) -> float | None:
        """The mean loss of one optimizer step; None if it is not finite."""
        model = self._engine.model
        model.reset_metrics()
        left, loss = self._batches_per_step, float("nan")
        while left > 0:
            feed, loop = self._batches(), self._batches_per_step > 1
            result = self._engine.checks.compare("train", feed, loop=loop)
            if result is None:
                result = self._engine.run("train", feed, left, loop=loop)
            left -= result.num_steps
            self._num_batches += result.num_steps
            if "loss" not in result.logs:
                raise WorkloadError(
                    f"{type(model).__name__}.train_step returns no log named 'loss', which the test needs. Received: "
                    f"{', '.join(result.logs) or 'no logs'}."
                )
            if not result.loss_is_finite:
                return None
            loss = float(np.asarray(result.logs["loss"]))
        return loss

    def _batches(self) -> Any:
        """The feed with the next batch, of a new epoch if the last one has ended."""
        if self._feed is not None and not self._feed.exhausted:
            return self._feed
        if self._feed is not None:
            self._source.epoch_end(self._num_batches)
        self._num_batches, self._feed = 0, self._source.feed()
        if self._feed.exhausted:
            raise DataError("The data contain no batches, or can be read only once. Give arrays or a dataset.")
        return self._feed


def _number(value: Any) -> float:
    """The value of a number or variable, also of one that replicas hold copies of."""
    return float(keras.ops.convert_to_numpy(value))


def tested_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The one optimizer of a model that has one learning rate, without its loss scale.

    Raises:
        WorkloadError: if there is none, or there are several rates.
    """
    found = get_optimizers(model)
    if not found:
        raise WorkloadError(
            "The model has no optimizer, so there is no learning rate to test. Give one: optimizer='adam'."
        )
    parts = [part for one in found.values() for part in stepping_optimizers(one)]
    if len(parts) > 1 or isinstance(parts[0], keras.optimizers.MultiOptimizer):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise WorkloadError(
            "A learning-rate range test needs a model with one optimizer and one learning rate. "
            f"{type(model).__name__} has several: {kinds}. Search their rates with `tfaccel search`."
        )
    return parts[0]
