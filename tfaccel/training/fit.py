"""`tfaccel.fit`: `Model.fit`, correct and fast under every strategy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import keras

from tfaccel.argument_types import checks_types
from tfaccel.data import private_pipelines
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.planning.non_finite_policy import SKIP, STOP, check_policy
from tfaccel.planning.plan import Plan
from tfaccel.training.epochs import make_callbacks, run_epochs
from tfaccel.training.evaluate import engine_evaluate
from tfaccel.training.fit_plan import apply_plan
from tfaccel.training.inputs import make_source, prepared_model
from tfaccel.training.own_methods import call_own_method, given_arguments, needs_keras_loop, overrides
from tfaccel.training.predict import engine_predict
from tfaccel.training.run.fit_data import FitData
from tfaccel.training.run.resume import refuse_own_loop, taken_out
from tfaccel.training.run.resumed_fit import ResumedFit
from tfaccel.training.steps.engine import EngineOptions, build_before_steps, get_engine
from tfaccel.training.validation import validation_of_fit
from tfaccel.training.workers.chief import only_chief_writes
from tfaccel.training.workers.lost_worker import names_lost_workers

_NOT_OF_KERAS = ("model", "options", "check_rows", "exact_kernels", "replicas", "resume", "others")


@names_lost_workers
@checks_types(WorkloadError)
def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    *,
    plan: Plan | None = None,
    check_rows: bool = True,
    exact_kernels: bool = False,
    on_nonfinite: str | None = None,
    **own: Any,
) -> keras.callbacks.History:
    """Trains a compiled Keras 3 model; all arguments have the same meaning as in `Model.fit`.

    The model may be built inside the scope of any strategy, or without one. N replicas give what one device gives on
    the same global batches: `batch_size` and the batches of a dataset are global and are split over the replicas.
    `compile(jit_compile=True)` enables XLA, also under a strategy.
    Several steps run in one graph call: batch hooks are called for each batch, the progress bar is updated per call.

    Without a strategy, histories, logs and weights are those of `Model.fit`, to the last bit with `exact_kernels=True`
    or XLA, unless TensorFlow optimizes the graph of several steps otherwise than Keras's of one: seen with convolutions
    and arrays whose last batch is smaller, by 1e-8 in a step. By default, batch and layer normalization, GELU,
    attention, LSTM and GRU (on CPUs), Adam and SGD with momentum run as fused kernels, which compute the same functions
    with other rounding. Batches are those of `Model.fit`: after `set_random_seed`, arrays are shuffled in Keras's
    order, the same in each epoch; and a `tf.data.Dataset` is iterated as often, which determines the order of
    `shuffle(seed=...)`. As with Keras,

    * changes made after `compile` and training (`layer.trainable`, `model.optimizer`, `model.run_eagerly`,
      `model.jit_compile`) take effect at the next `compile` or `make_train_function(force=True)`, since the graph is
      already traced; before training, and with `run_eagerly=True`, freezing a layer takes effect at once;
    * with `compile(steps_per_execution=k)` an epoch consists of full executions of `k` steps, and only the end of the
      data shortens one: `steps_per_epoch=4` with `k=3` runs 6 steps. Batch hooks are called once per execution, with
      the indices of its first and last step, as if it were full.

    There are six differences. When data of unknown length end, Keras calls `on_train_batch_begin` once more and warns
    that the data ran out; tfaccel does neither. That call of Keras trains nothing, but counts: `optimizer.iterations`,
    by which Adam corrects its moments and schedules set the rate, grows by one step too many per epoch. tfaccel counts
    the steps that it makes, and gives what Keras gives for the same data with a length. A new
    `model.steps_per_execution` takes effect at once; Keras's graph keeps the old number. With several workers, the
    chief's seed shuffles the arrays of all. A custom `train_step` is traced up to four times, twice as often as by
    Keras. Slots that begin as copies of the weights do so everywhere; in `Model.fit` without a strategy, those of
    `ScheduleFreeAdamW` begin as zeros, and its first step discards the weights.

    Args:
        model: a compiled `keras.Model`.
        x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle, class_weight,
        sample_weight, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size, validation_freq:
            see https://keras.io/api/models/model_training_apis/#fit-method.
        plan: sets XLA, steps per call, BatchNorm, `sum_duplicate_indices`, the packs of gradients and the batch size.
        exact_kernels: use Keras's own operations instead of fused kernels. A plan decides by its `fused_kernels`.
        check_rows: with several replicas, run the first step and some later ones on one device, too, and compare; what
            couples the rows of a batch differs, since each replica sees only its own. False leaves this out.
        on_nonfinite: what to do when the loss becomes NaN or infinite. None goes on, as Keras does; "stop" raises
            `NonFiniteLossError` at that step (on a GPU, the next step may have run too); "skip" leaves out batches
            whose loss or gradients are not finite, as if they were not in the data, and logs their number in each
            epoch.
        **own: arguments of the model's own `fit`, if it has one with others than Keras's.

    Returns:
        The `keras.callbacks.History`, also available as `model.history`.

    Raises:
        ClusterError: if another worker is lost; the message names it.
        NonFiniteLossError: with `on_nonfinite="stop"`; with "skip", if ten batches in a row were left out.
        PlanError: if the model's strategy is ParameterServerStrategy or CentralStorageStrategy, or the plan has another
            strategy, dtype policy or batch size than the model; the message names the differences.
        CoupledRowsError: if the model gives other results on several replicas than on one device; the message names
            what couples the rows, and how to fix it (`tfaccel.ops.all_gather_rows`).
        TypeError: for an argument that neither Keras nor the model has.
        ValueError: if the model is not compiled, or `Model.fit` refuses the arguments.

    Example:

    >>> import keras, numpy as np, tfaccel
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> history = tfaccel.fit(model, np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    >>> sorted(history.history)
    ['loss']
    """
    arguments, options = given_arguments(fit, locals()), EngineOptions(fused_kernels=not exact_kernels)
    if plan is not None:
        prepared_model(model, "fit")
        options, size = apply_plan(model, plan, x, batch_size)
        arguments |= {} if size is None else {"batch_size": size}
    check_policy(on_nonfinite, (None, STOP, SKIP))
    options = replace(options, stop_at_non_finite_loss=on_nonfinite == STOP, leaves_out=on_nonfinite == SKIP)
    run = partial(_fit, options=options, check_rows=check_rows)
    if isinstance(model, keras.Model) and overrides(model, "fit"):
        methods: dict[str, Callable[..., Any]] = {"fit": run, "evaluate": engine_evaluate, "predict": engine_predict}
        methods |= {name: partial(methods[name], check_rows=check_rows) for name in ("evaluate", "predict")}
        history: keras.callbacks.History = call_own_method(model, "fit", arguments, methods)
        return history
    return run(model, **arguments)


@checks_types(WorkloadError, checks_numbers=True)
def _fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Any = None,
    validation_split: float | None = 0.0,
    validation_data: Any = None,
    shuffle: bool | str | None = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    *,
    options: EngineOptions,
    check_rows: bool,
) -> keras.callbacks.History:
    """`keras.Model.fit` on the engine."""
    replicas = prepared_model(model, "fit")
    resume, others = taken_out(callbacks)
    if needs_keras_loop(model, "fit"):
        refuse_own_loop(resume, model)
        if options.leaves_out or options.stop_at_non_finite_loss:
            raise PlanError(
                f"{type(model).__name__} replaces part of Keras's training loop, which then runs, and cannot look at "
                "the loss of each step. Leave out `on_nonfinite`, or override train_step instead."
            )
        return keras.Model.fit(model, **{name: value for name, value in locals().items() if name not in _NOT_OF_KERAS})
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = private_pipelines.validation_split(
            (x, y, sample_weight), validation_split
        )
    epochs = _capped_epochs(epochs)
    resumed = None if resume is None else ResumedFit(resume, replicas)
    source = make_source(
        x,
        y,
        sample_weight,
        replicas=replicas,
        batch_size=batch_size,
        steps=steps_per_epoch,
        shuffle=shuffle,
        class_weight=class_weight,
        num_epochs=epochs - initial_epoch,
        steps_per_execution=model.steps_per_execution,
        order_seed=None if resumed is None else resumed.order_seed,
    )
    build_before_steps(model, source.batch_spec, options, always=resumed is not None)
    validation = None
    if validation_data is not None:
        validation = validation_of_fit(
            model,
            replicas,
            validation_data,
            batch_size=validation_batch_size or batch_size,
            steps=validation_steps,
            freq=validation_freq,
        )
    engine = get_engine(model, options)
    source.reset()
    try:
        with engine.checks.turned(check_rows):
            if resume is not None and resumed is not None:
                data = FitData(x, source, mode=resume.data, order_seed=resumed.order_seed)
                length = {"epochs": epochs, "initial_epoch": initial_epoch}
                return resumed.run(engine, data, others, validation, verbose=verbose, **length)
            container = make_callbacks(callbacks, engine, source, verbose=verbose, epochs=epochs)
            with only_chief_writes(model, container.callbacks, engine.replicas):
                return run_epochs(engine, source, container, validation, epochs=epochs, initial_epoch=initial_epoch)
    finally:
        source.close()
        if validation is not None:
            validation.close()


def _capped_epochs(epochs: int) -> int:
    """`epochs`, at most `keras.config.max_epochs()` (for smoke runs of any script)."""
    cap = keras.config.max_epochs()
    if cap and cap < epochs:
        warnings.warn(f"Limiting epochs to {cap}", stacklevel=4)
        return int(cap)
    return epochs
