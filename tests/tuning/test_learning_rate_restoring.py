"""The learning-rate range test leaves the model as it was: every variable, its optimizer, and what it trains later."""

import keras
import pytest
import tensorflow as tf
from learning_rate_models import SHORT, X, Y, build_model, linear_model

import tfaccel
from tfaccel import find_learning_rate
from tfaccel.training.steps.model_parts import get_variables


def compiled(strategy, *, optimizer):
    keras.utils.set_random_seed(7)
    policy = "mixed_float16" if strategy is not None else "float32"
    keras.config.set_dtype_policy(policy)
    try:
        with (strategy or tf.distribute.get_strategy()).scope():
            model = build_model()
            model.compile(optimizer(), "mse", metrics=["mae"])
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def state(model):
    """Every value that training changes, on each replica."""
    return values(model, get_variables(model))


def values(model, variables):
    local = [model.distribute_strategy.experimental_local_results(variable.value) for variable in variables]
    return [part.numpy().tobytes() for parts in local for part in parts]


def falling():
    return keras.optimizers.schedules.PolynomialDecay(0.1, 100, 0.0)


KINDS = {
    "number": (False, lambda: keras.optimizers.Adam(0.01)),
    "schedule": (False, lambda: keras.optimizers.SGD(falling(), momentum=0.9, use_ema=True)),
    "two replicas": (True, lambda: keras.optimizers.Adam(falling(), gradient_accumulation_steps=2, clipnorm=1.0)),
    "lars": (True, lambda: tfaccel.optimizers.Lars(2.0)),
}


def made(kind):
    replicated, optimizer = KINDS[kind]
    return compiled(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if replicated else None, optimizer=optimizer)


@pytest.mark.parametrize("kind", ["number", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*KINDS][1:])])
def test_a_trained_model_is_as_before_to_the_last_bit(logical_devices, kind):
    model = made(kind)
    tfaccel.fit(model, X, Y, batch_size=16, epochs=1, verbose=0)
    before, function = state(model), model.train_function
    rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    report = find_learning_rate(model, X, Y, batch_size=16, test=SHORT)
    assert len(report.losses) == 16  # more than the three batches of an epoch
    assert report.global_batch_size == (32 if kind == "two replicas" else 16)
    assert state(model) == before
    assert model.train_function is function
    assert float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) == rate == report.learning_rate


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_trains_as_without_the_test(logical_devices, kind):
    outcomes = []
    for tests in (True, False):
        model = made(kind)
        if tests:
            find_learning_rate(model, X, Y, batch_size=16, test=SHORT)
            assert model.train_function is None
        history = tfaccel.fit(model, X, Y, batch_size=16, epochs=2, verbose=0).history
        outcomes.append((history, state(model)))
    assert outcomes[0] == outcomes[1]


def test_two_replicas_give_what_one_device_gives_and_are_as_before(logical_devices):
    keras.utils.set_random_seed(0)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = linear_model(keras.optimizers.SGD(0.1, momentum=0.9))
        model.optimizer.build(model.trainable_variables)
    before = values(model, [*model.weights, *model.optimizer.variables])
    report = find_learning_rate(model, X, Y, batch_size=16, shuffle=False, test=SHORT)
    assert values(model, [*model.weights, *model.optimizer.variables]) == before
    alone = linear_model(keras.optimizers.SGD(0.1, momentum=0.9))
    alone.set_weights(model.get_weights())
    expected = find_learning_rate(alone, X, Y, batch_size=16, shuffle=False, test=SHORT)
    assert report.losses == pytest.approx(expected.losses, rel=1e-5)
    assert report.learning_rate == pytest.approx(0.1)


def test_an_error_leaves_the_model_as_before_too(logical_devices):
    model = linear_model(keras.optimizers.Adam(0.01))
    tfaccel.fit(model, X, Y, verbose=0)
    before = state(model)

    def stop(*step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_learning_rate(model, X, Y, on_step=stop)
    assert state(model) == before
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
