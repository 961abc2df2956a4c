"""What docs/troubleshooting.md says that plain Keras and tfaccel do, where it can be run."""

import json

from pages import pages

LOSSES = """
import json
import keras, numpy as np, tensorflow as tf
import tfaccel

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")

def one_number(y_true, y_pred):
    return tf.reduce_mean(tf.square(y_true - y_pred))

def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", one_number)
    return model

def mirrored():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return build()

options = dict(batch_size=32, epochs=2, shuffle=False, verbose=0)
fits = {"one": build().fit, "keras": mirrored().fit}
losses = {name: fit(x, y, **options).history["loss"] for name, fit in fits.items()}
losses["tfaccel"] = tfaccel.fit(mirrored(), x, y, **options).history["loss"]
print(json.dumps(losses))
"""


def test_a_loss_of_one_number_is_n_times_as_large_in_keras_only(run_python):
    losses = json.loads(run_python(LOSSES).stdout.splitlines()[-1])
    one, of_keras, of_tfaccel = losses["one"], losses["keras"], losses["tfaccel"]
    assert abs(one[1] - of_tfaccel[1]) < 1e-5
    assert 1.9 < of_keras[0] / one[0] < 2.0
    page = pages()["docs/troubleshooting.md"]
    assert f"Keras reports a loss of {of_keras[0]:.2f} where one device has {one[0]:.2f}" in " ".join(page.split())
