"""One of two workers that train models with replicated and with sharded slots, and print how much they differ."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfaccel
from tfaccel.errors import PlanError
from tfaccel.training.fit_plan import plan_of_model
from tfaccel.training.private.private_api import tf_variable
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slot_places import slot_bytes

BATCH = 12
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(44, 6)).astype("float32")
Y = RANDOM.integers(0, 3, (44, 1))
O = keras.optimizers
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: O.SGD(0.1, momentum=0.9),
    "Adam": lambda: O.Adam(0.01),
    "AdamW": lambda: O.AdamW(0.01, weight_decay=0.1, clipnorm=0.05),
    "Lamb": lambda: O.Lamb(0.01),
    "Adafactor": lambda: O.Adafactor(0.01),
    "Muon": lambda: O.Muon(0.01),
    "Nadam": lambda: O.Nadam(0.01),
    "RMSprop": lambda: O.RMSprop(0.001, momentum=0.9, centered=True),
    "global_clipnorm": lambda: O.Adam(0.01, global_clipnorm=0.1),
    "EMA": lambda: O.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "accumulation": lambda: O.Adam(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda: O.LossScaleOptimizer(O.Adam(0.01), dynamic_growth_steps=3),
}


def built(strategy: Any, name: str) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        # The kernel of the second layer travels in several pieces.
        layers = [keras.layers.Dense(size, activation="tanh") for size in (1100, 1101, 3)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(OPTIMIZERS[name](), loss, jit_compile=False)
    return model


def fit(model: keras.Model, how: str, epochs: int = 2, **options: Any) -> None:
    plan = plan_of_model(model, batch_size=BATCH, optimizer_state=how)
    tfaccel.fit(
        model, X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, check_rows=False, plan=plan, **options
    )


def state(model: keras.Model) -> list[np.ndarray]:
    local = model.distribute_strategy.experimental_local_results
    weights = [np.asarray(local(tf_variable(weight))[0]) for weight in model.trainable_weights]
    return [*weights, *(np.asarray(slot.numpy()) for slot in model.optimizer.variables)]


def difference(model: keras.Model, other: keras.Model) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(state(model), state(other), strict=True))


def messages(model: keras.Model) -> list[str]:
    """What a worker is told that reads or assigns the slots of another one while they are away."""
    found = []

    class Reads(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            for slot in model.optimizer.variables:
                try:
                    slot.numpy()
                except PlanError as error:
                    found.append(str(error))
                try:
                    slot.assign(np.zeros(slot.shape, slot.dtype))
                except PlanError as error:
                    found.append(str(error))

    fit(model, "sharded", 1, callbacks=[Reads()])
    return sorted({re.sub(r"'adam/.*?'", "NAME", message) for message in found})


def main(folder: str, *names: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    replicas = Replicas(strategy)
    found: dict[str, Any] = {"differences": {}}
    for name in names:
        models = {how: built(strategy, name) for how in ("replicated", "sharded")}
        for how, model in models.items():
            fit(model, how)
        found["differences"][name] = difference(*models.values())
    found["bytes"] = [sum(slot_bytes(model.optimizer, replicas).values()) for model in models.values()]
    if replicas.is_chief:
        models["sharded"].save(Path(folder, "model.keras"))
        loaded = keras.models.load_model(Path(folder, "model.keras"))
        slots = [[slot.numpy() for slot in one.optimizer.variables] for one in (loaded, models["replicated"])]
        found["saved"] = max(float(np.max(np.abs(a - b))) for a, b in zip(*slots, strict=True))
    for epochs, how in ((1, "sharded"), (3, "replicated"), (4, "sharded")):
        resumed = built(strategy, names[-1])
        callbacks = [tfaccel.Resume(Path(folder, f"run_{replicas.worker_index}"))]
        fit(resumed, how, epochs, callbacks=callbacks)
    whole = built(strategy, names[-1])
    fit(whole, "replicated", 4)
    found["resumed"] = difference(whole, resumed)
    found["messages"] = messages(resumed)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
