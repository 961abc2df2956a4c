"""Staged unfreezing: layers of later stages start later with a lower learning rate, and do not change before."""

import numpy as np
import pytest


def trained(num_steps, *, stop_after, optimizer="sgd"):
    """A model after some steps of a staged run, and its first weights, by layer."""
    import keras

    from tfaccel.training.optimizers import layer_stages, staged_optimizer
    from tfaccel.training.training_options import TrainingOptions

    dense = [keras.layers.Dense(4, name=f"dense_{i}") for i in range(4)]
    backbone = keras.Sequential([keras.Input((4,)), *dense], name="backbone")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(backbone(inputs)))
    options = TrainingOptions(
        optimizer=optimizer, learning_rate=0.01, schedule="constant", warm_up=0.0, weight_decay=0.0
    )
    staged = staged_optimizer(options, layer_stages(backbone, 2), num_steps=num_steps)
    model.compile(staged, "mse")
    before = {weight.path: weight.numpy() for weight in model.weights}
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    for _ in range(stop_after):
        model.train_on_batch(x, x.sum(axis=1, keepdims=True))
    return model, {
        path
        for path, old in before.items()
        for weight in model.weights
        if weight.path == path and not np.array_equal(old, weight.numpy())
    }


def layers_of(paths):
    return {path.split("/")[-2] for path in paths}


def test_deeper_stages_begin_later(logical_devices):
    assert layers_of(trained(20, stop_after=3)[1]) == {"head"}
    assert layers_of(trained(20, stop_after=4)[1]) == {"head", "dense_2", "dense_3"}
    assert layers_of(trained(20, stop_after=7)[1]) == {"head", "dense_0", "dense_1", "dense_2", "dense_3"}


@pytest.mark.slow
def test_deeper_stages_learn_more_slowly_and_the_model_is_saved(logical_devices, tmp_path):
    import keras

    model, _ = trained(20, stop_after=20, optimizer="adam")
    rates = sorted((float(one.learning_rate) for one in model.optimizer.optimizers), reverse=True)
    assert rates[0] > rates[1] > rates[2] > 0
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True))
    assert [len(one.optimizer.optimizers) for one in (model, loaded)] == [3, 3]
    states = [[value.numpy() for value in one.optimizer.variables] for one in (model, loaded)]
    assert all(np.array_equal(a, b) for a, b in zip(*states, strict=True))
    x = np.ones((8, 4), np.float32)
    for one in (model, loaded):  # The loaded optimizers continue where the saved ones stopped.
        one.train_on_batch(x, x.sum(axis=1, keepdims=True))
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True))


def test_without_stages_there_is_one_optimizer(logical_devices):
    from tfaccel.training.optimizers import staged_optimizer
    from tfaccel.training.training_options import TrainingOptions

    assert type(staged_optimizer(TrainingOptions(), [], num_steps=10)).__name__ == "AdamW"
