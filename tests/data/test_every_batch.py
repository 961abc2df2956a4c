"""The batches that each of several data workers prepares are, in turn, those of the whole epoch."""

import numpy as np
import pytest


def get_batches(dataset):
    import tensorflow as tf

    return [[np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(batch)] for batch in dataset.as_numpy_iterator()]


def images(augmentation):
    from tfaccel.data import digit_images
    from tfaccel.data.images.image_data import ImageData

    return ImageData(digit_images(), augmentation=augmentation)


def gan():
    from tfaccel.data import digit_images
    from tfaccel.data.images.generative_data import GanData

    return GanData(digit_images(), 4)


def autoencoder():
    from tfaccel.data.images.generative_data import ExampleData

    return ExampleData(latent_size=3)


def boxes():
    from tfaccel.data import scenes_of_digits
    from tfaccel.data.box_data import BoxData

    return BoxData(scenes_of_digits(), augmented=True)


def series():
    from tfaccel.data.series_data import SeriesData
    from tfaccel.data.series_set import pendulum_series

    return SeriesData(pendulum_series(), window=64, horizon=24)


@pytest.mark.parametrize(
    "made",
    [lambda: images("none"), lambda: images("moves"), lambda: images("mixup"), gan, autoencoder, boxes, series],
    ids=["images", "moved images", "mixed images", "gan", "autoencoder", "boxes", "series"],
)
def test_parts_of_an_epoch_in_turn_are_the_epoch(logical_devices, made):
    train_data = made().train_data
    which = {"seed": 1, "epoch": 2, "start_step": 1, "shard": (1, 2)}
    whole = get_batches(train_data(128, **which))
    parts = [get_batches(train_data(128, **which, every=(index, 3))) for index in range(3)]
    assert [parts[step % 3][step // 3] for step in range(len(whole))] == whole
    assert sum(map(len, parts)) == len(whole)
