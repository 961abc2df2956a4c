"""The model families of the benchmarks of choices and peers: models, synthetic data and workloads.

Importing this module imports neither TensorFlow nor Keras, so that programs of other frameworks can use the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfaccel.benchmarks.synthetic_data import NUM_CLASSES, synthetic_arrays
from tfaccel.data.given_data import GivenArrays
from tfaccel.planning.workload import Workload

WORKLOAD = "tfaccel.benchmarks.choice_tasks:workload"
LEARNING_RATE, ADAM_EPSILON = 1e-3, 1e-7  # Keras's defaults, which peers take over

NUM_COLUMNS, NUM_IDS, EMBEDDING_SIZE = 8, 100_000, 32
STAGE_FILTERS, BLOCKS_PER_STAGE = (16, 32, 64), 2


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of model, with data for it.

    Attributes:
        name: as in `--figures`.
        build_model: returns an uncompiled Keras classifier with `NUM_CLASSES` logits.
        input_shape: of one example.
        num_tokens: number of ids, for examples of ids; 0 for examples of float32 values.
        global_batch_size, steps_per_epoch: the length of an epoch.
        num_distinct: number of different examples, which are repeated to fill an epoch.
    """

    name: str
    build_model: Callable[[], Any]
    input_shape: tuple[int, ...]
    num_tokens: int = 0
    global_batch_size: int = 128
    steps_per_epoch: int
    num_distinct: int = 2560

    @property
    def is_image(self) -> bool:
        """Whether an example has height, width and channels."""
        return len(self.input_shape) == 3

    @property
    def num_examples(self) -> int:
        """Examples of one epoch."""
        return self.steps_per_epoch * self.global_batch_size

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The examples and labels of one epoch, the same at every call."""
        num_distinct = min(self.num_distinct, self.num_examples)
        x, y = synthetic_arrays(num_distinct, self.input_shape, num_tokens=self.num_tokens)
        rows = np.arange(self.num_examples) % num_distinct
        return x[rows], y[rows]


def workload(family: str) -> Workload:
    """A family as a workload, with Adam, cross-entropy and accuracy."""
    chosen = FAMILIES[family]
    return Workload(
        f"benchmark_{family}",
        chosen.build_model,
        compile_args,
        GivenArrays(*chosen.arrays()),
        num_train_examples=chosen.num_examples,
        global_batch_size=chosen.global_batch_size,
        epochs=10,
        options={"family": family},
    )


def compile_args() -> dict[str, Any]:
    """Arguments of `Model.compile` for every family."""
    import keras

    return {
        "optimizer": keras.optimizers.Adam(LEARNING_RATE, epsilon=ADAM_EPSILON),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


def _mlp() -> Any:
    from tfaccel.benchmarks.engine_tasks import large_mlp

    return large_mlp(steps_per_epoch=1).build_model()


def _cnn() -> Any:
    from tfaccel.benchmarks.engine_tasks import cnn

    return cnn(steps_per_epoch=1).build_model()


def _resnet() -> Any:
    """Residual blocks of two 3x3 convolutions with batch normalization, on 32x32x3 images; stages end with a pool."""
    import keras

    layers = keras.layers

    def convolved(x: Any, filters: int, size: int = 3) -> Any:
        x = layers.Conv2D(filters, size, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    images = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolved(images, STAGE_FILTERS[0]))
    for stage, filters in enumerate(STAGE_FILTERS):
        if stage:
            x = layers.MaxPooling2D()(x)
        for block in range(BLOCKS_PER_STAGE):
            shortcut = convolved(x, filters, 1) if stage and not block else x
            y = convolved(layers.ReLU()(convolved(x, filters)), filters)
            x = layers.ReLU()(layers.Add()([shortcut, y]))
    return keras.Model(images, layers.Dense(NUM_CLASSES)(layers.GlobalAveragePooling2D()(x)))


def _lstm() -> Any:
    from tfaccel.benchmarks.engine_tasks import lstm

    return lstm(steps_per_epoch=1).build_model()


def _gru() -> Any:
    """A GRU of 128 units on sequences of length 100."""
    import keras

    return keras.Sequential([keras.Input((100, 32)), keras.layers.GRU(128), keras.layers.Dense(NUM_CLASSES)])


def _transformer() -> Any:
    from tfaccel.benchmarks.engine_tasks import transformer

    return transformer(steps_per_epoch=1).build_model()


def _embedding() -> Any:
    """Columns of ids that share a table of embeddings, and a small MLP, as in a recommender."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((NUM_COLUMNS,), dtype="int32"),
            layers.Embedding(NUM_IDS, EMBEDDING_SIZE),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(NUM_CLASSES),
        ]
    )


_ALL = (
    Family(name="mlp", build_model=_mlp, input_shape=(784,), steps_per_epoch=400),
    Family(name="cnn", build_model=_cnn, input_shape=(32, 32, 3), steps_per_epoch=60),
    Family(name="resnet", build_model=_resnet, input_shape=(32, 32, 3), steps_per_epoch=60),
    Family(name="lstm", build_model=_lstm, input_shape=(100, 32), steps_per_epoch=60),
    Family(name="gru", build_model=_gru, input_shape=(100, 32), steps_per_epoch=60),
    Family(name="transformer", build_model=_transformer, input_shape=(128,), num_tokens=1000, steps_per_epoch=60),
    Family(
        name="embedding",
        build_model=_embedding,
        input_shape=(NUM_COLUMNS,),
        num_tokens=NUM_IDS,
        global_batch_size=1024,
        steps_per_epoch=200,
        num_distinct=204_800,
    ),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}
