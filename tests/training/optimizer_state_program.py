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
from tfaccel.training.private.private_slots import AbsentSlot
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slots import slot_bytes

BATCH = 12
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(44, 6)).astype("float32")
Y = RANDOM.integers(0, 3, (44, 1))
optimizers = keras.optimizers
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "Adam": lambda: optimizers.Adam(0.01),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.05),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.001, momentum=0.9, centered=True),
    "global_clipnorm": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "EMA": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01), dynamic_growth_steps=3),
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


def value(variable: keras.Variable) -> Any:
    """A variable's value on this worker; None of a slot that another one holds."""
    stored = variable.value if isinstance(tf_variable(variable), AbsentSlot) else tf_variable(variable)
    stored = getattr(stored, "values", [stored])[0]
    if isinstance(stored, AbsentSlot) and stored.copy is None:
        return None
    return np.asarray(stored.numpy())


def difference(model: keras.Model, other: keras.Model) -> float:
    """The largest difference of a weight, or of a slot that is here."""
    each = [[*one.trainable_weights, *one.optimizer.variables] for one in (model, other)]
    pairs = [(value(one), value(two)) for one, two in zip(*each, strict=True)]
    return max(float(np.max(np.abs(a - b))) for a, b in pairs if a is not None and b is not None)


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
    return sorted({re.sub(r"'adam[^']*'", "NAME", message) for message in found})


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
