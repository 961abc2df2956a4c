"""Plain Keras on a task of the GPU suite, in timed windows: `Model.fit` with its defaults, as its users write it.

Arrays are passed as they are; images come from `tf.data`, with `AUTOTUNE` where files are decoded.
"""

from __future__ import annotations

import contextlib
import math
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfaccel.benchmarks.gpu.jpeg_files import training_files
from tfaccel.benchmarks.gpu.tasks import GpuTask, task_named
from tfaccel.benchmarks.synthetic_data import NUM_CLASSES
from tfaccel.benchmarks.window_answers import WindowAnswers, answered, in_windows

_ENDLESS = 10**9


def main(connection: Connection, arguments: list[str]) -> int:
    """Trains as ordered; returns the exit status."""
    task = connection.recv()
    return answered(connection, lambda: _train(connection, task))


def _train(connection: Connection, order: dict[str, Any]) -> None:
    answers = WindowAnswers(connection)
    task = task_named(order["task"], is_tiny=order["is_tiny"])
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy(list(order["mirrored"])) if order["mirrored"] else None
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = task.build_model()
        model.compile(**task.compile_args())
    data, options = _data(task, order["folder"])
    model.build((None, *task.size.input_shape))
    answers.built(sum(math.prod(variable.shape) for variable in model.trainable_variables))
    model.make_train_function()
    model.train_function = in_windows(model.train_function, answers)
    model.fit(*data, epochs=_ENDLESS, verbose=0, **options)


def _data(task: GpuTask, folder: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `Model.fit` is called with."""
    if folder:
        return (decoded_images(task, Path(folder)),), {}
    if task.is_image:
        return (task.image_batches(task.size.global_batch_size),), {}
    return task.epoch_arrays(), {"batch_size": task.size.global_batch_size}


def decoded_images(task: GpuTask, folder: Path) -> tf.data.Dataset:
    """The images of a folder, decoded in each epoch."""
    paths, labels = training_files(folder)
    size = task.size.input_shape[:2]

    def read(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), size)
        return tf.ensure_shape(image, (*size, 3)), tf.one_hot(label, NUM_CLASSES)

    return (
        tf.data.Dataset.from_tensor_slices((paths, labels))
        .shuffle(len(paths), seed=0)
        .map(read, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(task.size.global_batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
