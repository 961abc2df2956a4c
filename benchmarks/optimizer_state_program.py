"""Trains with slots in one place, and reports weights, bytes of slots, peak resident size and step times.

    python -m tfaccel.benchmarks.optimizer_state_program TASK

TASK is JSON: how (values of `optimizer_state`, trained in turn), settings (of `SETTINGS`), width and num_layers of the
model, num_replicas, and num_steps of an epoch. With TF_CONFIG, it is one worker, with one replica. With num_seeds and
num_epochs alone, it compares the loss curves of slots in float32 and bfloat16.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH, NUM_INPUTS, NUM_CLASSES, NUM_EPOCHS = 16, 12, 4, 4

# Name -> a function of `keras.optimizers` that returns the optimizer.
SETTINGS: dict[str, Callable[[Any], Any]] = {
    "sgd_momentum": lambda kinds: kinds.SGD(0.1, momentum=0.9),
    "adam": lambda kinds: kinds.Adam(0.01),
    "adamw_clipnorm": lambda kinds: kinds.AdamW(0.01, weight_decay=0.1, clipnorm=0.05),
    "adam_clipvalue": lambda kinds: kinds.Adam(0.01, clipvalue=0.01),
    "adam_global_clipnorm": lambda kinds: kinds.Adam(0.01, global_clipnorm=0.1),
    "adam_ema": lambda kinds: kinds.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "adam_accumulation": lambda kinds: kinds.Adam(0.01, gradient_accumulation_steps=2),
    "adam_loss_scale": lambda kinds: kinds.LossScaleOptimizer(kinds.Adam(0.01), dynamic_growth_steps=5),
    "lamb": lambda kinds: kinds.Lamb(0.01),
    "adafactor": lambda kinds: kinds.Adafactor(0.01),
    "muon": lambda kinds: kinds.Muon(0.01),
    "rmsprop_centered": lambda kinds: kinds.RMSprop(0.001, momentum=0.9, centered=True),
}


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Runs a task; returns what it has found, by setting and place of slots."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if task.get("core") is not None:
        os.sched_setaffinity(0, {task["core"]})
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        devices = [tf.config.LogicalDeviceConfiguration()] * task["num_replicas"]
        tf.config.set_logical_device_configuration(cpu, devices)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(task["num_replicas"])])
    found: dict[str, Any] = {}
    for setting in task["settings"]:
        runs = {how: _trained(strategy, task, setting, how) for how in task["how"]}
        weights = [run.pop("weights") for run in runs.values()]
        found[setting] = {"runs": runs, "difference": _difference(weights), "digest": _digest(weights[-1])}
    return found


def loss_curves(task: dict[str, Any]) -> dict[str, Any]:
    """Losses of training and validation by epoch, for each dtype of slots and seed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import keras
    import numpy as np

    import tfaccel
    from tfaccel.training.fit import plan_of_model

    found: dict[str, Any] = {}
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6000, NUM_INPUTS)).astype("float32")
    y = np.tanh(x @ generator.normal(size=(NUM_INPUTS, 16))) @ generator.normal(size=(16, NUM_CLASSES))
    labels = (y + 0.5 * generator.normal(size=y.shape)).argmax(1)
    for dtype in ("float32", "bfloat16"):
        for seed in range(task["num_seeds"]):
            keras.utils.set_random_seed(seed)
            hidden = [keras.layers.Dense(128, activation="gelu") for _ in range(2)]
            model = keras.Sequential([keras.Input((NUM_INPUTS,)), *hidden, keras.layers.Dense(NUM_CLASSES)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.AdamW(1e-3, weight_decay=0.05), loss, jit_compile=False)
            plan = plan_of_model(model, batch_size=64, optimizer_slots_dtype=dtype)
            options: dict[str, Any] = {"batch_size": 64, "epochs": task["num_epochs"], "verbose": 0}
            history = tfaccel.fit(
                model, x[:5000], labels[:5000], validation_data=(x[5000:], labels[5000:]), plan=plan, **options
            ).history
            found.setdefault(dtype, []).append({name: history[name] for name in ("loss", "val_loss")})
    return found


def _trained(strategy: Any, task: dict[str, Any], setting: str, how: str) -> dict[str, Any]:
    import keras
    import numpy as np

    import tfaccel
    from tfaccel.training.fit import plan_of_model
    from tfaccel.training.steps.replicas import Replicas
    from tfaccel.training.steps.slots import slot_bytes

    num_steps, generator = task["num_steps"], np.random.default_rng(0)
    x = generator.normal(size=(num_steps * BATCH, NUM_INPUTS)).astype("float32")
    y = generator.integers(0, NUM_CLASSES, len(x))
    with strategy.scope():
        keras.utils.set_random_seed(1)
        hidden = [keras.layers.Dense(task["width"], activation="tanh") for _ in range(task["num_layers"])]
        model = keras.Sequential([keras.Input((NUM_INPUTS,)), *hidden, keras.layers.Dense(NUM_CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(SETTINGS[setting](keras.optimizers), loss, jit_compile=False)
    ends: list[float] = []

    class Clock(keras.callbacks.Callback):
        tfaccel_windows = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            ends.append(-time.perf_counter())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends[-1] += time.perf_counter()

    fields = {"optimizer_state": how, "fused_kernels": True}
    plan = plan_of_model(model, batch_size=BATCH, **fields)
    options: dict[str, Any] = {"batch_size": BATCH, "epochs": NUM_EPOCHS, "shuffle": False, "verbose": 0}
    tfaccel.fit(model, x, y, callbacks=[Clock()], plan=plan, **options)
    local = strategy.experimental_local_results
    return {
        "peak_bytes": _peak_bytes(),
        "step_seconds": [seconds / num_steps for seconds in ends[1:]],
        "slot_bytes": max(slot_bytes(model.optimizer, Replicas(strategy)).values(), default=0),
        "weights_bytes": sum(int(np.prod(weight.shape)) * 4 for weight in model.weights),
        "weights": [np.asarray(local(weight.value)[0]) for weight in model.trainable_weights],
    }


def _difference(weights: list[list[Any]]) -> float:
    """The largest difference of a weight between the first place of slots and another one."""
    import numpy as np

    pairs = [(one, other) for others in weights[1:] for one, other in zip(weights[0], others, strict=True)]
    return max((float(np.max(np.abs(one - other))) for one, other in pairs), default=0.0)


def _digest(weights: list[Any]) -> str:
    import hashlib

    return hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found: Any = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) * 1024


if __name__ == "__main__":
    from tfaccel.processes.child import end_with_parent

    end_with_parent()
    given = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps((loss_curves if "num_seeds" in given else main)(given)) + "\n")
