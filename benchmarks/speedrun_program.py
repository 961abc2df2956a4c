"""Trains one row of the speedrun once: with `Model.fit`, `tfaccel.fit` or PyTorch.

    python -m tfaccel.benchmarks.speedrun_program ROW ACCURACY SEED DATA

trains on five sixths of the training images and prints the accuracy on the others: by it, the settings were chosen.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tfaccel.benchmarks.speedrun_rows import FILTERS, MOMENTUM, PATCH_SIZE, ROWS
from tfaccel.data.images.files import read_image_set

PREDICTED_ROWS = 1000  # of a batch
NUM_HELD_OUT = 10_000
_SHUFFLE_SEED = 20_170_825
_WHITENING_EPSILON = 0.05
_MAX_PATCHES = 200_000


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images whose pixels are 0 where they are black, with deviation 1 over the training images, and their classes.

    Attributes:
        x, y: to train on.
        test_x, test_y: to be looked at once, after training.
        num_classes: number of classes.
    """

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    num_classes: int


def load_images(data: str, *, is_held_out: bool) -> Images:
    """Reads images that `tfaccel.data.images.files.read_image_set` reads as arrays.

    Args:
        data: a folder with four IDX files (MNIST's format), or an .npz file.
        is_held_out: whether training images that are left out of training take the place of the test images.
    """
    images = read_image_set(data)
    parts = images.load()
    (x, y), (test_x, test_y) = [(np.asarray(one.images, np.float32), one.labels.astype(np.int32)) for one in parts]
    if is_held_out:
        order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(x))
        held_out, rest = np.split(order, [min(NUM_HELD_OUT, len(x) // 5)])
        (test_x, test_y), (x, y) = (x[held_out], y[held_out]), (x[rest], y[rest])
    deviation = x.std()
    return Images(
        x=x / deviation,
        y=y,
        test_x=test_x / deviation,
        test_y=test_y,
        num_classes=len(images.class_names),
    )


def run(task: dict[str, Any], *, data: str, is_held_out: bool, max_images: int | None) -> dict[str, Any]:
    """Trains once, in this process, and classifies the test images.

    Args:
        task: of `tfaccel.benchmarks.speedrun_rows.Row.task`.
        data, is_held_out: see `load_images`.
        max_images: to train on, for trial runs.

    Returns:
        "seconds", with whatever was compiled, and "accuracy".
    """
    images = load_images(data, is_held_out=is_held_out)
    if max_images is not None:
        images = Images(**{**vars(images), "x": images.x[:max_images], "y": images.y[:max_images]})
    if task["program"] == "torch":
        from tfaccel.benchmarks.speedrun_torch import train

        return train(images, task)
    return _train(images, task)


def _train(images: Images, task: dict[str, Any]) -> dict[str, Any]:
    import keras

    import tfaccel

    recipe, epochs, options, seed = task["recipe"], task["epochs"], task["options"], task["seed"]
    random.seed(seed)  # as Keras's weights and layers are; with TensorFlow's seed, all epochs would have one order
    num_steps = -(-len(images.x) // recipe["batch_size"]) * epochs
    x, y = images.x, np.eye(images.num_classes, dtype=np.float32)[images.y]
    arguments = {"epochs": epochs, "batch_size": recipe["batch_size"], "verbose": 0}
    started = time.perf_counter()
    model = compiled_network(images, recipe, num_steps)
    own: Any = keras.Model if task["program"] == "keras" else tfaccel
    own.fit(model, x, y, **options, **arguments)
    share = accuracy(images, recipe, partial(own.predict, model, batch_size=PREDICTED_ROWS, verbose=0))
    return {"seconds": time.perf_counter() - started, "accuracy": share}


def accuracy(images: Images, recipe: dict[str, Any], predict: Callable[[np.ndarray], np.ndarray]) -> float:
    """The share of the test images whose class has the largest logit.

    Args:
        images: with the test images.
        recipe: the fields of a `tfaccel.benchmarks.speedrun_rows.Recipe`.
        predict: images -> logits.
    """
    logits = sum(weight * predict(view) for view, weight in _views(images.test_x, recipe["views"]))
    return float(np.mean(np.argmax(logits, axis=1) == images.test_y))


def _views(images: np.ndarray, num_views: int) -> Iterator[tuple[np.ndarray, float]]:
    """Views of images, each with its weight, as `tfaccel.benchmarks.speedrun_rows.Recipe` has them."""
    yield images, 1.0
    if num_views > 1:
        yield images[:, :, ::-1], 1.0
    if num_views > 2:
        height, width = images.shape[1:3]
        around = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        for top, left in ((0, 1), (2, 1), (1, 0), (1, 2)):
            moved = around[:, top : top + height, left : left + width]
            yield from ((moved, 0.5), (moved[:, :, ::-1], 0.5))


def whitening_kernel(images: np.ndarray) -> np.ndarray:
    """The eigenvectors of the images' patches, each over the root of its eigenvalue, and their negatives.

    So what the filters see has equal variance in all directions, as in https://github.com/tysam-code/hlb-CIFAR10.

    Args:
        images: (num_images, height, width, channels), with numbers as the network sees them.

    Returns:
        The kernel of a convolution: (size, size, channels, filters).
    """
    patches = np.lib.stride_tricks.sliding_window_view(images[:2000], (PATCH_SIZE, PATCH_SIZE), axis=(1, 2))
    channels = images.shape[-1]
    rows = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, PATCH_SIZE * PATCH_SIZE * channels)[:_MAX_PATCHES]
    values, vectors = np.linalg.eigh(np.cov(rows.astype(np.float64), rowvar=False))
    order = np.argsort(values)[::-1][: FILTERS[0] // 2]
    scaled = vectors[:, order] / np.sqrt(values[order] + _WHITENING_EPSILON)
    kernel = np.concatenate([scaled, -scaled], axis=1)
    return kernel.reshape(PATCH_SIZE, PATCH_SIZE, channels, -1).astype(np.float32)


def compiled_network(images: Images, recipe: dict[str, Any], num_steps: int) -> Any:
    """The network, compiled with the recipe for so many steps."""
    import keras

    from tfaccel.benchmarks.speedrun_network import Triangle, build_network

    keras.config.set_dtype_policy("mixed_bfloat16" if recipe["precision"] == "bfloat16" else "float32")
    kernel = whitening_kernel(images.x) if recipe["is_whitened"] else None
    model = build_network(images.x.shape[1:], images.num_classes, recipe, kernel)
    rate: Any = recipe["learning_rate"]
    if recipe["warm_up"] is not None:
        rate = Triangle(rate, num_steps, recipe["warm_up"])
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=recipe["label_smoothing"])
    decay = recipe["weight_decay"] or None
    if recipe["optimizer"] == "adam":
        optimizer = keras.optimizers.Adam(rate, weight_decay=decay)
    else:
        optimizer = keras.optimizers.SGD(rate, momentum=MOMENTUM, nesterov=True, weight_decay=decay)
    optimizer.exclude_from_weight_decay(var_names=["gamma", "beta", "bias"])
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def main(argv: list[str]) -> int:
    """Trains one row on the training images but those that are held out, and prints its accuracy on them."""
    name, target, seed, data = argv
    found = run(ROWS[name].task(int(target), int(seed)), data=data, is_held_out=True, max_images=None)
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
