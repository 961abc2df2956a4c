"""`find_learning_rate`: a learning-rate range test, which leaves the model as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tfaccel.argument_types import checks_types
from tfaccel.errors import DataError, PlanError, WorkloadError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.known_names import check_names
from tfaccel.planning.candidates import taken_fields
from tfaccel.planning.compile_arguments import FreshArguments, data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.own_model import COMPILE_ARGUMENTS, get_name, is_model, recreated
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import chosen_plan
from tfaccel.planning.private_models import given_compile_arguments
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import without_unavailable
from tfaccel.tuning.learning_rate_report import LearningRateReport, LearningRateTest

if TYPE_CHECKING:
    import keras

    from tfaccel.tuning.rate_sweep import OnStep

_OF_DATA = ("batch_size", "sample_weight", "class_weight", "shuffle")


@data_after_model
@checks_types(WorkloadError)
def find_learning_rate(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    test: LearningRateTest | None = None,
    plan: Plan | None = None,
    on_step: Callable[[int, float, float], Any] = lambda num_steps, learning_rate, smoothed_loss: None,
    **options: Any,
) -> LearningRateReport:
    """Trains for some steps while the learning rate rises, and suggests the rate at which the loss falls most steeply.

    A compiled model is trained itself, under its own strategy, and is as before afterwards, to the last bit: weights,
    moving statistics, optimizer state, learning rate or schedule, metrics, seeds. It is then built, if it was not.
    With other compile arguments, a copy of the model is trained; a workload's model is built for the test.

    The suggestion is for the optimizer, its settings and the batch size of the test. It is a starting point: with a
    schedule, use it as the peak rate; if training is unstable, try a half or a third of it.

    Args:
        workload: a Keras model; or what `tfaccel.train` takes: a function that builds a model, a `Workload`, a recipe's
            name, an import path, or a function that returns a workload.
        x, y: data, if `workload` is a model or a function that builds one; a generator is refused.
        test: the range of rates and other settings; None for 100 rates from 1e-7 to 10.
        plan: the plan for a model that is built for the test; None for the one that `tfaccel.train` would choose.
        on_step: called after each step with the number of tested rates, the last rate and the smoothed loss.
        **options: `batch_size`, `sample_weight`, `class_weight`, `shuffle` of `Model.fit`; arguments of
            `Model.compile`, such as `optimizer` and `loss`; the workload's own arguments; for a model that is built for
            the test, plan fields, such as `dtype_policy`.

    Returns:
        A `LearningRateReport`; its `suggestion` is None if the loss does not fall.

    Raises:
        WorkloadError: for a model that is not compiled, has several optimizers or learning rates, or has no loss.
        DataError: for data that cannot be read more than once, or hold no batches.
        PlanError: with several workers, or a plan for a model that is already built.

    Example:
        >>> import keras, numpy as np, tfaccel
        >>> keras.utils.set_random_seed(0)
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.random.default_rng(0).normal(size=(256, 4))
        >>> report = tfaccel.find_learning_rate(model, x, x.sum(axis=1))
        >>> 0.01 < report.suggestion < 1.0
        True

    References:
        [Smith, 2017, "Cyclical learning rates for training neural networks"](https://arxiv.org/abs/1506.01186), and the
        learning rate finder of PyTorch Lightning, whose smoothing and stopping rule this is.
    """
    test = test or LearningRateTest()
    if is_model(workload) and "compile_args" not in options:
        if plan is not None:
            raise PlanError("A plan is for a model that is built for the test. Received: a plan, and a Keras model.")
        if x is None:
            raise WorkloadError("A Keras model is tested on its data: find_learning_rate(model, x, y).")
        return _of_model(workload, x, y, test=test, on_step=on_step, options=options)
    fixed = taken_fields(options, plan)
    made = given_workload(workload, x, y, **options)
    plan = plan or without_unavailable(chosen_plan(detect_hardware(), made, **fixed), fixed)
    return _of_workload(made, plan, test=test, on_step=on_step)


def _of_workload(workload: Workload, plan: Plan, *, test: LearningRateTest, on_step: OnStep) -> LearningRateReport:
    """Tests a model that is built under a plan, and thrown away."""
    if plan.num_workers > 1:
        raise PlanError(
            f"A learning-rate range test runs in one process. Received: a plan with {plan.num_workers} workers. Test "
            "on one worker with the same global batch size: the suggestion does not depend on the number of replicas."
        )
    from tfaccel.training.runtime import Runtime

    with Runtime(plan, seed=test.seed) as runtime:
        from tfaccel.training.run.session import Session
        from tfaccel.training.steps.replica_state import separate_seeds
        from tfaccel.tuning.rate_sweep import RateSweep

        with contextlib.closing(Session(workload, plan, runtime.strategy, seed=test.seed)) as session:
            separate_seeds(session.model, session.engine.replicas)
            sweep = RateSweep(session.engine, session.source, test, on_step)
            return sweep.run(workload=workload.name, global_batch_size=plan.global_batch_size)


def _of_model(
    model: keras.Model, x: Any, y: Any, *, test: LearningRateTest, on_step: OnStep, options: Mapping[str, Any]
) -> LearningRateReport:
    """Tests the user's model, or a copy of it that is compiled with other arguments."""
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
    from tfaccel.training.front import call_own_method, needs_keras_loop, overrides

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
    import tensorflow as tf

    from tfaccel.training.front import make_source
    from tfaccel.training.private.private_models import build_model
    from tfaccel.training.steps.engine import Engine, EngineOptions
    from tfaccel.training.steps.replica_state import kept_state, separate_seeds
    from tfaccel.tuning.rate_sweep import RateSweep, tested_optimizer

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
