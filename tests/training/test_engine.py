"""Several replicas, for any model: dropout masks, moving statistics, order of rows, several strategies, errors."""

import json

import pytest

CODE = """
import gc, json, sys, warnings
import keras, numpy as np, tensorflow as tf, tfaccel
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.replica_state import seed_variables

split = [tf.config.LogicalDeviceConfiguration()] * 3
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], split)
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # it takes longer than these graphs run
X = np.random.default_rng(0).normal(size=(22, 4)).astype("float32")
Y = X[:, :1]
found = {}

def mirrored(n):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])

def parts(model, variable):
    replicas = Replicas(model.distribute_strategy)
    return [replicas.components([variable], r)[0].numpy().tolist() for r in range(len(replicas.devices))]

class Mask(keras.layers.Layer):
    '''Stores the last mask drawn by its replica, as integers, since float weights are averaged over replicas.'''
    def build(self, shape):
        self.dropout = keras.layers.Dropout(0.5)
        self.last = self.add_weight(shape=(4,), dtype="int32", trainable=False, initializer="zeros")
    def call(self, inputs, training=False):
        if not training:
            return inputs
        mask = self.dropout(keras.ops.ones_like(inputs[:1]), training=True)[0]
        self.last.assign(keras.ops.cast(mask * 100, "int32"))
        return inputs * mask

def masks_of_a_run(strategy, seed):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        mask = Mask()
        model = keras.Sequential([keras.Input((4,)), mask, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    drawn = []
    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            drawn.append(parts(model, mask.last))
    tfaccel.fit(model, X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False, callbacks=[Keep()])
    return drawn

two = mirrored(2)
first, again, other = (masks_of_a_run(two, seed) for seed in (1, 1, 2))
found["masks"] = [sum(a != b for a, b in first), len(first), first == again, first == other]

with mirrored(2).scope():
    norm = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), norm, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
start = parts(model, norm.moving_mean)
statistics = []
def note(*_, logs=None):
    statistics.append([parts(model, v) for v in (norm.moving_mean, norm.moving_variance)])
hook = keras.callbacks.LambdaCallback(on_epoch_end=note, on_train_batch_end=note)
tfaccel.fit(model, X[:17], Y[:17], batch_size=8, epochs=2, verbose=0, callbacks=[hook])  # the last replica gets no row
note()
tfaccel.evaluate(model, X, Y, verbose=0)
note()
before = tfaccel.predict(model, X, batch_size=7, verbose=0)
note()
found["statistics"] = [all(a == b for pair in statistics for a, b in pair), statistics[-1][0] != start,
                       bool(np.isfinite(statistics[-1]).all()), statistics[-1] == statistics[-3]]

class Late(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm, self.dense = keras.layers.BatchNormalization(), keras.layers.Dense(1)
    def call(self, inputs, training=False):
        return self.dense(self.norm(inputs, training=training))
with mirrored(2).scope():
    late = Late()
    late.compile("sgd", "mse")
tfaccel.predict(late, X, verbose=0)  # builds it
tfaccel.fit(late, X, Y, batch_size=8, verbose=0)
found["built by predict"] = [a == b for a, b in [parts(late, late.norm.moving_mean)]]

def order_of_a_run(seed, **options):
    '''The rows of each batch in two epochs, as bit masks that a metric computes.'''
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    class Sum(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="rows")
            self.total = self.add_variable((), "zeros")
        def update_state(self, y, p, sample_weight=None):
            self.total.assign(keras.ops.sum(keras.ops.power(2.0, y)))
        def result(self):
            return self.total
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Sum()])
    seen = []
    hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: seen.append(int(logs["rows"])))
    rows = np.arange(12, dtype="float32")[:, None]
    tfaccel.fit(model, rows, rows, batch_size=4, epochs=2, verbose=0, callbacks=[hook], **options)
    return seen

one, same, different = order_of_a_run(1), order_of_a_run(1), order_of_a_run(2)
in_order = [0b1111, 0b11110000, 0b111100000000] * 2
found["order"] = [sum(one) == 2 * 0b111111111111, one == same, one == different, one[:3] == one[3:], one == in_order,
                  order_of_a_run(1, shuffle=False) == in_order, order_of_a_run(1, shuffle="batch") == in_order]

def trained(n):
    keras.utils.set_random_seed(1)
    with mirrored(n).scope():  # a strategy object of its own
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(n + 2), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return tfaccel.fit(model, X, Y, batch_size=8, verbose=0).history["loss"][0]
found["strategies"] = [trained(n) > 0 for n in (2, 3, 2, 3)]

keras.utils.set_random_seed(1)
inputs = keras.Input((3,))
with mirrored(2).scope():
    layers = [keras.layers.Embedding(9, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    model.compile("sgd", "mse")
words = tf.data.Dataset.from_tensor_slices((np.arange(30).reshape(10, 3) % 9, Y[:10])).batch(4)
tfaccel.fit(model, words, verbose=0, shuffle=False)  # the windows' step time is known now
history = tfaccel.fit(model, words, epochs=3, verbose=0, shuffle=False)
found["slices of other length in one call"] = len(history.history["loss"])

def error(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

bare = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
compiled = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
compiled.compile("sgd", "mse")
untrainable = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
untrainable.compile(None, "mse")
data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
distributed = two.experimental_distribute_dataset(data)
found["errors"] = [
    error(lambda: tfaccel.fit(bare, X, Y)),
    error(lambda: tfaccel.evaluate(bare, X, Y)),
    error(lambda: tfaccel.fit("model", X, Y)),
    error(lambda: tfaccel.predict(X, X)),
    error(lambda: tfaccel.fit(compiled, distributed)),
    error(lambda: tfaccel.fit(compiled, X, Y, verbose=0, validation_data=distributed)),
    error(lambda: tfaccel.fit(compiled, X, Y, verbose=0, validation_data=(X, Y), validation_freq="2")),
    error(lambda: tfaccel.predict(compiled, X[:0], verbose=0)),
    error(lambda: tfaccel.fit(untrainable, X, Y, verbose=0)),
]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    tfaccel.fit(compiled, data.take(0), verbose=0, shuffle=False)
found["warning"] = [str(w.message) for w in caught]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(run_python):
    return json.loads(run_python(CODE).stdout.splitlines()[-1])


def test_masks_differ_between_replicas_and_are_the_same_in_every_run(found):
    num_different, num_steps, same_seed, other_seed = found["masks"]
    assert num_steps == 6
    assert num_different >= 4  # masks of four units agree by chance in 1 of 16 steps
    assert same_seed
    assert not other_seed


def test_moving_statistics_are_equal_on_all_replicas(found):
    equal, moved, finite, unchanged_by_evaluation = found["statistics"]
    assert equal
    assert moved
    assert finite
    assert unchanged_by_evaluation


def test_moving_statistics_of_a_model_that_predict_built(found):
    assert found["built by predict"] == [True]


def test_order_follows_from_the_seed(found):
    all_rows, same_seed, other_seed, same_epochs, in_order, unshuffled, inside_batches = found["order"]
    assert all_rows
    assert same_seed
    assert not other_seed
    assert same_epochs  # as with Keras, once a seed is set
    assert not in_order
    assert unshuffled
    assert inside_batches


def test_strategies_of_one_process_do_not_disturb_each_other(found):
    assert found["strategies"] == [True] * 4


KERAS_FIRST = """
import keras, numpy as np, tensorflow as tf, tfaccel
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
for fit in (keras.Model.fit, tfaccel.fit):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("adagrad", "mse")
    fit(model, np.ones((12, 3)), np.ones((12, 1)), batch_size=4, verbose=0)
