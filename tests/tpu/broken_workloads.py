"""Workloads with one fault each, as `tfaccel doctor --tpu_ready` must find it."""

import keras
import numpy as np
import tensorflow as tf

from tfaccel.planning.workload import Workload

NUM_ROWS, NUM_FEATURES = 64, 16


class Applied(keras.layers.Layer):
    """A layer that applies a function."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


def of_layer(name, function, **options):
    """A workload whose model has the function as its layer "faulty"."""

    def build_model():
        inputs = keras.Input((NUM_FEATURES,))
        faulty = Applied(function, name="faulty", **options)(keras.layers.Dense(NUM_FEATURES, name="first")(inputs))
        return keras.Model(inputs, keras.layers.Dense(1, name="last")(faulty))

    return of_parts(name, build_model)


def of_parts(name, build_model, *, change_data=None, global_batch_size=16, **compile_args):
    def train_data(batch_size, *, seed, epoch):
        features = np.random.default_rng([seed, epoch]).normal(size=(NUM_ROWS, NUM_FEATURES)).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((features, features[:, :1]))
        return change_data(dataset) if change_data else dataset.batch(batch_size, drop_remainder=True)

    def compiled():
        return {"optimizer": keras.optimizers.Adam(), "loss": "mse", **compile_args}

    return Workload(name, build_model, compiled, train_data, global_batch_size=global_batch_size)


def dense_model():
    return keras.Sequential([keras.Input((NUM_FEATURES,)), keras.layers.Dense(1)])


def sound():
    return of_layer("sound", keras.ops.relu)


def unknown_operation():
    def crop(x):
        images = tf.reshape(tf.cast(x, tf.float32), (-1, 4, 4, 1))
        boxes = tf.zeros((tf.shape(x)[0], 4))
        cropped = tf.image.crop_and_resize(images, boxes, tf.range(tf.shape(x)[0]), (4, 4))
        return tf.reshape(tf.cast(cropped, x.dtype), (-1, NUM_FEATURES))

    return of_layer("unknown_operation", crop)


def host_call():
    def call_python(x):
        doubled = tf.py_function(lambda v: v * 2, [x], x.dtype)
        return tf.ensure_shape(doubled, x.shape)

    return of_layer("host_call", call_python)


def printing():
    def tell(x):
        tf.print("mean", tf.reduce_mean(x))
        return x

    return of_layer("printing", tell)


def strings_inside():
    def hashed(x):
        return x + tf.cast(tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 7), x.dtype)

    return of_layer("strings_inside", hashed)


def ragged_inside():
    def ragged(x):
        rows = tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill([tf.shape(x)[0]], NUM_FEATURES))
        return rows.to_tensor(shape=(16, NUM_FEATURES))

    return of_layer("ragged_inside", ragged)


def dynamic_dimension():
    def of_positive(x):
        return x + tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0), axis=0)

    return of_layer("dynamic_dimension", of_positive)


def complex128():
    def spectrum(x):
        return x + tf.cast(tf.math.real(tf.cast(x, tf.complex128) * 2), x.dtype)

    return of_layer("complex128", spectrum)


def float64():
    return of_layer("float64", lambda x: tf.cast(tf.cast(x, tf.float64) * 2, x.dtype))


def float16():
    def build_model():
        layer = keras.layers.Dense(1, dtype="mixed_float16", name="faulty")
        return keras.Sequential([keras.Input((NUM_FEATURES,)), layer])

    return of_parts("float16", build_model)


def loss_scale():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    return of_parts("loss_scale", dense_model, optimizer=optimizer)


def odd_batch():
    return of_parts("odd_batch", dense_model, global_batch_size=20)


def last_batch_is_shorter():
    return of_parts("last_batch_is_shorter", dense_model, change_data=lambda dataset: dataset.batch(24))


def string_batches():
    def named(dataset):
        return dataset.map(lambda x, y: (tf.strings.as_string(x), y)).batch(16, drop_remainder=True)

    return of_parts("string_batches", dense_model, change_data=named)


def ragged_batches():
    def ragged(dataset):
        return dataset.map(lambda x, y: (x[: tf.random.uniform([], 1, 9, tf.int32)], y)).ragged_batch(16)

    return of_parts("ragged_batches", dense_model, change_data=ragged)


def numbers_from_tensors():
    class Peeking(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            return {"loss": data[0].numpy().sum()}

    return of_parts("numbers_from_tensors", Peeking)


def custom_step():
    """A sound model with a step of its own."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.cast(self(x), tf.float32) - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return {"loss": loss}

    return of_parts("custom_step", Own)


def crashing():
    def build_model():
        raise OSError("no weights here")

    return of_parts("crashing", build_model)
