"""Short runs of all that trains; `scripts/loss_ledger` keeps their histories and the SHA-256 of their last weights.

As a program: `ledger_cases.py CASE FOLDER` runs one case in a new folder and prints its line of the ledger. The cases
use the tests' small models and data, which must be on the path.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import own_data
import train_workload

import tfaccel
from tfaccel import Plan
from tfaccel.processes.local_cluster import run_local_cluster
from tfaccel.training.fit import plan_of_model

SECONDS = 900
OF_RECIPES = {case["name"]: case for case in own_data.CASES}


def line(history: Any, weights: Iterable[Any] = ()) -> dict[str, Any]:
    """A line of the ledger; the history is a nest of numbers."""
    digest = hashlib.sha256()
    for weight in weights:
        array = np.asarray(weight)
        digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return {"history": history, "weights": digest.hexdigest()}


def of_run(result: Any, run_dir: Path) -> dict[str, Any]:
    """The line of what `train` has written and returned."""
    model = keras.models.load_model(run_dir / "model.keras", compile=False)
    return line([result.history, result.final], model.get_weights())


def of_model(model: keras.Model, history: Any) -> dict[str, Any]:
    """The line of what `fit` has left."""
    return line(history, [*model.get_weights(), *(one.numpy() for one in model.optimizer.variables)])


def on_cpus(number: int, **fields: Any) -> Plan:
    """A plan for replicas or stages on so many logical CPUs."""
    devices = tuple(f"CPU:{index}" for index in range(number))
    strategy = "mirrored" if number > 1 and fields.get("pipeline_stages", 1) == 1 else "none"
    return Plan(**{"strategy": strategy, "devices": devices, "num_logical_cpus": 2, "global_batch_size": 8, **fields})


def ends_at(epoch: int, step: int) -> keras.callbacks.Callback:
    """A callback that interrupts a run."""
    now = [0]

    def on_batch(batch: int, logs: Any) -> None:
        if (now[0], batch) == (epoch, step):
            raise InterruptedError

    begins = lambda epoch, logs: now.__setitem__(0, epoch)  # noqa: E731
    return keras.callbacks.LambdaCallback(on_epoch_begin=begins, on_train_batch_end=on_batch)


def trained(work: Any, plan: Plan, folder: Path, *, interrupted: bool = False, **options: Any) -> dict[str, Any]:
    """Two epochs of `train`, which may be interrupted in the second one and resumed."""
    options = {"epochs": 2, "seed": 3, "verbose": 0, "run_dir": folder / "run", "checkpoint_interval": 2, **options}
    if interrupted:
        with contextlib.suppress(InterruptedError):
            tfaccel.train(work, plan, callbacks=[ends_at(1, 2)], **options)
        options["resume"] = "auto"
    return of_run(tfaccel.train(work, plan, **options), folder / "run")


def recipe(name: str, folder: Path, *, plan: Plan | None = None, **options: Any) -> dict[str, Any]:
    """A recipe on its small data."""
    case = OF_RECIPES[name]
    own_data.write_own_data(folder)
    make = import_module(f"tfaccel.recipes.{case['recipe']}").workload
    return trained(make(data_dir=folder / case["data"], **case["options"]), plan or on_cpus(1), folder, **options)


def small(plan: Plan, folder: Path, *, loss_scale: bool = False, **options: Any) -> dict[str, Any]:
    """Dropout, batch normalization, Adam with averages."""
    return trained(train_workload.workload(loss_scale=loss_scale), plan, folder, **options)


def workers(folder: Path) -> dict[str, Any]:
    """Two workers; the chief's line, which must be the other one's."""
    command = [sys.executable, __file__, "a worker", str(folder)]
    lines = [json.loads(one.stdout) for one in run_local_cluster(command, num_workers=2, time_limit_seconds=SECONDS)]
    return lines[0] if lines[0] == lines[1] else {"history": "the workers differ", "weights": ""}


def a_worker(folder: Path) -> dict[str, Any]:
    return small(train_workload.plan("workers_2"), folder)


def non_finite(placement: str, policy: str, folder: Path) -> dict[str, Any]:
    """Batches that are left out since they are not finite."""
    program = import_module("non_finite_program")
    work = program.workload(*program.arrays("bad"))
    found = program.Runs(str(folder)).run("run", work, placement, on_nonfinite=policy, checkpoint_interval=3)
    return line([found["history"], found["left_out"], found["total"]], found["weights"])


def stages_of_train(folder: Path, *, interrupted: bool) -> dict[str, Any]:
    program = import_module("stages_resume_program")
    plan = on_cpus(2, pipeline_stages=2, global_batch_size=16, accumulation_steps=4)
    work = tfaccel.Workload.of(program.build_model, program.ROWS, program.ROWS[:, :1], optimizer="adam", loss="mse")
    return trained(work, plan, folder, interrupted=interrupted)


def stages_of_fit(family: str, folder: Path) -> dict[str, Any]:
    two_cpus()
    model, _, history = import_module("stage_models").trained(family, 2, 4)
    return of_model(model, history)


def slots(how: str, optimizer: str, folder: Path, **fields: Any) -> dict[str, Any]:
    """Optimizer slots that are sharded, on the host, or in bfloat16."""
    two_cpus()
    models = import_module("slot_models")
    model = models.built(models.OPTIMIZERS[optimizer])
    return of_model(model, models.fit(model, how, fields=fields))


def host_table(updates: str, folder: Path) -> dict[str, Any]:
    """An embedding table in main memory."""
    two_cpus()
    layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(50, 4), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("adam" if updates == "rows_lazy" else "adagrad", "mse")
    ids = np.random.default_rng(0).integers(0, 50, (44, 3)).astype("int32")
    return fitted(model, ids, ids[:, :1] / 50, embedding_updates=updates, embeddings_on="host")


def two_cpus() -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.utils.set_random_seed(0)


def fitted(model: keras.Model, x: Any, y: Any, **fields: Any) -> dict[str, Any]:
    """`fit`, `evaluate` and `predict`."""
    plan = plan_of_model(model, batch_size=8, **fields)
    history = tfaccel.fit(model, x, y, batch_size=8, epochs=2, verbose=0, validation_split=0.2, plan=plan).history
    evaluated = tfaccel.evaluate(model, x, y, batch_size=8, verbose=0, return_dict=True)
    predicted = float(np.sum(tfaccel.predict(model, x, batch_size=8, verbose=0), dtype="float64"))
    return of_model(model, [history, evaluated, predicted])


def fit_images(policy: str, folder: Path, *, replicas: int = 1) -> dict[str, Any]:
    """`fit` of a small convolutional network."""
    import tensorflow as tf

    two_cpus()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if replicas > 1 else tf.distribute.get_strategy()
    keras.config.set_dtype_policy(policy)
    layers = keras.layers
    with strategy.scope():
        blocks = [layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input((8, 8, 1)), *blocks, layers.Flatten(), layers.Dense(4, dtype="float32")])
        model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    random = np.random.default_rng(0)
    return fitted(model, random.normal(size=(44, 8, 8, 1)).astype("float32"), random.integers(0, 4, 44))


def resumed_fit(folder: Path) -> dict[str, Any]:
    """`fit` that is interrupted and resumed."""
    two_cpus()
    x = np.random.default_rng(0).normal(size=(44, 4)).astype("float32")

    def run(*callbacks: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = train_workload.workload().build_model()
        model.compile("adam", "mse")
        resume = tfaccel.Resume(folder / "resume", save_freq=2)
        fit = partial(tfaccel.fit, model, x, x[:, :1], batch_size=8, epochs=2, verbose=0)
        return model, fit(callbacks=[resume, *callbacks]).history

    with contextlib.suppress(InterruptedError):
        run(ends_at(1, 2))
    return of_model(*run())


def search(space: str, algorithm: str, folder: Path) -> dict[str, Any]:
    """The scores of a search: of models that `build(hp)` makes, or of a workload's arguments."""
    spaces: dict[str, Any] = {
        "models": ("search_cases:workload", "search_cases:build"),
        "arguments": (train_workload.workload, lambda hp: {"learning_rate": hp.Float("learning_rate", 1e-3, 1e-1)}),
    }
    options = {"max_trials": 3} if algorithm == "random" else {}
    found = tfaccel.search(
        *spaces[space],
        run_dir=folder / "search",
        algorithm=algorithm,
        epochs=2,
        plan_fields={"dtype_policy": "float32", "global_batch_size": 8},
        **options,
    )
    return line([[row.status, row.hyperparameters, row.metrics] for row in found.rows])


