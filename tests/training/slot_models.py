"""A small model, every optimizer, and its training with slots in one place or another, for tests."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.training.fit_plan import plan_of_model

BATCH = 16
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 6)).astype("float32")  # the last batch is smaller
Y = RANDOM.integers(0, 3, (90, 1))
optimizers = keras.optimizers
OPTIMIZERS = {
    "SGD": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: optimizers.Adam(0.01),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.05),
    "clipvalue": lambda: optimizers.Adam(0.01, amsgrad=True, clipvalue=0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Lion": lambda: optimizers.Lion(0.001),
    "Muon": lambda: optimizers.Muon(0.01),
    "Ftrl": lambda: optimizers.Ftrl(0.1),
    "RMSprop": lambda: optimizers.RMSprop(0.001, momentum=0.9, centered=True),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(0.01),
    "Lars": lambda: tfaccel.optimizers.Lars(0.5, weight_decay=1e-3),
    "global_clipnorm": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "EMA": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "EMA at the end": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "accumulation": lambda: optimizers.AdamW(0.01, gradient_accumulation_steps=3),
    "loss scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01, global_clipnorm=0.1), dynamic_growth_steps=3
    ),
    "loss scale, accumulation": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01, gradient_accumulation_steps=2)
    ),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.05, 12)),
    "several optimizers": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.Adam(0.01), {"second": optimizers.SGD(0.1, momentum=0.9)})
    ),
}

BOTH = pytest.mark.parametrize("how", ["sharded", pytest.param("host", marks=pytest.mark.slow)])


def strategy_of(devices):
    names = [f"CPU:{index}" for index in devices]
    return tf.distribute.MirroredStrategy(names) if len(names) > 1 else tf.distribute.OneDeviceStrategy(names[0])


def built(make_optimizer, devices=(0, 1), *, kind=keras.Model, jit_compile=False, policy="float32", synchronized=False):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    with strategy_of(devices).scope():
        x = keras.Input((6,))
        constraint = keras.constraints.MaxNorm(1.0)
        hidden = layers.Dense(16, activation="tanh", kernel_constraint=constraint, dtype=policy, name="first")(x)
        hidden = layers.BatchNormalization(dtype=policy, synchronized=synchronized)(hidden)
        hidden = layers.Dense(12, activation="tanh", dtype=policy, name="second")(hidden)
        model = kind(x, layers.Dense(3, dtype="float32", name="third")(hidden))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make_optimizer(), loss, jit_compile=jit_compile)
    return model


def fit(model, how, *, fields=None, **options):
    options = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False, "check_rows": False, **options}
    fields = {"synchronize_batch_norm": False, **(fields or {})}
    plan = plan_of_model(model, batch_size=BATCH, optimizer_state=how, **fields)
    return tfaccel.fit(model, X, Y, plan=plan, **options).history


def state(model):
    """Weights on each replica, and slots."""
    local = model.distribute_strategy.experimental_local_results
    weights = [np.asarray(part) for weight in model.trainable_weights for part in local(weight.value)]
    return [*weights, *(variable.numpy() for variable in model.optimizer.variables)]


def assert_equal(model, other):
    for one, two in zip(state(model), state(other), strict=True):
        np.testing.assert_array_equal(one, two)


def compare(make_optimizer, how, devices=(0, 1), *, fields=None, options=None, **arguments):
    models = [built(make_optimizer, devices, **arguments) for _ in range(2)]
    each = zip(models, ("replicated", how), strict=True)
    histories = [fit(model, one, fields=fields, **(options or {})) for model, one in each]
    assert histories[0] == histories[1]
    assert_equal(*models)
    return models
