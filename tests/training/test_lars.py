"""LARS against the formula of its paper in float64, its special cases, and training with it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import WorkloadError

RATE, MOMENTUM, TRUST, DECAY, EPSILON = 2.0, 0.9, 0.01, 0.1, 1e-9


def by_the_paper(weight, gradients, *, nesterov, adapted=True, decay=DECAY):
    """The weight after one step for each gradient: algorithm 1 of arXiv:1708.03888, with NumPy in float64."""
    weight, velocity = weight.astype("float64"), np.zeros(weight.shape)
    for gradient in gradients:
        gradient, local = gradient.astype("float64"), 1.0
        if adapted:
            of_weight, of_gradient = np.sqrt(np.sum(weight**2)), np.sqrt(np.sum(gradient**2))
            if of_weight > 0 and of_gradient > 0:
                local = TRUST * of_weight / (of_gradient + decay * of_weight + EPSILON)
            gradient = gradient + decay * weight
        velocity = MOMENTUM * velocity + RATE * local * gradient
        weight = weight - (MOMENTUM * velocity + RATE * local * gradient if nesterov else velocity)
    return weight


def lars(**options):
    chosen = {"momentum": MOMENTUM, "trust_coefficient": TRUST, "weight_decay": DECAY, "epsilon": EPSILON}
    return tfaccel.optimizers.Lars(**{"learning_rate": RATE, **chosen, **options})


def variables():
    rng = np.random.default_rng(0)
    return [
        keras.Variable(rng.normal(size=(5, 3)), name="kernel"),
        keras.Variable(rng.normal(size=(3,)), name="bias"),
        keras.Variable(rng.normal(size=(3,)), name="gamma"),
    ]


@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_are_those_of_the_paper(logical_devices, nesterov):
    optimizer, weights = lars(nesterov=nesterov), variables()
    rng = np.random.default_rng(1)
    gradients = [[rng.normal(size=weight.shape).astype("float32") for weight in weights] for _ in range(5)]
    expected = [
        by_the_paper(weight.numpy(), [step[i] for step in gradients], nesterov=nesterov, adapted=i == 0)
        for i, weight in enumerate(weights)
    ]
    for step in gradients:
        optimizer.apply([tf.constant(one) for one in step], weights)
    for weight, value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight.numpy(), value, rtol=2e-6, atol=2e-6)


def test_exclusions_are_chosen_by_path(logical_devices):
    excluded, decayed = variables()[0], variables()[0]
    gradient = np.ones((5, 3), "float32")
    start = excluded.numpy()
    lars(exclude_from_layer_adaptation=["ker.*"]).apply([gradient], [excluded])
    np.testing.assert_allclose(excluded.numpy(), start - RATE, rtol=1e-6)
    optimizer = lars()
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    optimizer.apply([gradient], [decayed])
    expected = by_the_paper(start, [gradient], nesterov=False, decay=0.0)
    np.testing.assert_allclose(decayed.numpy(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("weight", "gradient", "step"),
    [(0.0, 1.0, RATE), (1.0, 0.0, RATE * DECAY), (0.0, 0.0, 0.0)],
)
def test_the_trust_ratio_of_a_zero_norm_is_1(logical_devices, weight, gradient, step):
    variable = keras.Variable(np.full((2, 2), weight), name="kernel")
    lars(epsilon=0.0).apply([tf.fill((2, 2), gradient)], [variable])
    np.testing.assert_allclose(variable.numpy(), weight - step, rtol=1e-6)


def test_repeated_rows_of_an_embedding_are_summed_and_float16_norms_do_not_overflow(logical_devices):
    start = np.linspace(-1, 1, 12).reshape(4, 3).astype("float32")
    table = keras.Variable(start, name="embeddings")
    slices = tf.IndexedSlices(tf.ones((3, 3)), tf.constant([1, 1, 3]), tf.constant([4, 3]))
    lars().apply([slices], [table])
    dense = np.array([0, 2, 0, 1], "float32")[:, None] * np.ones((4, 3), "float32")
    np.testing.assert_allclose(table.numpy(), by_the_paper(start, [dense], nesterov=False), rtol=2e-6, atol=2e-6)
    half = keras.Variable(np.full((2, 2), 300.0), dtype="float16", name="kernel")  # 4 * 300² is beyond float16
    lars().apply([tf.ones((2, 2), tf.float16)], [half])
    expected = by_the_paper(np.full((2, 2), 300.0), [np.ones((2, 2))], nesterov=False)
    np.testing.assert_allclose(half.numpy(), expected, rtol=1e-3)


def trained(optimizer, tmp_path):
    """The losses of two epochs, between which the model is saved and loaded."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 8)).astype("float32")
    y = (x @ rng.normal(size=(8, 3))).argmax(axis=1)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = list(tfaccel.fit(model, x, y, epochs=4, verbose=0).history["loss"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    config = loaded.optimizer.get_config()
    assert config == model.optimizer.get_config()
    for one, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    losses += tfaccel.fit(loaded, x, y, epochs=4, verbose=0).history["loss"]
    return losses


def test_a_model_trains_and_goes_on_after_it_was_saved(logical_devices, tmp_path):
    schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=60, warmup_target=0.5, warmup_steps=4)
    losses = trained(lars(trust_coefficient=0.02, weight_decay=1e-4, learning_rate=schedule), tmp_path)
    assert losses[-1] < 0.35 < losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, "`momentum` of Lars must be a number from 0 to below 1. Received: momentum=1.0."),
        ({"trust_coefficient": 0}, "`trust_coefficient` of Lars must be a number above 0. Received: "),
        ({"epsilon": -1e-9}, "`epsilon` of Lars must be a number at least 0. Received: epsilon=-1e-09."),
        ({"weight_decay": -0.1}, "`weight_decay` of Lars must be a number of at least 0, or None. Received: "),
        ({"exclude_from_layer_adaptation": "bias"}, "must be a list. Received: 'bias'"),
        ({"exclude_from_layer_adaptation": ["("]}, r"holds '\(', which is not a valid regular expression: "),
    ],
)
def test_values_out_of_range_are_refused(logical_devices, options, message):
    with pytest.raises(WorkloadError, match=message):
        tfaccel.optimizers.Lars(**options)
