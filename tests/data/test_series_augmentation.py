"""Jitter and scaling of windows: the same for seed and epoch, as large as asked for; the future stays as it is."""

import numpy as np
import pytest

from tfaccel.data.series_data import SeriesAugmentation, series_augmentation
from tfaccel.data.series_set import pendulum_series
from tfaccel.errors import DataError


@pytest.fixture
def epoch(logical_devices):
    """A function that reads the first 24 batches of an epoch of windows; values in deviations from the mean."""
    from tfaccel.data.series_data import series_batches

    def read(augmentation, start_step=0, **options):
        batches = series_batches(pendulum_series(), window=32, horizon=4, augmentation=augmentation)
        data = batches.train(64, **{"seed": 0, "epoch": 0, "start_step": start_step, **options})
        parts = data.take(24 - start_step).as_numpy_iterator()
        past, future = (np.stack(part) for part in zip(*parts, strict=True))
        means, deviations = (np.array(numbers) for numbers in pendulum_series().means_and_deviations())
        return (past - means) / deviations, future

    return read


@pytest.mark.slow
def test_the_past_is_jittered_and_scaled_as_much_as_asked_for(epoch):
    past, future = epoch(None)
    jittered, same = epoch(SeriesAugmentation(jitter=0.1, scaling=0.0))
    assert np.array_equal(future, same)
    assert (jittered - past).std() == pytest.approx(0.1, rel=0.02)
    assert (jittered - past).mean() == pytest.approx(0, abs=0.002)
    scaled, _ = epoch(SeriesAugmentation(jitter=0.0, scaling=0.2))
    factors = (scaled * past).sum(axis=2, keepdims=True) / (past**2).sum(axis=2, keepdims=True)
    assert scaled == pytest.approx(factors * past, abs=1e-4)  # one factor for a window's column
    assert factors.std() == pytest.approx(0.2, rel=0.05)
    assert factors.mean() == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_numbers_follow_from_seed_and_epoch_and_belong_to_a_place(epoch):
    augmentation = series_augmentation("jitter")
    whole, _ = epoch(augmentation)
    assert np.array_equal(whole, epoch(augmentation)[0])
    assert np.array_equal(whole[16:, 32:], epoch(augmentation, start_step=16, shard=(1, 2))[0])
    for other in ({"seed": 1}, {"epoch": 1}):
        assert not np.array_equal(whole, epoch(augmentation, **other)[0])
    assert np.array_equal(epoch(series_augmentation("none"))[0], epoch(None)[0])


def test_what_cannot_be_done_is_refused():
    with pytest.raises(DataError, match=r"must be at least 0\. Received: .*jitter=-1"):
        SeriesAugmentation(jitter=-1.0)
    with pytest.raises(DataError, match=r"no augmentation 'jiter' of a series\. Augmentations: none, jitter\."):
        series_augmentation("jiter")
