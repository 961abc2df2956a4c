"""Data of unknown length: the optimizer counts the steps that were made, which `Model.fit` does not."""

import json

PROGRAM = """
import json, warnings
import keras, numpy as np, tensorflow as tf, tfaccel

x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
known = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(10)
unknown = known.filter(lambda *_: True)

def trained(fit, data):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    fit(model, data)
    return int(model.optimizer.iterations), model.get_weights()[0].tolist()

def by_keras(model, data):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        model.fit(data, epochs=3, verbose=0, shuffle=False)

def by_tfaccel(model, data):
    tfaccel.fit(model, data, epochs=3, verbose=0, shuffle=False, exact_kernels=True)

print(json.dumps([trained(by_keras, known), trained(by_tfaccel, unknown), trained(by_keras, unknown)]))
"""


def test_the_optimizer_counts_the_steps_that_were_made(run_python):
    with_length, ours, keras = json.loads(run_python(PROGRAM).stdout.splitlines()[-1])
    assert with_length[0] == 15
    assert ours == with_length
    # Keras counts the call that finds the end of the data. When it no longer does, `fit`'s docstring need not say so.
    assert keras[0] == 18
    assert keras[1] != with_length[1]
