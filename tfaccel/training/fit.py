"""`tfaccel.fit`: `Model.fit`, correct and fast under every strategy; and what of a plan it applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data import private_pipelines
from tfaccel.data.private_pipelines import get_batch_size
from tfaccel.errors import DataError, PlanError, RunDirError, WorkloadError, warn_user
from tfaccel.planning.option_checks import SKIP, STOP, check_policy
from tfaccel.planning.plan import Plan
from tfaccel.training.epochs import Span, run_epochs, validation_of_fit
from tfaccel.training.evaluate import make_callbacks
from tfaccel.training.front import make_source, on_engine, prepared_model
from tfaccel.training.run.resume import FitData, Resume, ResumedFit
from tfaccel.training.run.session import engine_options
from tfaccel.training.steps.batch_statistics import synchronize_batch_norm
from tfaccel.training.steps.engine import EngineOptions, build_before_steps, get_engine
from tfaccel.training.steps.model_parts import inner_optimizer
from tfaccel.training.steps.replicas import Replicas, short_name
from tfaccel.training.workers.lost_worker import only_chief_writes

_POLICIES = (None, STOP, SKIP)

_STRATEGIES = {
    "one_device": tf.distribute.OneDeviceStrategy,
    "multi_worker_mirrored": tf.distribute.MultiWorkerMirroredStrategy,
    "mirrored": tf.distribute.MirroredStrategy,
    "tpu": tf.distribute.TPUStrategy,
}


def _settled(model: keras.Model, given: dict[str, Any], in_keras_loop: bool) -> None:
    """Applies the plan where the engine may not make the batches: in a model's own `fit`, or in Keras's loop."""
    if given.get("plan") is not None:
        prepared_model(model, "fit")
        size = apply_plan(model, given["plan"], given.get("x"), given.get("batch_size"))[1]
        given |= {} if size is None else {"batch_size": size}
    check_policy(given.get("on_nonfinite"), _POLICIES)
    if not in_keras_loop:
        return
    if _taken_out(given.get("callbacks"))[0] is not None:
        raise RunDirError(
            f"{type(model).__name__} overrides make_train_function, so that Keras's own loop trains it, which cannot "
            "continue within its data: tfaccel.Resume is not possible. Override train_step instead."
        )
    if given.get("on_nonfinite") is not None:
        raise PlanError(
            f"{type(model).__name__} replaces part of Keras's training loop, which then runs, and cannot look at the "
            "loss of each step. Leave out `on_nonfinite`, or override train_step instead."
        )


@on_engine(settle=_settled)
def fit(
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
    `ScheduleFreeAdamW` begin as zeros, and its first step discards the weights. A `tf.distribute.DistributedDataset` is
    refused: pass the `tf.data.Dataset` that it was made from.

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
            `NonFiniteLossError` at that step (on a GPU, up to seven more may have run); "skip" leaves out batches
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
    options = EngineOptions(fused_kernels=not exact_kernels)
    if plan is not None:
        options, batch_size = apply_plan(model, plan, x, batch_size)
    check_policy(on_nonfinite, _POLICIES)
    options = replace(options, stop_at_non_finite_loss=on_nonfinite == STOP, leaves_out=on_nonfinite == SKIP)
    replicas, (resume, others) = Replicas(model.distribute_strategy), _taken_out(callbacks)
    if validation_split and validation_data is None:
        if not 0 < validation_split < 1:
            raise DataError(f"`validation_split` must be a number between 0 and 1. Received: {validation_split}.")
        arrays = (x, y, sample_weight)
        (x, y, sample_weight), validation_data = private_pipelines.validation_split(arrays, validation_split)
    cap = keras.config.max_epochs()  # for smoke runs of any script
    if cap and cap < epochs:
        warn_user(f"Limiting epochs to {cap}")
        epochs = int(cap)
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
        size = validation_batch_size or batch_size
        validation = validation_of_fit(
            model, replicas, validation_data, batch_size=size, steps=validation_steps, freq=validation_freq
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
                return run_epochs(engine, source, container, validation, Span(epochs, initial_epoch))
    finally:
        source.close()
        if validation is not None:
            validation.close()


def _taken_out(callbacks: Any) -> tuple[Resume | None, list[keras.callbacks.Callback]]:
    """The `Resume` among the callbacks of `fit`, if there is one, and the others."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if any(isinstance(one, Resume) for one in callbacks.callbacks):
            raise WorkloadError("tfaccel.Resume must be given in a list of callbacks. Received: a CallbackList.")
        return None, []
    every = [one for one in keras.tree.flatten(callbacks) if one is not None]
    found = [one for one in every if isinstance(one, Resume)]
    others = [one for one in every if not isinstance(one, Resume)]
    if len(found) > 1:
        places = ", ".join(str(one.directory) for one in found)
        raise WorkloadError(f"`fit` takes one tfaccel.Resume. Received: {len(found)}, for {places}.")
    if found and any(isinstance(one, keras.callbacks.BackupAndRestore) for one in others):
        raise WorkloadError(
            "tfaccel.Resume and BackupAndRestore both restore the training state. Leave out BackupAndRestore."
        )
    return (found[0] if found else None), others