"""


def test_a_strategy_of_keras_alone_does_not_disturb_the_first_of_tfaccel(run_python):
    run_python(KERAS_FIRST)


def test_sparse_gradients_may_change_their_length_from_step_to_step(found):
    assert found["slices of other length in one call"] == 3


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (0, "ValueError: The model is not compiled. Call `model.compile(...)` before `tfaccel.fit(model, ...)`."),
        (1, "ValueError: The model is not compiled. Call `model.compile(...)` before `tfaccel.evaluate(model, ...)`."),
        (2, "TypeError: tfaccel.fit expects a Keras 3 model (keras.Model) first. Received: 'model' of <class 'str'>."),
        (3, "TypeError: tfaccel.predict expects a Keras 3 model (keras.Model) first."),
        (4, "DataError: Received a DistributedDataset. Pass the tf.data.Dataset of global batches"),
        (5, "DataError: Received a DistributedDataset. Pass the tf.data.Dataset of global batches"),
        (6, "WorkloadError: `validation_freq` must be a whole number, or a list. Received: '2'."),
        (7, "ValueError: Received data without any batches. `predict` expects at least one row."),
        (8, "ValueError: The model was compiled with optimizer=None and cannot be trained. Set an optimizer"),
    ],
)
def test_errors_say_what_was_received(found, index, text):
    assert found["errors"][index].startswith(text)


def test_data_without_a_batch_is_warned_of(found):
    assert found["warning"] == ["The data contained no batches, so nothing was trained."]
