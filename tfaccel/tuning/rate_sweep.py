"""A learning-rate range test of a workload or a model, which trains with another learning rate in each step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import DataError, WorkloadError
from tfaccel.known_names import check_names
from tfaccel.planning.compile_arguments import FreshArguments
from tfaccel.planning.own_model import COMPILE_ARGUMENTS, get_name, recreated
from tfaccel.planning.plan import Plan
from tfaccel.planning.private_models import given_compile_arguments
from tfaccel.planning.workload import Workload
from tfaccel.training.front import Source, call_own_method, make_source, needs_keras_loop, overrides
from tfaccel.training.private import private_api
from tfaccel.training.private.private_models import build_model
from tfaccel.training.run.session import Session
from tfaccel.training.steps.engine import Engine, EngineOptions
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers
from tfaccel.training.steps.replica_state import kept_state, separate_seeds
from tfaccel.tuning.learning_rate_report import (
    LearningRateReport,
    LearningRateTest,
    SmoothedLoss,
    check_one_worker,
    suggestion,
)

OnStep = Callable[[int, float, float], Any]  # number of tested rates, the last one, the smoothed loss

_OF_DATA = ("batch_size", "sample_weight", "class_weight", "shuffle")
_MAX_SKIPPED = 60  # steps in a row whose gradients overflow; a loss scale of 2**60 has come down to 1 by then


def sweep_workload(
    workload: Workload, plan: Plan, strategy: tf.distribute.Strategy, *, test: LearningRateTest, on_step: OnStep
) -> LearningRateReport:
    """Tests a model that is built under a plan, in its runtime, and thrown away."""
    with contextlib.closing(Session(workload, plan, strategy, seed=test.seed)) as session:
        separate_seeds(session.model, session.engine.replicas)
        sweep = RateSweep(session.engine, session.source, test, on_step)
        return sweep.run(workload=workload.name, global_batch_size=plan.global_batch_size)


def sweep_model(
    model: keras.Model, x: Any, y: Any, *, test: LearningRateTest, on_step: OnStep, options: Mapping[str, Any]
) -> LearningRateReport:
    """Tests the user's model, or a copy of it that is compiled with other arguments; see `find_learning_rate`."""
    check_names(options, (*_OF_DATA, *COMPILE_ARGUMENTS), WorkloadError, "There is no argument {!r} for a Keras model.")
    if hasattr(x, "__next__"):
        raise DataError(
            f"A {type(x).__name__} can be read only once, and the test would use up its batches. Give arrays, a "
            "tf.data.Dataset or a PyDataset."
        )
    compile_args = {name: value for name, value in options.items() if name not in _OF_DATA}
    own = {"x": x, "y": y, **{name: value for name, value in options.items() if name in _OF_DATA}}
    if compile_args:
        model = _copy(model, compile_args)
    elif not model.compiled:
        raise WorkloadError(
            "The model is not compiled. Call `model.compile(...)`, or give its arguments beside the data: "
            "find_learning_rate(model, x, y, optimizer='adam', loss='mse')."
        )
    if needs_keras_loop(model, "fit"):
        raise WorkloadError(
            f"{type(model).__name__} overrides make_train_function, so its learning rate cannot be tested step by "
            "step. Override train_step instead."
        )
    run = partial(_test_in_place, test=test, on_step=on_step)
    if overrides(model, "fit"):  # prepares its data, and calls super().fit
        report: LearningRateReport | None = call_own_method(model, "fit", own, {"fit": run})
        if not isinstance(report, LearningRateReport):
            raise WorkloadError(f"{type(model).__name__}.fit must return what super().fit(...) returns.")
        return report
    return run(model, **own)


def _copy(model: keras.Model, compile_args: Mapping[str, Any]) -> keras.Model:
    given = given_compile_arguments(model) if model.compiled else {}
    given = {name: value for name, value in given.items() if name in COMPILE_ARGUMENTS}
    with model.distribute_strategy.scope():
        copy = recreated(model)
        copy.compile(
            **FreshArguments({**given, **compile_args})(None), jit_compile=model.compiled and model.jit_compile
        )
    return copy


def _test_in_place(
    model: keras.Model, x: Any, y: Any = None, *, test: LearningRateTest, on_step: OnStep, **of_fit: Any
) -> LearningRateReport:
    """Tests a compiled model, and puts its state back."""
    of_fit = {name: value for name, value in of_fit.items() if name in _OF_DATA}
    accumulation = tested_optimizer(model).gradient_accumulation_steps or 1
    engine = Engine(model, EngineOptions(stop_at_non_finite_loss=True, fused_kernels=True))
    num_batches = test.num_steps * accumulation
    data = {"shuffle": not isinstance(x, tf.data.Dataset), **of_fit, "num_epochs": num_batches}
    source = make_source(x, y, data.pop("sample_weight", None), replicas=engine.replicas, **data)
    try:
        build_model(model, source.batch_spec)
        separate_seeds(model, engine.replicas)
        source.reset()
        size = getattr(source, "global_batch_size", None) or of_fit.get("batch_size")
        sweep = RateSweep(engine, source, test, on_step)
        with kept_state(model, engine.replicas):
            return sweep.run(workload=get_name(model), global_batch_size=None if size is None else size * accumulation)
    finally:
        source.close()


class RateSweep:
    """Trains a built and compiled model for the steps of a test, on the batches of a source, epoch after epoch.

    The caller keeps the model's state.

    Raises:
        WorkloadError: for a model that has not exactly one optimizer with one learning rate.
        PlanError: with several workers.
    """

    def __init__(self, engine: Engine, source: Source, test: LearningRateTest, on_step: OnStep) -> None:
        check_one_worker(engine.replicas.num_workers, "strategy")
        self._engine, self._source, self._test, self._on_step = engine, source, test, on_step
        self._optimizer = tested_optimizer(engine.model)
        self._batches_per_step = self._optimizer.gradient_accumulation_steps or 1
        self._rates = np.array([test.learning_rate(step) for step in range(test.num_steps)], "float32")
        self._feed: Any = None
        self._num_batches = 0  # of the epoch so far

    def run(self, *, workload: str, global_batch_size: int | None) -> LearningRateReport:
        """Tests the rates; the report names what is trained, and the examples in an optimizer step if known."""
        usual = _number(self._optimizer.learning_rate)
        smoothed, losses = SmoothedLoss(self._test), list[float]()
        first = int(_number(self._optimizer.iterations))
        with private_api.learning_rate_from(self._optimizer, self._rate_in_graph(first)):
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
    """The one optimizer of a model, without its loss scale; WorkloadError unless there is one learning rate."""
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
