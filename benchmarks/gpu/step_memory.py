"""Steps of the GPU suite about memory: running out of it, the estimate, and memory growth."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.gpu.racers import TaskRacers
from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import WORKLOAD
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.measuring.estimate_memory import estimate_of_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.processes.child import run_program

LIMIT_BYTES = 4 << 30
# On a CPU, TensorFlow's allocator for oneDNN can have a limit.
_REHEARSED_LIMIT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_MKL_ALLOC_MAX_BYTES": str(52 << 20)}
_BATCH, _REHEARSED_BATCH = 65_536, 1024
_NUM_POSITIONS, _WIDTH = 256, 32
MAX_WEIGHT_DIFFERENCE = 1e-5
_TRIAL_SECONDS = 55.0


def out_of_memory(run: StepRun) -> None:
    """Training with batches that do not fit goes on with smaller ones, to the weights of a run that began with them."""
    limit = _REHEARSED_LIMIT if run.is_rehearsal else {}
    plan = {
        **run.one_device,
        "devices": list(run.one_device["devices"]),
        "global_batch_size": _REHEARSED_BATCH if run.is_rehearsal else _BATCH,
        "gpu_memory_limit_bytes": None if run.is_rehearsal else LIMIT_BYTES,
    }
    function = f"{__name__}:trained_within_limit"
    first = in_new_process(function, {"plan": plan}, limit_seconds=_TRIAL_SECONDS, environment=limit)
    run.record("recovered", {name: value for name, value in first.items() if name != "weights"})
    steps = first["accumulation_steps"]
    run.figure("out of memory", "micro-batches that training went on with", [float(steps)], at_least=2.0)
    again = {"plan": {**plan, "accumulation_steps": steps}}
    second = in_new_process(function, again, limit_seconds=_TRIAL_SECONDS, environment=limit)
    pairs = zip(first["weights"], second["weights"], strict=True)
    difference = max(abs(one - other) for one, other in pairs)
    text = "largest difference of a weight from a run that began with them"
    run.figure("out of memory", text, [difference], at_most=MAX_WEIGHT_DIFFERENCE)


def trained_within_limit(plan: dict[str, Any]) -> dict[str, Any]:
    """Trains with `tfaccel.train`; runs in a process of its own."""
    import keras
    import numpy as np

    from tfaccel.training.train import train

    given = Plan.from_json(plan)
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
        result = train(wide_workload(given.global_batch_size), given, run_dir=f"{folder}/run", epochs=2, verbose=0)
        model = keras.models.load_model(Path(folder, "run", "model.keras"), compile=False)
    return {
        "accumulation_steps": result.plan.accumulation_steps,
        "reason": dict(result.plan.reasons).get("accumulation_steps", ""),
        "loss": result.history["loss"],
        "weights": np.concatenate([value.ravel() for value in model.get_weights()]).tolist(),
    }


def wide_workload(global_batch_size: int) -> Workload:
    """A model with few weights and large activations: 32 KiB per example and layer."""

    def build_model() -> Any:
        import keras

        layers = keras.layers
        hidden = [layers.Dense(_WIDTH, activation="relu"), layers.RepeatVector(_NUM_POSITIONS)]
        pooled = [layers.Activation("softsign"), layers.GlobalAveragePooling1D(), layers.Dense(1)]
        return keras.Sequential([keras.Input((8,)), *hidden, *pooled])

    def compile_args() -> dict[str, Any]:
        return {"optimizer": "adam", "loss": "mse"}

    def train_data(global_batch_size: int, *, seed: int, epoch: int) -> Any:
        import numpy as np
        import tensorflow as tf

        x = np.random.default_rng([seed, epoch]).normal(size=(num_examples, 8)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((x, x[:, :1] - x[:, 1:2])).batch(global_batch_size)

    num_examples = 2 * global_batch_size
    return Workload("wide", build_model, compile_args, train_data, global_batch_size=global_batch_size)


def estimate(run: StepRun, task: str) -> None:
    """The estimate without training, and the peak of some steps, in float32 and bfloat16; XLA would need less."""
    options = {"task": task, "is_tiny": run.is_rehearsal}
    with TaskRacers(run, task) as racers:
        for policy in ("float32",) if run.is_rehearsal else ("float32", "mixed_bfloat16"):
            name = f"{task}, {policy}"
            plan = racers.rules_plan(dtype_policy=policy, jit_compile=False, fused_kernels=False)
            estimated = estimate_of_plan(WORKLOAD, plan, run.hardware, options).total_bytes(plan.replica_batch_size)
            racers.add_plan(name, plan)
            child = racers.built(name)
            measured = None if child is None else child.peak_bytes
            racers.leave(name)
            run.record(name, {"estimated_bytes": estimated, "measured_bytes": measured})
            if measured:
                run.figure(name, "memory estimated / measured", [estimated / measured])


def growth(run: StepRun) -> None:
    """The card's memory that is in use while a small model trains: with memory growth, without, and with a limit."""
    before = used_bytes(run)
    run.record("before", before)
    fields: dict[str, dict[str, Any]] = {
        "with growth": {"gpu_memory_growth": True},
        "without growth": {"gpu_memory_growth": False},
        "with a limit": {"gpu_memory_growth": False, "gpu_memory_limit_bytes": LIMIT_BYTES},
    }
    with TaskRacers(run, "mlp") as racers:
        for name, chosen in fields.items():
            racers.add_plan(name, racers.rules_plan(**({} if run.is_rehearsal else chosen)))
            child = racers.built(name)
            if child is None:
                continue
            taken = used_bytes(run) - before
            run.record(name, {"taken_bytes": taken, "peak_bytes_of_tensors": child.peak_bytes})
            run.figure(f"memory {name}", "GiB of the card taken", [taken / 2**30])
            racers.leave(name)


def used_bytes(run: StepRun) -> int:
    """Memory of the first GPU that is in use, as the driver reports it; in a rehearsal, that of this process."""
    if run.is_rehearsal:
        from tfaccel.hardware.cpu import resident_bytes

        return resident_bytes()
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(run_program(query, time_limit_seconds=30.0).split()[0]) << 20
