"""Noise beside batches: as many rows as the batch has, the same for the same seed and epoch."""

import numpy as np

from tfaccel.data.epochs import Part


def noise_of(rows, seed, epoch):
    import tensorflow as tf

    from tfaccel.data.images.generative_data import with_noise

    batches = tf.data.Dataset.range(rows).batch(4)
    return list(with_noise(batches, 3, Part(global_batch_size=4, seed=seed, epoch=epoch)).as_numpy_iterator())


def test_rows_of_noise_are_those_of_the_batch(logical_devices):
    pairs = noise_of(10, 0, 0)
    assert [(batch.shape[0], noise.shape) for batch, noise in pairs] == [(4, (4, 3)), (4, (4, 3)), (2, (2, 3))]


def test_noise_is_normal_and_follows_from_seed_and_epoch(logical_devices):
    first, again = (np.concatenate([noise for _, noise in noise_of(4000, 5, 2)]) for _ in range(2))
    other = np.concatenate([noise for _, noise in noise_of(4000, 5, 3)])
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert abs(first.mean()) < 0.05
    assert abs(first.std() - 1) < 0.05


def test_noise_belongs_to_a_place_in_the_epoch(logical_devices):
    import tensorflow as tf

    from tfaccel.data.images.generative_data import with_noise

    whole = [noise for _, noise in noise_of(20, 0, 0)]
    own_rows = tf.data.Dataset.range(6).batch(2, drop_remainder=True)
    part = with_noise(own_rows, 3, Part(global_batch_size=4, seed=0, epoch=0, start_step=2, shard=(1, 2)))
    assert np.array_equal([noise[2:] for noise in whole[2:]], [noise for _, noise in part.as_numpy_iterator()])


def test_full_batches_keep_their_fixed_shape(logical_devices):
    import tensorflow as tf

    from tfaccel.data.images.generative_data import with_noise

    batches = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    spec = with_noise(batches, 3, Part(global_batch_size=4, seed=0, epoch=0)).element_spec
    assert (spec[0].shape, spec[1].shape) == ((4,), (4, 3))
