"""Rematerialized blocks: bit-identical training, without storing the activations inside them."""

import pytest

from tfaccel.errors import WorkloadError

MODEL = """
import keras, numpy as np, tensorflow as tf, tfaccel
from keras import layers
from tfaccel.training.steps.rematerialized import rematerialize

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
ROWS = np.random.default_rng(0)
X, Y = ROWS.normal(size=(32, 6, 6, 2)).astype("float32"), ROWS.integers(0, 3, 32)

def block(shape, remat):
    inputs = keras.Input(shape)
    x = layers.BatchNormalization(momentum=0.8)(layers.Conv2D(4, 3, padding="same")(inputs))
    model = keras.Model(inputs, layers.Conv2D(4, 3, padding="same")(layers.ReLU()(x)))
    return rematerialize(model) if remat else model

def trained(fit, remat, strategy, jit_compile=False):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((6, 6, 2))
        x = block((6, 6, 4), remat)(block((6, 6, 2), remat)(inputs))
        model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=jit_compile)
    fit(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model

def difference(a, b):
    return max(np.abs(v - w).max() for v, w in zip(a.get_weights(), b.get_weights(), strict=True))
"""


@pytest.mark.slow
def test_training_stays_the_same_under_every_strategy(run_python, tmp_path):
    child = run_python(
        MODEL
        + """
import sys
none, mirrored = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
fits = {"tfaccel": tfaccel.fit, "keras": lambda model, *data, **options: model.fit(*data, **options)}
for fit, strategy, jit in [("keras", none, False), ("tfaccel", none, False), ("tfaccel", none, True),
                           ("tfaccel", mirrored, False)]:
    plain, remat = (trained(fits[fit], r, strategy, jit) for r in (False, True))
    print(difference(plain, remat))
remat.save(sys.argv[1])
loaded = keras.models.load_model(sys.argv[1])
print(np.abs(loaded.predict(X, verbose=0) - remat.predict(X, verbose=0)).max())
""",
        str(tmp_path / "model.keras"),
    )
    differences = [float(word) for word in child.stdout.split()[-5:]]
    assert max(differences) < 1e-6, differences


def test_block_is_computed_again_for_the_gradient(logical_devices):
    import keras
    import tensorflow as tf

    from tfaccel.training.steps.rematerialized import rematerialize

    class Counted(keras.layers.Layer):
        def call(self, x):
            calls.append(isinstance(x, tf.Tensor))
            return 2.0 * x

    def num_runs(remat, training):
        block = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), Counted()])
        model = keras.Sequential([keras.Input((8,)), rematerialize(block) if remat else block])
        calls.clear()
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(tf.ones((2, 8)), training=training))
        gradients = tape.gradient(total, model.trainable_variables)
        assert all(gradient is not None for gradient in gradients)
        return len(calls)

    calls: list[bool] = []
    assert [num_runs(remat, training=True) for remat in (False, True)] == [1, 2]
    assert num_runs(True, training=False) == 1


def test_masks_pass_a_block(logical_devices):
    import keras
    import numpy as np
    from keras import layers

    from tfaccel.training.steps.rematerialized import rematerialize

    def loss(remat):
        keras.utils.set_random_seed(1)
        block = keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(7, 4, mask_zero=True)])
        pooling = layers.GlobalAveragePooling1D()
        model = keras.Sequential([keras.Input((5,), dtype="int32"), rematerialize(block) if remat else block, pooling])
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).integers(0, 3, (8, 5))
        return model.fit(x, np.ones((8, 4)), verbose=0).history["loss"]

    assert loss(True) == pytest.approx(loss(False), rel=1e-6)


def test_block_with_a_state_of_its_own_is_refused(logical_devices):
    import keras

    from tfaccel.training.steps.rematerialized import rematerialize

    frozen = [keras.layers.Dense(8, trainable=False), keras.layers.BatchNormalization(trainable=False)]
    rematerialize(keras.Sequential([keras.Input((8,)), *frozen]))  # frozen weights are no state
    block = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dropout(0.5, name="drop")])
    with pytest.raises(WorkloadError, match=r"Layer 'drop' \(Dropout\) cannot be recomputed: it keeps a state"):
        rematerialize(block)
