"""The models of the GPU suite with their data: a small MLP, a Transformer encoder and ResNet-50; each also in tiny.

Importing this module imports neither TensorFlow nor Keras, so that PyTorch's program can use the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.synthetic_data import NUM_CLASSES, synthetic_arrays
from tfaccel.data.given_data import GivenArrays
from tfaccel.planning.workload import Workload

WORKLOAD = "tfaccel.benchmarks.gpu.tasks:workload"
LEARNING_RATE, MOMENTUM, ADAM_EPSILON = 1e-3, 0.9, 1e-7
VOCABULARY = 8000


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a task's model and batch are.

    Attributes:
        input_shape: of one example.
        width: of the layers; of a ResNet, the filters of its first stage.
        depth: blocks; of a ResNet, those of each stage.
        global_batch_size, steps_per_epoch: the length of an epoch.
        num_distinct: number of different examples, which are repeated.
    """

    input_shape: tuple[int, ...]
    width: int
    depth: tuple[int, ...]
    global_batch_size: int
    steps_per_epoch: int
    num_distinct: int


@dataclass(frozen=True, kw_only=True)
class GpuTask:
    """A model, and the data that it is trained on.

    Attributes:
        name: of the task.
        size: how large it is.
        is_image: whether examples are images; they come from a `tf.data.Dataset`, with one-hot labels.
        num_tokens: size of the vocabulary, for examples of ids.
    """

    name: str
    size: Size
    is_image: bool = False
    num_tokens: int = 0

    @property
    def num_examples(self) -> int:
        """Examples of one epoch."""
        return self.size.steps_per_epoch * self.size.global_batch_size

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The different examples and their labels, the same at every call."""
        return synthetic_arrays(self.size.num_distinct, self.size.input_shape, num_tokens=self.num_tokens)

    def epoch_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The examples and labels of one epoch."""
        x, y = self.arrays()
        rows = np.arange(self.num_examples) % len(x)
        return x[rows], y[rows]

    def image_batches(self, global_batch_size: int) -> Any:
        """A dataset of one epoch of synthetic images, ready in memory: a single batch, again and again."""
        import tensorflow as tf

        count = max(1, self.num_examples // global_batch_size)
        x, y = replace(self, size=replace(self.size, num_distinct=global_batch_size)).arrays()
        batch = (100.0 + 50.0 * x, np.eye(NUM_CLASSES, dtype=np.float32)[y])
        with tf.device("CPU:0"):
            return tf.data.Dataset.from_tensors(batch).repeat(count).prefetch(2)

    def build_model(self) -> Any:
        """A new, uncompiled Keras model with `NUM_CLASSES` logits."""
        from tfaccel.benchmarks.gpu import keras_models

        build: Callable[[Size], Any] = getattr(keras_models, self.name)
        return build(self.size)

    def compile_args(self) -> dict[str, Any]:
        """Arguments of `Model.compile`: SGD with momentum for images, Adam otherwise; cross-entropy; accuracy."""
        import keras

        if self.is_image:
            optimizer: Any = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
            loss: Any = keras.losses.CategoricalCrossentropy(from_logits=True)
        else:
            optimizer = keras.optimizers.Adam(LEARNING_RATE, epsilon=ADAM_EPSILON)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"optimizer": optimizer, "loss": loss, "metrics": ["accuracy"]}


# Batches are so large that a GPU is busy, and so small that all programs of a race fit into 80 GB together.
_MLP = Size(input_shape=(32,), width=32, depth=(2,), global_batch_size=32, steps_per_epoch=4000, num_distinct=16_000)
_TRANSFORMER = Size(
    input_shape=(512,), width=768, depth=(12,), global_batch_size=16, steps_per_epoch=128, num_distinct=1024
)
_RESNET = Size(
    input_shape=(224, 224, 3),
    width=64,
    depth=(3, 4, 6, 3),
    global_batch_size=128,
    steps_per_epoch=200,
    num_distinct=128,
)
TASKS = {
    "mlp": GpuTask(name="mlp", size=_MLP),
    "transformer": GpuTask(name="transformer", size=_TRANSFORMER, num_tokens=VOCABULARY),
    "resnet": GpuTask(name="resnet", size=_RESNET, is_image=True),
}
TINY = {
    "mlp": replace(_MLP, steps_per_epoch=50, num_distinct=160),
    "transformer": Size(
        input_shape=(16,), width=24, depth=(2,), global_batch_size=8, steps_per_epoch=8, num_distinct=64
    ),
    "resnet": Size(
        input_shape=(32, 32, 3), width=4, depth=(1, 1), global_batch_size=8, steps_per_epoch=8, num_distinct=8
    ),
}


def task_named(name: str, *, is_tiny: bool) -> GpuTask:
    """The task, with its tiny model if asked for."""
    return replace(TASKS[name], size=TINY[name]) if is_tiny else TASKS[name]


def workload(
    *, task: str, is_tiny: bool = False, folder: str = "", cache: str = "auto", augmentation: str = "none"
) -> Workload:
    """A task as a workload.

    Args:
        task, is_tiny: see `task_named`.
        folder: of JPEG images to train a ResNet on, see `jpeg_files`; empty for synthetic images.
        cache, augmentation: of these images, see `ImageData`.
    """
    chosen = task_named(task, is_tiny=is_tiny)
    fields: dict[str, Any] = {"num_train_examples": chosen.num_examples}
    if folder:
        fields = {"data": _image_data(chosen, folder, cache, augmentation)}
    elif chosen.is_image:
        fields["example_bytes"] = 4 * int(np.prod(chosen.size.input_shape))
        fields["train_data"] = lambda global_batch_size, *, seed, epoch: chosen.image_batches(global_batch_size)
    else:
        fields["train_data"] = GivenArrays(*chosen.epoch_arrays())
    return Workload(
        f"gpu_{task}",
        chosen.build_model,
        chosen.compile_args,
        global_batch_size=chosen.size.global_batch_size,
        epochs=10,
        options={"task": task, "is_tiny": is_tiny, "folder": folder, "cache": cache, "augmentation": augmentation},
        **fields,
    )


def _image_data(task: GpuTask, folder: str, cache: Any, augmentation: str) -> Any:
    from tfaccel.data.images.files import read_image_set
    from tfaccel.data.images.image_data import ImageData

    images = read_image_set(Path(folder), image_size=task.size.input_shape[0])
    return ImageData(images, augmentation=augmentation, cache=cache)