def plan_of_model(model: keras.Model, *, batch_size: int, **fields: Any) -> Plan:
    """The plan that a compiled model was built for, with the given fields replaced.

    Args:
        batch_size: number of examples in a batch over all replicas; the optimizer may accumulate several batches.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> plan_of_model(model, batch_size=8, sum_duplicate_indices=True).strategy
        'none'
    """
    replicas = Replicas(model.distribute_strategy)
    default = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    devices = tuple(map(short_name, filter(None, replicas.devices))) or (default,)
    accumulation = _accumulation_steps(model)
    given: dict[str, Any] = {
        "strategy": _get_strategy(replicas),
        "devices": devices,
        "num_workers": replicas.num_workers,
        "dtype_policy": model.dtype_policy.name,
        "jit_compile": bool(model.jit_compile),
        "global_batch_size": batch_size * accumulation,
        "accumulation_steps": accumulation,
    }
    if devices[0].startswith("CPU"):
        given["num_logical_cpus"] = len(tf.config.list_logical_devices("CPU"))
    return Plan(**{**given, **fields})


def apply_plan(model: keras.Model, plan: Plan, x: Any, batch_size: int | None) -> tuple[EngineOptions, int | None]:
    """Applies a plan to a compiled model.

    Args:
        plan: the plan. Its threads, memory and data pipeline apply to `tfaccel.train` only, and have no effect here.

    Returns:
        The engine's options, and the batch size.
    """
    replicas = Replicas(model.distribute_strategy)
    is_dataset = isinstance(x, tf.data.Dataset)
    micro_batch = plan.global_batch_size // plan.accumulation_steps
    there = {
        "strategy": (plan.strategy, _get_strategy(replicas)),
        "replicas": (plan.num_replicas, replicas.num_replicas),
        "dtype_policy": (plan.dtype_policy, model.dtype_policy.name),
        "accumulation_steps": (plan.accumulation_steps, _accumulation_steps(model)),
        "batch_size": (micro_batch, (get_batch_size(x) if is_dataset else batch_size) or micro_batch),
        "augment_on": (plan.augment_on, "host"),
    }
    odd = [f"{name} is {mine} in the plan and {found} here" for name, (mine, found) in there.items() if mine != found]
    if odd:
        raise PlanError(
            f"The plan does not match this model, which is already built and compiled: {'; '.join(odd)}. Build the "
            "model under the plan (`with tfaccel.Runtime(plan) as runtime, runtime.strategy.scope(): ...`), or change "
            "the plan."
        )
    if plan.synchronize_batch_norm:
        synchronize_batch_norm(model)
    if model.jit_compile != plan.jit_compile:
        model.jit_compile = plan.jit_compile
        model.train_function = None  # otherwise Keras keeps using the old graph
    if plan.steps_per_execution is not None:
        model.steps_per_execution = plan.steps_per_execution * plan.accumulation_steps
    devices = plan.devices if plan.devices_per_replica > 1 else ()  # as this process numbers them
    as_keras: dict[str, Any] = {"batches_per_step": 1, "times_input": False, "stop_at_non_finite_loss": False}
    options = replace(engine_options(plan), stage_devices=devices, **as_keras)
    takes_size = not is_dataset and not isinstance(x, keras.utils.PyDataset) and not hasattr(x, "__next__")
    return options, micro_batch if takes_size else batch_size


def _accumulation_steps(model: keras.Model) -> int:
    """Batches per optimizer step of a compiled model."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(inner_optimizer(optimizer), "gradient_accumulation_steps", None) or 1


def _get_strategy(replicas: Replicas) -> str:
    """The name that plans use for the strategy."""
    if replicas.is_default:
        return "none"
    kinds = (name for name, kind in _STRATEGIES.items() if isinstance(replicas.strategy, kind))
    return next(kinds, type(replicas.strategy).__name__)
