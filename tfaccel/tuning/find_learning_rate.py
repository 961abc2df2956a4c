"""`find_learning_rate`: a learning-rate range test, which leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.candidates import given_plan, taken_fields
from tfaccel.planning.compile_arguments import data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.own_model import is_model
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import chosen_plan
from tfaccel.training.runtime import Runtime, without_unavailable
from tfaccel.tuning.learning_rate_report import LearningRateReport, LearningRateTest, check_one_worker


@data_after_model
def find_learning_rate(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    test: LearningRateTest | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
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
        plan: the plan for a model that is built for the test, or a mapping of its fields; None for the one that
            `tfaccel.train` would choose.
        on_step: called after each step with the number of tested rates, the last rate and the smoothed loss.
        **options: `batch_size`, `sample_weight`, `class_weight`, `shuffle` of `Model.fit`; arguments of
            `Model.compile`, such as `optimizer` and `loss`; the workload's own arguments; for a model that is built for
            the test, plan fields, such as `devices=2` and `precision="bf16"`.

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
        from tfaccel.tuning.rate_sweep import sweep_model

        return sweep_model(workload, x, y, test=test, on_step=on_step, options=options)
    plan = given_plan(plan, options)
    fixed = taken_fields(options, plan)
    made = given_workload(workload, x, y, **options)
    plan = plan or without_unavailable(chosen_plan(detect_hardware(), made, **fixed), fixed)
    check_one_worker(plan.num_workers, "plan")
    with Runtime(plan, seed=test.seed) as runtime:  # before TensorFlow is loaded, if it is not yet
        from tfaccel.tuning.rate_sweep import sweep_workload

        return sweep_workload(made, plan, runtime.strategy, test=test, on_step=on_step)