def learning_rate(folder: Path) -> dict[str, Any]:
    """A learning-rate range test of a workload."""
    test = tfaccel.options.LearningRateTest(num_steps=16, max_learning_rate=0.01, divergence_factor=None)
    report = tfaccel.find_learning_rate(train_workload.workload(), test=test, plan=on_cpus(1))
    return line([report.learning_rates, report.losses])


def timed_steps(folder: Path) -> dict[str, Any]:
    """Windows of `TimedSteps`, whose losses plans are compared by."""
    from tfaccel.training.run.timed_steps import TimedSteps
    from tfaccel.training.runtime import Runtime

    plan = on_cpus(2)
    with (
        Runtime(plan, seed=0) as runtime,
        contextlib.closing(TimedSteps(train_workload.workload(), plan, runtime.strategy, seed=0)) as steps,
    ):
        return line([[steps.window(4).loss for _ in range(3)], steps.cost().flops, steps.num_parameters])


def estimates(folder: Path) -> dict[str, Any]:
    """Counts of a model's operations, and of a step's bytes; without the memory of the process, which is measured."""
    from tfaccel.measuring.estimate_memory import estimate_memory

    cost = tfaccel.estimates.get_cost("tabular_classification").to_json()
    memory = estimate_memory("tabular_classification", batch_sizes=(64,), global_batch_size=32).to_json()
    sizes = [batch for batch in memory["batches"] if batch["replica_batch_size"] in (32, 64)]
    return line([cost, [{name: value for name, value in one.items() if name != "total_bytes"} for one in sizes]])


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{f"recipe: {name}": partial(recipe, name) for name in OF_RECIPES},
    **{f"two replicas: {name}": partial(recipe, name, plan=on_cpus(2)) for name in ("images", "gan", "towers")},
    "augmentation on the device": partial(recipe, "images", plan=on_cpus(1, augment_on="device")),
    "resumed recipe: pairs": partial(recipe, "pairs", interrupted=True),
    "resumed recipe: images": partial(recipe, "images", interrupted=True),
    "train": partial(small, on_cpus(1)),
    "train, XLA, several steps per call": partial(small, on_cpus(1, jit_compile=True, steps_per_execution=2)),
    "train, two replicas": partial(small, on_cpus(2)),
    "train, two workers": workers,
    "resumed, mixed_float16, accumulation": partial(
        small,
        on_cpus(2, accumulation_steps=2, dtype_policy="mixed_float16"),
        loss_scale=True,
        interrupted=True,
    ),
    "skipped batches": partial(non_finite, "none", "skip"),
    "skipped batches, two replicas": partial(non_finite, "mirrored_2", "skip"),
    "rolled back": partial(non_finite, "none", "rollback"),
    "stages of train": partial(stages_of_train, interrupted=False),
    "resumed stages": partial(stages_of_train, interrupted=True),
    "stages of fit": partial(stages_of_fit, "lstm"),
    "sharded slots": partial(slots, "sharded", "AdamW"),
    "slots on the host": partial(slots, "host", "Adam"),
    "slots in bfloat16": partial(slots, "replicated", "Adam", optimizer_slots_dtype="bfloat16"),
    "table on the host": partial(host_table, "rows"),
    "table on the host, lazy": partial(host_table, "rows_lazy"),
    "fit": partial(fit_images, "float32"),
    "fit, mixed_bfloat16": partial(fit_images, "mixed_bfloat16"),
    "fit, two replicas": partial(fit_images, "float32", replicas=2),
    "resumed fit": resumed_fit,
    "search of models": partial(search, "models", "random"),
    "search of arguments": partial(search, "arguments", "random"),
    "hyperband": partial(search, "models", "hyperband"),
    "learning-rate range test": learning_rate,
    "timed steps": timed_steps,
    "estimates": estimates,
}


def main(name: str, folder: str) -> None:
    """Prints a case's line."""
    case = a_worker if name == "a worker" else CASES[name]
    print(json.dumps(case(Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
