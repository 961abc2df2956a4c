"""Cores and GPUs of workers: each gets its own, and too many are refused with how many there are."""

import pytest

from tfaccel.errors import LaunchError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.launching.local_worker import worker_places

FOUR_GPUS = Hardware(devices=tuple(Device(kind="GPU", index=index) for index in range(4)))


def test_each_worker_has_cores_of_its_own():
    places = worker_places(3, Hardware(), cores=[1, 3, 5, 7, 9, 11, 13])
    assert [place.cores for place in places] == [(1, 3), (5, 7), (9, 11)]
    assert [place.cores for place in worker_places(2, Hardware(), cores=range(8), cores_per_worker=1)] == [(0,), (1,)]


def test_gpus_are_divided_unless_told_otherwise():
    assert [place.gpus for place in worker_places(2, FOUR_GPUS)] == [(0, 1), (2, 3)]
    assert [place.gpus for place in worker_places(2, FOUR_GPUS, gpus_per_worker=1)] == [(0,), (1,)]
    assert [place.gpus for place in worker_places(8, FOUR_GPUS, gpus_per_worker=0)] == [()] * 8


@pytest.mark.parametrize(
    ("num_workers", "options", "message"),
    [
        (2, {"cores_per_worker": 3}, "2 workers with 3 cores each need 6 cores; this process may use 4. Lower --cores"),
        (65, {}, "65 workers are too many for 4 cores: at most 16 for each core. Lower --num_workers."),
        (8, {}, "There are 4 GPUs for 8 workers. Start at most 4 workers, or train on CPUs: --gpus_per_worker=0."),
        (2, {"gpus_per_worker": 3}, "2 workers with 3 GPUs each need 6 GPUs; this machine has 4"),
    ],
)
def test_more_than_there_is_is_refused(num_workers, options, message):
    with pytest.raises(LaunchError, match=message):
        worker_places(num_workers, FOUR_GPUS, cores=range(4), **options)
