"""Training with Keras's JAX backend, for TPUs without a working TensorFlow: `Model.fit` on a workload.

It does not use tfaccel's engine, and writes no checkpoints. The data still comes through `tf.data`. The weights of a
model that is too large for one device can be divided among several: see `tfaccel.extras.tpu.model_parallel`.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

from tfaccel.files import whole_file
from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import compile_arguments, get_run_epochs
from tfaccel.planning.workload import Workload
from tfaccel.training.run.result import TrainResult, installed_versions
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.runtime import JaxRuntime


def train_on_jax(
    workload: Workload,
    plan: Plan,
    *,
    run_dir: str | os.PathLike[str],
    epochs: int | None = None,
    seed: int = 0,
    resume: str = "never",
    verbose: int = 1,
) -> TrainResult:
    """Trains a workload with `Model.fit` on Keras's JAX backend: on one device, or in a `model_parallel` block.

    Writes a run directory like `tfaccel.train`, but without checkpoints: an interrupted run starts over.

    Args:
        workload: the workload to train.
        plan: only its `global_batch_size` and `dtype_policy` are used.
        run_dir: a new or empty directory, or with `resume="auto"` one that holds the same run.
        epochs: total number of epochs; None for the workload's recommendation.
        seed: seed of the initial weights, dropout and the order of the data.
        resume: "never", or "auto" to return the result of a run that is already complete.
        verbose: see `Model.fit`.

    Raises:
        PlanError: if Keras uses another backend, or the batches or layouts do not fit the devices of `model_parallel`.
        RunDirError: if the run directory holds a different run.
    """
    started = time.perf_counter()
    epochs = get_run_epochs(workload, epochs)
    config = {
        "recipe": workload.name,
        "options": dict(workload.options),
        "epochs": epochs,
        "seed": seed,
        "backend": "jax",
        "global_batch_size": plan.global_batch_size,
        "dtype_policy": plan.dtype_policy,
    }
    directory = RunDir(run_dir, config, resume=resume)
    complete = directory.result()
    if complete is not None:
        return TrainResult.from_json({**complete, "run_dir": str(directory.path)})
    with JaxRuntime(dtype_policy=plan.dtype_policy, seed=seed):
        fields = _trained(workload, plan, directory, epochs=epochs, seed=seed, verbose=verbose)
    result = TrainResult(
        recipe=workload.name,
        plan=plan,
        **fields,
        wall_seconds=time.perf_counter() - started,
        hardware=detect_hardware().to_json(),
        versions=installed_versions(),
        run_dir=str(directory.path),
    )
    directory.write_result(result.to_json())
    return result


def _trained(
    workload: Workload, plan: Plan, directory: RunDir, *, epochs: int, seed: int, verbose: int
) -> dict[str, Any]:
    """Trains, evaluates and saves; returns fields of the result."""
    from tfaccel.extras.tpu.model_parallel import check_shards
    from tfaccel.training.run.train_callbacks import MetricLines, StepTimes

    size = plan.global_batch_size
    model = workload.build_model()
    validation = workload.validation_data(size) if workload.validation_data is not None else None
    check_shards(model, validation, global_batch_size=size)
    epoch = workload.train_data(size, seed=seed, epoch=0)
    length = int(epoch.cardinality())
    num_steps = length if length >= 0 else sum(1 for _ in epoch)  # counts if the cardinality is unknown
    model.compile(**compile_arguments(workload, num_steps=epochs * num_steps))
    directory.start(plan.to_json())
    times, own = StepTimes(), workload.callbacks() if workload.callbacks is not None else ()
    model.fit(
        _batches(workload, size, seed=seed, epochs=epochs),
        steps_per_epoch=num_steps,
        epochs=epochs,
        shuffle=False,
        validation_data=validation,
        verbose=verbose,
        callbacks=[*own, times, MetricLines(directory, num_steps)],
    )
    history = directory.history()
    final = {name: values[-1] for name, values in history.items()}
    if validation is not None:
        final = {name: float(v) for name, v in model.evaluate(validation, verbose=0, return_dict=True).items()}
    directory.check_held()
    with whole_file(directory.model_file) as temporary:
        model.save(temporary)
    return {
        "history": history,
        "final": final,
        "examples_per_second": times.steps_per_second() * size,
        "step_seconds": times.step_seconds(),
        "first_step_seconds": times.first_seconds,
    }


def _batches(workload: Workload, global_batch_size: int, *, seed: int, epochs: int) -> Iterator[Any]:
    """The batches of all epochs, as NumPy arrays."""
    for epoch in range(epochs):
        yield from workload.train_data(global_batch_size, seed=seed, epoch=epoch).as_numpy_iterator()
