"""`train`: a workload and a plan in, a run directory and a `TrainResult` out; here, or on workers that it starts."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfaccel.errors import ClusterError, LaunchError, PlanError, WorkloadError
from tfaccel.files import write_json
from tfaccel.hardware.hardware import Cluster
from tfaccel.launching.worker_group import WorkerGroup
from tfaccel.planning.candidates import given_plan, taken_fields
from tfaccel.planning.compile_arguments import data_after_model
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.option_checks import STOP, check_callbacks, check_choice, check_counts, check_policy, check_seed
from tfaccel.planning.own_model import DeferredItems, RebuiltModel
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import plan_key
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.run_length import get_run_epochs
from tfaccel.planning.workload import Workload
from tfaccel.processes.launched import ATTEMPT, DONE, INTERRUPTED, RETRY, resume_in_attempt
from tfaccel.remote import is_remote
from tfaccel.training.run.remote_run import run_folder
from tfaccel.training.run.result import VERBOSE, ShownRun, TrainResult, installed_versions, trivial_scores
from tfaccel.training.run.run_dir import (
    LEFT_OUT,
    RunDir,
    checked_place,
    nothing_left_if_refused,
    resume_on,
    write_example_inputs,
)
from tfaccel.training.run.run_options import (
    EXTEND_SCHEDULE,
    Run,
    StepRange,
    check_resumable,
    check_validate_on,
    config_of_run,
    plan_and_origin,
    scaling_of_run,
)
from tfaccel.training.run.stop_signals import StopSignals, grace_seconds
from tfaccel.training.run.time_limit import TimeLimit
from tfaccel.training.runtime import Runtime
from tfaccel.training.workers.rendezvous import hardware_of_worker, settings_to_agree_on

_NO_RECOMMENDATION = (
    "learning_rate_scaling needs the batch size that the learning rate is meant for, which is not known for a model "
    "and its data. Received: learning_rate_scaling={!r}. Pass tfaccel.Workload.of(build_model, x, y, batch_size=...) "
    "with that size, and a plan with the other one."
)

logger = logging.getLogger("tfaccel")

_PROGRAM = "tfaccel.training.train_program"
_RESUME = 'resume="auto" continues from the newest checkpoint.'


@data_after_model
def train(
    workload: Workload | str | Callable[..., Any] | Any,
    x: Any = None,
    y: Any = None,
    *,
    run_dir: str | os.PathLike[str],
    plan: Plan | Mapping[str, Any] | None = None,
    epochs: int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
    resume: str = "never",
    checkpoint_interval: int | None = None,
    keep_checkpoints: int = 2,
    extend_schedule: str | None = None,
    callbacks: Sequence[Any] = (),
    profile: str | None = None,
    verbose: int | str = 1,
    learning_rate_scaling: str | None = None,
    scaling_warm_up: float = 0.05,
    on_nonfinite: str = STOP,
    validate_on: str | None = None,
    engine: str | None = None,
    num_workers: int | None = None,
    engine_options: Mapping[str, Any] | None = None,
    **of: Any,
) -> TrainResult:
    """Trains your own model, or a workload, with a plan, and writes a run directory.

    `tfaccel.train(build_model, x, y, batch_size=32, epochs=5, run_dir="runs/mine")` takes the arguments of `Model.fit`
    and `Model.compile`. The run is planned for this machine, saved in a directory, and can be resumed exactly.

    The directory holds `config.json`, `plan.json`, `metrics.jsonl` (one line per epoch), `checkpoints/`,
    `tensorboard/`, `model.keras` and `result.json`, and `raw_input.json` if the workload describes its raw inputs. Only
    the chief writes files, each of them atomically.

    Args:
        workload: a function that builds a Keras model, compiled or not; a compiled Keras model, which receives the
            trained weights; or, without x and y, a `Workload`, the name of a recipe, an import path
            ("package.module:function"), or a function that returns a `Workload`.
        x, y: data for the model, as `Workload.of` takes them; compile arguments in one piece, a dictionary or a
            function, come before them: `train(build_model, compile_args, x, y, run_dir=...)`. With a `Workload`, the
            second argument may be the plan.
        run_dir: a new or empty directory, or with another `resume` than "never" one that holds the same run. Or an
            address such as s3://bucket/run: training writes to a local copy, which is sent there after each checkpoint
            (extra `storage`).
        plan: the plan to train with; None for the one that `tfaccel.find_fastest` has measured for this workload on
            this machine, or else the `default_plan`. A run that is resumed keeps its plan. In place of a plan, a
            mapping of its fields, or the fields by name: `devices=2` (GPUs, or parts of the CPU where there are none),
            `precision="bf16"` ("fp16", "fp32"), `strategy="mirrored"`; the others are chosen.
        epochs: total number of epochs; None for the workload's recommendation.
        max_seconds: how long the call may take. Some steps are timed first, and the run gets as many as fit, at most
            `epochs` if they are given: a learning rate schedule ends with them. A run that is resumed keeps its length.
            If the machine becomes slower meanwhile, training ends when the time is over, with a checkpoint, and
            `time_limit` of the result says what would have come next.
        seed: determines initial weights, dropout and the order of the data.
        resume: "never"; "auto" to continue from the newest complete checkpoint, to the same weights as without an
            interruption, or to start if there is no run; "must" to continue, or fail. A complete run is left unchanged.
            "extend" is "auto", and a run of fewer epochs goes on to `epochs`, also if it is complete: to the same
            weights as if it had had them from the start, or it is refused, as with a cosine schedule over all steps.
        extend_schedule: what becomes of the learning rate schedule of a run that "extend" makes longer. None: it must
            be the same as from the start. "continue": it goes on as it was made, mostly with its last rate. "stretch":
            from now on, it is the one of the longer run. "new": another one begins, as long as the rest.
        checkpoint_interval: optimizer steps between checkpoints; None for one after each epoch, or after several if
            epochs are so short that saving would take more than 2 % of the time.
        keep_checkpoints: number of the newest checkpoints to keep. The best one after an epoch, by `val_loss`, or by
            `loss` without validation data, is kept as well.
        callbacks: additional Keras callbacks; checkpoints include what they remember.
        profile: optimizer steps to write a trace of, such as "10:12" for steps 10 to 12, counted from 1 over the whole
            run; it is in `tensorboard/`, for TensorBoard's profiler. None for none.
        verbose: 1 shows the plan, progress and the verdict on standard error, "progress" only progress; 0 is silent.
        learning_rate_scaling: multiplies the learning rate if the plan's global batch is not the workload's recommended
            one: "linear" by the ratio of the two (the rule for SGD), "square_root" by its square root (for Adam, LAMB
            and similar optimizers). None leaves the rate as it is.
        scaling_warm_up: fraction of all steps over which a higher rate is reached, from the unscaled one; 0 for none.
        on_nonfinite: what to do when the loss or gradients become NaN or infinite. "stop" names step, cause and
            examples; "skip" leaves out the batch, as if it were not in the data; "rollback" goes back to the newest
            checkpoint, and on without the batch. Ten batches in a row, or ten rollbacks, stop the run.
        validate_on: validate beside training: a copy of the model is evaluated on this device, such as "GPU:1", or
            "CPU:0" for idle cores, while the next epoch trains. Callbacks get a score together with the model's state
            that it is of, and all ends as if training had waited. In one process, without callbacks on single batches.
        engine: what starts workers: "local" (this machine), or "ray" (Ray Train, extra `ray`). They are started again
            when one is lost, and get the model, the data and the callbacks from this process, so that these must be
            picklable, and the call must stand under `if __name__ == "__main__":`. None to train in this process, or
            with `num_workers` for "local".
        num_workers: how many workers to start.
        engine_options: options of `tfaccel launch`, by the names of its flags: `max_restarts`, `cores_per_worker`,
            `gpus_per_worker`, `grace_seconds`, `silence_seconds`; for "ray" also `address`, `storage_path`,
            `wait_seconds`, `min_workers`.
        **of: fields of a `Plan`; further arguments of `Workload.of`: `batch_size`, `validation_data`,
            `validation_split`, `sample_weight`, `class_weight`, `shuffle`, `name`; and `optimizer`, `loss`, `metrics`
            etc. if the model is not compiled. For a recipe, an import path or a function without data: its arguments.

    Returns:
        The `TrainResult`, which is also saved in `result.json`.

    Raises:
        RunDirError: if the run directory holds another run, or is in use by one.
        ClusterError: if another worker does not connect or is lost; the message names it.
        WorkloadError: for invalid epochs, seed, interval or steps to profile, a learning rate that cannot be scaled, or
            a model that is too large for this machine.
        DataError: for data that cannot be used for training, such as a generator.
        PlanError: if the plan cannot run here.
        OutOfMemoryError: if a step does not fit into memory, and the batch may not be split further. Otherwise training
            continues with half the batch per replica and twice the accumulation steps, and logs it.
        NonFiniteLossError: if the loss, a gradient or a weight becomes NaN or infinite; no file is overwritten.
        LaunchError: if workers cannot be started as `engine`, `num_workers` and `engine_options` ask, or one fails.
        RunStopped: after SIGTERM, when the steps in progress have ended and a checkpoint is saved; several workers stop
            at the same step. A second SIGTERM ends the process.
        KeyboardInterrupt: after Ctrl-C, likewise; after a second Ctrl-C at once, without saving.

    Example:
        >>> import tempfile, keras, numpy as np, tfaccel
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tfaccel.train(build_model, x, x[:, :1], optimizer="sgd", loss="mse", epochs=2, run_dir=folder,
        ...                            verbose=0)
        >>> len(result.history["loss"])
        2
    """
    started = time.perf_counter()
    group, given = WorkerGroup.of(engine, num_workers, engine_options), workload
    plan = given_plan(plan, of)
    fixed = taken_fields(of, x if isinstance(x, Plan) else plan)
    workload, plan = _what_to_train(workload, x, y, plan, of, fixed, scaling=learning_rate_scaling)
    limit = None if max_seconds is None else TimeLimit(max_seconds, started, epochs)
    epochs = get_run_epochs(workload, epochs) if limit is None else epochs
    check_callbacks(callbacks)
    check_choice("verbose", verbose, VERBOSE)
    check_choice("extend_schedule", extend_schedule, (None, *EXTEND_SCHEDULE))
    _check_options(epochs, checkpoint_interval, keep_checkpoints=keep_checkpoints, seed=seed, on_nonfinite=on_nonfinite)
    steps_to_profile, grace = None if profile is None else StepRange.of(profile), grace_seconds()
    own = workload.build_model if isinstance(workload.build_model, RebuiltModel) else None
    config: dict[str, Any] = {"seed": seed, "checkpoint_interval": checkpoint_interval}
    asked = {**config, "keep_checkpoints": keep_checkpoints, "verbose": verbose, "on_nonfinite": on_nonfinite}
    asked |= {"extend_schedule": extend_schedule, "validate_on": validate_on}
    config |= {"epochs": epochs} if limit is None else limit.config
    if group is not None:
        scales = {"learning_rate_scaling": learning_rate_scaling, "scaling_warm_up": scaling_warm_up}
        sent = {**fixed, **asked, **scales, "plan": plan, "resume": resume, "profile": profile}
        sent |= {"epochs": epochs, "max_seconds": max_seconds}
        result = train_on_workers(group, given, workload, of, run_dir=run_dir, callbacks=callbacks, arguments=sent)
        _give_back(own, Path(result.run_dir, "model.keras"))
        return result
    hardware = hardware_of_worker()
    resume, shown = resume_on(hardware.cluster, resume_in_attempt(resume)), ShownRun(verbose, hardware.cluster)
    if plan is None:
        plan, origin = plan_and_origin(hardware, workload, run_dir, resume=resume, **fixed)
        shown.plan(plan, origin)
    _refuse_training_alone(plan, hardware.cluster)
    check_validate_on(validate_on, workload, plan, limit)
    workload_key = plan_key(hardware, workload, {})
    scaling = scaling_of_run(workload, plan, learning_rate_scaling, scaling_warm_up)
    config |= config_of_run(workload, plan, scaling)
    directory = RunDir(run_dir, dict(config), resume=resume)
    complete = directory.result()
    if complete is not None:
        shown.complete(directory.path)
        _give_back(own, directory.model_file)
        return TrainResult.from_json({**complete, "run_dir": str(directory.path)})
    check_resumable(workload, directory, on_nonfinite)
    with nothing_left_if_refused(directory), directory.in_use(), contextlib.ExitStack() as stack:
        same = settings_to_agree_on(workload, config)
        runtime = Runtime(plan, seed=seed, cluster=hardware.cluster, same_on_all=same, spare=validate_on)
        stack.enter_context(runtime)
        # These modules import TensorFlow, which reads the runtime's environment.
        from tfaccel.training.run.recovery import errors_of_run_named, train_until_done

        stack.enter_context(errors_of_run_named(workload, directory, runtime))
        signals = stack.enter_context(StopSignals(grace))
        where: dict[str, Any] = {"directory": directory, "runtime": runtime, "hardware": hardware, "signals": signals}
        asked |= {"callbacks": callbacks, "scaling": scaling, "profile": steps_to_profile, "limit": limit}
        run = Run(workload=workload, epochs=config["epochs"], **where, **asked)
        plan, trained = train_until_done(run, plan)
        result = _result(run, plan, trained, started=started, workload_key=workload_key)
        directory.write_raw_input(workload.raw_input)
        directory.write_result(result.to_json())
    _give_back(own, directory.model_file)
    shown.result(result)
    return result


def _refuse_training_alone(plan: Plan, cluster: Cluster | None) -> None:
    """Raises PlanError if a launcher has started this process as one of several workers, and the plan has only one."""
    if os.environ.get(ATTEMPT) and cluster is not None and cluster.num_workers > 1 and plan.num_workers == 1:
        raise PlanError(
            f"This process is one of {cluster.num_workers} workers that `tfaccel launch` has started, but its plan "
            f"trains in one process (strategy={plan.strategy!r}): each worker would train alone. Leave out the "
            "strategy, use strategy='multi_worker_mirrored', or start one worker."
        )


def _check_options(
    epochs: Any, checkpoint_interval: Any, *, keep_checkpoints: Any, seed: Any, on_nonfinite: Any
) -> None:
    """Raises WorkloadError for an invalid value."""
    check_counts(keep_checkpoints=keep_checkpoints, **({} if epochs is None else {"epochs": epochs}))
    check_seed(seed)
    check_policy(on_nonfinite)
    if checkpoint_interval is not None:
        check_counts(checkpoint_interval=checkpoint_interval)


def _what_to_train(
    given: Any, x: Any, y: Any, plan: Plan | None, of: dict[str, Any], fixed: dict[str, Any], *, scaling: str | None
) -> tuple[Workload, Plan | None]:
    """The workload, built from a model and its data if necessary, and the plan."""
    if x is not None and not isinstance(x, Plan) and scaling is not None:
        raise WorkloadError(_NO_RECOMMENDATION.format(scaling))
    if isinstance(given, Workload | str):
        if isinstance(x, Plan) and plan is None:
            x, plan = None, x
        odd = [name for name, value in (("x", x), ("y", y)) if value is not None]
        odd += of if isinstance(given, Workload) else ()
        if odd:
            raise WorkloadError(
                f"A Workload has its own data, batch size and compile arguments. Received as well: {', '.join(odd)}."
            )
        return as_workload(given, **of), plan
    if x is None and inspect.isroutine(given):
        return as_workload(given, **of), plan
    if x is None:
        raise WorkloadError(
            "tfaccel.train takes a tfaccel.Workload; or a Keras model, or the function that builds it, together with "
            f"its data: train(build_model, x, y, run_dir=...). Received: {given!r:.200} without data."
        )
    of_plan = fixed.get("global_batch_size") if plan is None else plan.global_batch_size
    if None not in (of_plan, of.get("batch_size")) and of["batch_size"] != of_plan:
        raise WorkloadError(
            f"batch_size and the plan's global_batch_size differ. Received: batch_size={of['batch_size']}, "
            f"global_batch_size={of_plan}. Leave out batch_size."
        )
    made = Workload.of(given, x, y, **of)
    if isinstance(made.build_model, RebuiltModel):
        made.build_model.check_built()
    return made, plan


def _give_back(own: RebuiltModel | None, model_file: Path) -> None:
    """Loads the trained weights into the model that `train` was called with."""
    if own is not None and model_file.exists():
        own.take_weights(model_file)


def _result(run: Run, plan: Plan, trained: Mapping[str, Any], *, started: float, workload_key: str) -> TrainResult:
    """The result of a run that began at `started`, by the clock of `time.perf_counter`; keeps rows for exports."""
    wall_seconds, baselines, workload, directory = time.perf_counter() - started, None, run.workload, run.directory
    write_example_inputs(directory, workload, plan.global_batch_size)
    if workload.validation_data is not None and directory.writes:
        baselines = trivial_scores(workload.validation_data(plan.global_batch_size), trained["final"])
    return TrainResult(
        recipe=workload.name,
        plan=plan,
        wall_seconds=wall_seconds,
        hardware=run.hardware.to_json(),
        versions=installed_versions(),
        run_dir=str(directory.path),
        baselines=baselines,
        workload_key=workload_key,
        bad_data=None if workload.bad_data is None or not workload.bad_data.skips else workload.bad_data.to_json(),
        left_out_batches=sum(row.get(LEFT_OUT) or 0 for row in directory.rows),
        **trained,
    )


def train_on_workers(
    group: WorkerGroup,
    given: Any,
    workload: Workload,
    of: Mapping[str, Any],
    *,
    run_dir: str | os.PathLike[str],
    callbacks: Sequence[Any],
    arguments: Mapping[str, Any],
) -> TrainResult:
    """Trains a workload on workers, and waits for the result.

    Args:
        group: how many workers, and what starts them.
        given: what `train` was called with. A name is sent as such, for the workers to make the workload.
        run_dir: the run directory, which this process must see.
        callbacks: Keras callbacks, which the workers get copies of.

    Raises:
        LaunchError: if the workers cannot be started, or one fails; the message has its last words.
        ClusterError: if they ended before they were done, and may continue.
        KeyboardInterrupt: after Ctrl-C, when they have saved a checkpoint.
        PlanError: for a plan for another number of workers.
        WorkloadError: for something that cannot be sent to another process.
    """
    plan: Plan | None = arguments["plan"]
    if plan is not None and plan.num_workers != group.num_workers:
        raise PlanError(
            f"The plan is for {plan.num_workers} workers. Received: num_workers={group.num_workers}. Leave out the "
            "plan, for one that suits each worker's machine."
        )
    checked_place(run_dir, arguments["resume"])
    path = run_folder(run_dir).absolute()
    folder = path.with_name(f"{path.name}-logs")
    place = os.fspath(run_dir) if is_remote(run_dir) else path
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The folder for logs {folder} cannot be created: {error.strerror}.") from error
    task = folder / "task.json"
    content = _task(given, workload, of, callbacks, folder=folder)
    write_json(task, {**content, "arguments": {**arguments, "plan": None if plan is None else plan.to_json()}})
    events: list[str] = []

    def on_event(text: str) -> None:
        events.append(text)
        logger.info(text)

    command = [sys.executable, "-m", _PROGRAM, str(task), f"--run_dir={place}"]
    try:
        status = group.run(command, folder=folder, on_event=on_event, shows_output=bool(arguments["verbose"]))
    except LaunchError:
        if is_new and not any(folder.glob("*.log")):  # no worker has started
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if status == INTERRUPTED:
        raise KeyboardInterrupt(_RESUME)
    if status != DONE:
        last = "\n".join(events[-2:])
        if status == RETRY:
            raise ClusterError(f"{last} {_RESUME} Logs: {folder}")
        raise LaunchError(f"Training on {group.num_workers} workers failed; logs are in {folder}. {last}")
    return _read_result(run_folder(run_dir).absolute())


def _task(
    given: Any, workload: Workload, of: Mapping[str, Any], callbacks: Sequence[Any], *, folder: Path
) -> dict[str, Any]:
    """What a worker needs to know to train, as JSON; arrays are in a file beside it."""
    sent, options = (given, dict(of)) if isinstance(given, str) else (workload, {})
    origin, by_value = Origin.of((given, sent, *callbacks))
    how: dict[str, Any] = {"by_value": by_value}
    if isinstance(sent, str):
        reference = Reference.of(sent, "workload", plain_name="recipe", **how)
    else:
        reference = Reference.by_file(sent, "workload", file=folder / "workload.pickle", **how)
    none = Reference(kind="none")
    return {
        "origin": asdict(origin),
        "workload": asdict(reference),
        "options": options,
        "callbacks": asdict(Reference.by_pickle(list(callbacks), "callbacks", **how) if callbacks else none),
    }


def arguments_of_task(file: Path) -> tuple[Workload, dict[str, Any]]:
    """The workload, and the other arguments of `train`, that a worker was sent."""
    task = json.loads(file.read_text())
    origin = {**task["origin"], "import_paths": tuple(task["origin"]["import_paths"])}
    Origin(**origin).prepare()
    reference = Reference(**task["workload"])
    named = reference.kind in ("recipe", "import")
    workload = as_workload(reference.import_path() if named else reference.load(), **task["options"])
    arguments = task["arguments"]
    plan = arguments.pop("plan")
    callbacks = DeferredItems(lambda: Reference(**task["callbacks"]).load() or ())
    return workload, {**arguments, "plan": None if plan is None else Plan.from_json(plan), "callbacks": callbacks}


def _read_result(run_dir: Path) -> TrainResult:
    file = run_dir / "result.json"
    try:
        return TrainResult.from_json({**json.loads(file.read_text()), "run_dir": str(run_dir)})
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"The workers are done, but {file} cannot be read here ({error}). The run directory must be on a disk that "
            "this machine and all workers share."
        ) from error
