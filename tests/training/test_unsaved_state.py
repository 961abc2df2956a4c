"""What a step keeps that no checkpoint holds; how `fit` refuses it with a `Resume`: see test_resume_fit.py."""

import keras
import pytest
import tensorflow as tf

from tfaccel.training.private.private_tensorflow import unsaved_state

pytestmark = pytest.mark.usefixtures("logical_devices")

RATE = {"AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout2D"}
ARGUMENTS = {
    **dict.fromkeys(RATE, (0.5,)),
    **dict.fromkeys((f"Random{what}" for what in ("Brightness", "ColorDegeneration", "Contrast", "Hue")), (0.5,)),
    **dict.fromkeys((f"Random{what}" for what in ("Rotation", "Saturation", "Sharpness", "Zoom")), (0.5,)),
    "RandomCrop": (6, 6),
    "RandomPosterization": (4,),
    "RandomTranslation": (0.5, 0.5),
}
MIXED = {"AugMix", "CutMix", "MixUp", "RandAugment"}
LAYERS = sorted(RATE | MIXED | {name for name in dir(keras.layers) if name.startswith("Random")})

WARNS = """
import sys
import keras, numpy as np, tensorflow as tf
import tfaccel

class Noise(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x))

def build_model():
    return keras.Sequential([keras.Input((4,)), Noise(name="noise"), keras.layers.Dense(1)])

x = np.ones((16, 4), "float32")
training = {"validation_data": (x, x[:, :1]), "batch_size": 8, "epochs": 2, "verbose": 0}
tfaccel.train(build_model, x, x[:, :1], optimizer="sgd", loss="mse", run_dir=sys.argv[1], **training)
"""


def reason(function, *values, saved=()):
    traced = tf.function(function, autograph=False).get_concrete_function(*values)
    return unsaved_state(traced.graph, [variable.value for variable in saved], what="step")


@pytest.mark.parametrize("name", LAYERS)
def test_keras_layers_keep_what_is_saved(name):
    layer, images = getattr(keras.layers, name)(*ARGUMENTS.get(name, ())), tf.zeros([2, 8, 8, 3])
    layer(images, training=True)
    assert len(layer.variables) >= 1
    assert reason(lambda x: layer(x, training=True), images, saved=layer.variables) == ""
    if name not in MIXED | {"RandomColorJitter", "RandomCrop"}:  # the others draw from it in each call
        assert "changes a variable" in reason(lambda x: layer(x, training=True), images)


@pytest.mark.parametrize(
    "name", ["beta", "binomial", "categorical", "gamma", "normal", "randint", "shuffle", "uniform"]
)
def test_keras_functions_draw_from_their_seed(name):
    arguments = {
        "beta": ((2,), [1.0], [1.0]),
        "binomial": ((2,), [3.0], [0.5]),
        "categorical": ([[0.5, 0.5]], 3),
        "gamma": ((2,), [1.0]),
        "randint": ((2,), 0, 5),
        "shuffle": (tf.range(4),),
    }
    seed = keras.random.SeedGenerator(1)
    draw = getattr(keras.random, name)
    assert reason(lambda: draw(*arguments.get(name, ((2,),)), seed=seed), saved=[seed.state]) == ""


def test_gradient_of_a_sampled_distribution_draws_nothing():
    def step(alpha):
        with tf.GradientTape() as tape:
            tape.watch(alpha)
            drawn = tf.random.stateless_gamma([3], [1, 2], alpha)
        return tape.gradient(drawn, alpha)

    assert reason(step, tf.constant(2.0)) == ""


def test_variables_that_are_only_read_or_are_never_seen_do_not_count():
    scale, count = tf.Variable(2.0), tf.Variable(0, name="count")
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    assert reason(lambda x: x * scale + tf.cast(table.lookup(tf.constant([1])), tf.float32), tf.ones([1])) == ""
    within = tf.function(lambda: tf.while_loop(lambda i: i < 3, lambda i: i + count.assign_add(1), [0]))
    assert reason(within) == (
        "The step changes a variable that no checkpoint holds (count): make it with `add_weight`, or make the seed "
        "generator, layer or metric that it belongs to an attribute of the model"
    )


def test_candidate_samplers_draw():
    assert "(LogUniformCandidateSampler)" in reason(
        lambda: tf.random.log_uniform_candidate_sampler(tf.constant([[1]], tf.int64), 1, 2, True, 9)
    )


def test_train_warns_once_before_the_first_step(run_python, tmp_path):
    said = run_python(WARNS, tmp_path / "run").stderr
    warning = (
        "If this run is stopped and resumed, its results will differ from those without the stop. The {} draws random "
        "numbers from a state that no checkpoint holds (RandomStandardNormal of "
    )
    assert said.count(warning.format("training step")) == 1, said
    assert said.count(warning.format("evaluation step")) == 1
