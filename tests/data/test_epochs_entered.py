"""Batches of every kind of data: entered at a step, and of a worker's rows, they hold what the epoch holds there."""

import numpy as np
import pytest

from tfaccel.data.box_data import BoxedImages, BoxedSplit
from tfaccel.data.epochs import Batches, Part
from tfaccel.data.images.image_data import ImageMoves
from tfaccel.data.images.image_set import digits
from tfaccel.data.series_data import SeriesAugmentation
from tfaccel.data.series_set import pendulum_series
from tfaccel.data.tables.table_data import NumberRows, embedded_table
from tfaccel.data.tables.tabular_set import TableOptions, make_tabular_set
from tfaccel.errors import DataError


class Shuffled:
    """Examples without classes, as batches."""

    def __init__(self, examples):
        self.examples = examples

    def train(self, global_batch_size, **options):
        return self.examples.shuffled(Part(global_batch_size=global_batch_size, **options))


def images():
    from tfaccel.data.images.image_data import ImageBatches

    return ImageBatches(digits(), ImageMoves())


def boxes():
    from tfaccel.data.box_data import BoxBatches

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
    from tfaccel.data.series_data import series_batches

    return series_batches(pendulum_series(), window=32, horizon=4, augmentation=SeriesAugmentation())


def table():
    from tfaccel.data.tables.table_data import tabular_batches

    wine = make_tabular_set(embedded_table("wine"), TableOptions(target="target"), classification=True)
    return tabular_batches(wine, one_hot=True)


def texts():
    from tfaccel.data.in_memory import TextBatches

    part = (np.arange(200).reshape(40, 5), np.arange(40))
    return TextBatches(
        part, part, change=lambda data, generator: (data[0] * generator.integers(2, size=(40, 5)), data[1])
    )


def pieces():
    from tfaccel.data.texts.text_data import TextPieces

    return TextPieces(np.arange(401, dtype=np.int32), np.arange(31, dtype=np.int32), length=10, stride=5)


def unlabelled_images():
    from tfaccel.data.images.generative_data import unlabelled_images

    return Shuffled(unlabelled_images(digits()))


def unlabelled_rows():
    from tfaccel.data.images.generative_data import unlabelled_rows

    values = np.arange(100, dtype=np.float32).reshape(50, 2)
    return Shuffled(unlabelled_rows(NumberRows(("a", "b"), values, np.arange(40), np.arange(40, 50))))


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
    train_data = Batches("examples", lambda: made, num_train_examples=40).train_data
    whole = leaves(train_data(8, seed=1, epoch=2))
    resumed = train_data(8, seed=1, epoch=2, start_step=2)
    assert int(resumed.cardinality()) == len(whole) - 2 > 0
    shares = [leaves(train_data(8, seed=1, epoch=2, start_step=1, shard=(index, 2))) for index in range(2)]
    for expected, found in zip(whole[2:], leaves(resumed), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
    for expected, *parts in zip(whole[1:], *shares, strict=True):
        assert all(np.array_equal(leaf, np.concatenate(part)) for leaf, *part in zip(expected, *parts, strict=True))


@pytest.mark.parametrize("make", [images, series, table, texts, pieces], ids=lambda make: make.__name__)
def test_several_epochs_follow_each_other(logical_devices, make):
    made = make()
    train_data = Batches("examples", lambda: made, num_train_examples=40, several_epochs=True).train_data
    apart = [leaves(train_data(8, seed=1, epoch=epoch)) for epoch in (2, 3, 4)]
    together = train_data(8, seed=1, epoch=2, start_step=1, num_epochs=3)
    expected = [*apart[0][1:], *apart[1], *apart[2]]
    assert int(together.cardinality()) == len(expected)
    for one, other in zip(expected, leaves(together), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", [images, series, table, texts, pieces], ids=lambda make: make.__name__)
def test_data_workers_share_the_batches_of_an_epoch(logical_devices, make):
    made = make()
    whole = leaves(made.train(8, seed=1, epoch=2, start_step=1))
    shares = [leaves(made.train(8, seed=1, epoch=2, start_step=1, every=(index, 2))) for index in range(2)]
    for expected, found in zip(whole[0::2], shares[0], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
    for expected, found in zip(whole[1::2], shares[1], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_what_is_made_of_one_epoch_at_a_time_refuses_several(logical_devices):
    with pytest.raises(DataError, match=r"one epoch at a time\. Received: num_epochs=2\."):
        boxes().train(8, seed=1, epoch=2, num_epochs=2)


def test_an_argument_that_is_not_taken_is_refused():
    data = Batches("examples", lambda: pytest.fail("nothing is made"), num_train_examples=40)
    with pytest.raises(TypeError, match="every"):
        data.train_data(8, seed=0, epoch=0, every=(0, 2))
    with pytest.raises(TypeError, match="seed"):
        data.train_data(8, epoch=0)
