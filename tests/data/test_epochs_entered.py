"""Batches of every kind of data: entered at a step, and of a worker's rows, they hold what the epoch holds there."""

import numpy as np
import pytest

from tfaccel.data.batches import make_train_data
from tfaccel.data.boxes.boxed_images import BoxedImages, BoxedSplit
from tfaccel.data.images.digits import digits
from tfaccel.data.images.moves import ImageMoves
from tfaccel.data.series.augmentation import SeriesAugmentation
from tfaccel.data.series.series_set import pendulum_series
from tfaccel.data.tables.number_rows import NumberRows
from tfaccel.data.tables.options import TableOptions
from tfaccel.data.tables.tabular_files import embedded_table
from tfaccel.data.tables.tabular_set import make_tabular_set


class Shuffled:
    """Examples without classes, as batches."""

    def __init__(self, examples):
        self.train = examples.shuffled


def images():
    from tfaccel.data.images.batches import ImageBatches

    return ImageBatches(digits(), ImageMoves())


def boxes():
    from tfaccel.data.boxes.batches import BoxBatches

    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 255, (40, 32, 32, 3), dtype=np.uint8)
    corners = generator.uniform(0, 16, (40, 1, 2)).astype(np.float32)
    split = BoxedSplit(pixels, np.concatenate([corners, corners + 14], axis=2), np.zeros((40, 1), np.int64))
    made = BoxedImages(
        class_names=("thing",),
        image_size=32,
        num_channels=3,
        most_objects=1,
        num_train_images=40,
        num_test_images=40,
        train=lambda seed, epoch: split,
        test=lambda: split,
    )
    return BoxBatches(made, ImageMoves(rotation=0.0, zoom=0.2, shift=0.2))


def series():
    from tfaccel.data.series.batches import SeriesBatches

    return SeriesBatches(pendulum_series(), window=32, horizon=4, augmentation=SeriesAugmentation())


def table():
    from tfaccel.data.tables.batches import TabularBatches

    wine = make_tabular_set(embedded_table("wine"), TableOptions(target="target"), classification=True)
    return TabularBatches(wine, one_hot=True)


def texts():
    from tfaccel.data.texts.batches import TextBatches

    part = (np.arange(200).reshape(40, 5), np.arange(40))
    return TextBatches(
        part, part, change=lambda data, generator: (data[0] * generator.integers(2, size=(40, 5)), data[1])
    )


def pieces():
    from tfaccel.data.texts.batches import TextPieces

    return TextPieces(np.arange(401, dtype=np.int32), np.arange(31, dtype=np.int32), length=10, stride=5)


def unlabelled_images():
    from tfaccel.data.images.unlabelled import UnlabelledImages

    return Shuffled(UnlabelledImages(digits()))


def unlabelled_rows():
    from tfaccel.data.images.unlabelled import UnlabelledRows

    values = np.arange(100, dtype=np.float32).reshape(50, 2)
    return Shuffled(UnlabelledRows(NumberRows(("a", "b"), values, np.arange(40), np.arange(40, 50))))


def leaves(dataset):
    import tensorflow as tf

    return [tf.nest.flatten(batch) for batch in dataset.as_numpy_iterator()]


@pytest.mark.parametrize(
    "make",
    [images, boxes, series, table, texts, pieces, unlabelled_images, unlabelled_rows],
    ids=lambda make: make.__name__,
)
def test_parts_of_an_epoch_are_those_of_the_whole(logical_devices, make):
    made = make()
    train_data = make_train_data(lambda: made)
    whole = leaves(train_data(8, seed=1, epoch=2))
    resumed = train_data(8, seed=1, epoch=2, start_step=2)
    assert int(resumed.cardinality()) == len(whole) - 2 > 0
    shares = [leaves(train_data(8, seed=1, epoch=2, start_step=1, shard=(index, 2))) for index in range(2)]
    for expected, found in zip(whole[2:], leaves(resumed), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
    for expected, *parts in zip(whole[1:], *shares, strict=True):
        assert all(np.array_equal(leaf, np.concatenate(part)) for leaf, *part in zip(expected, *parts, strict=True))


@pytest.mark.parametrize("make", [images, table, texts], ids=lambda make: make.__name__)
def test_several_epochs_follow_each_other(logical_devices, make):
    made = make()
    train_data = make_train_data(lambda: made, several_epochs=True)
    apart = [leaves(train_data(8, seed=1, epoch=epoch)) for epoch in (2, 3, 4)]
    together = train_data(8, seed=1, epoch=2, start_step=1, num_epochs=3)
    expected = [*apart[0][1:], *apart[1], *apart[2]]
    assert int(together.cardinality()) == len(expected)
    for one, other in zip(expected, leaves(together), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
