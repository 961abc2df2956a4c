"""Times of all-reduces in the latency-bandwidth model, beside numbers computed by hand and their limits."""

import math

import pytest

from tfaccel.extras.estimates.interconnect import (
    Interconnect,
    all_reduce_seconds,
    flat_ring_seconds,
    hierarchical_seconds,
    num_machines,
    num_packs,
    ring_seconds,
)

MB = 10**6
CLUSTER = Interconnect(
    name="cluster",
    devices_per_machine=4,
    device_latency_seconds=1e-6,
    device_bytes_per_second=100e9,
    machine_latency_seconds=10e-6,
    machine_bytes_per_second=10e9,
)


def test_ring_by_hand():
    # 8 devices, 80 MB, 5 us, 10 GB/s: 14 steps of 5 us, and 14 messages of 10 MB.
    found = ring_seconds(80 * MB, 8, latency_seconds=5e-6, bytes_per_second=10e9)
    assert found == pytest.approx(14 * 5e-6 + 14 * 10 * MB / 10e9)


def test_one_device_does_not_communicate():
    for algorithm in ("auto", "ring", "hierarchical"):
        assert all_reduce_seconds(80 * MB, 1, CLUSTER, algorithm=algorithm) == 0
        assert all_reduce_seconds(80 * MB, 1, CLUSTER, algorithm=algorithm, num_messages=7) == 0


def test_bandwidth_term_approaches_two_messages():
    times = [ring_seconds(80 * MB, p, latency_seconds=0.0, bytes_per_second=10e9) for p in (2, 16, 1024, 10**6)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(80 * MB / 10e9)
    assert times[-1] == pytest.approx(2 * 80 * MB / 10e9, rel=1e-5)
    assert times[-1] < 2 * 80 * MB / 10e9


def test_latency_term_grows_with_the_devices():
    times = [ring_seconds(0, p, latency_seconds=5e-6, bytes_per_second=10e9) for p in range(1, 6)]
    assert times == pytest.approx([0, 10e-6, 20e-6, 30e-6, 40e-6])


def test_hierarchical_is_a_ring_on_one_machine():
    for devices in range(1, 5):
        ring = ring_seconds(80 * MB, devices, latency_seconds=1e-6, bytes_per_second=100e9)
        assert hierarchical_seconds(80 * MB, devices, CLUSTER) == pytest.approx(ring)
        assert flat_ring_seconds(80 * MB, devices, CLUSTER) == pytest.approx(ring)


def test_hierarchical_by_hand():
    # 2 machines of 4: within, 6 steps of 1 us and 20 MB; between, 2 steps of 10 us and 40 MB.
    expected = 6 * (1e-6 + 20 * MB / 100e9) + 2 * (10e-6 + 40 * MB / 10e9)
    assert hierarchical_seconds(80 * MB, 8, CLUSTER) == pytest.approx(expected)


def test_flat_ring_runs_at_the_slowest_link():
    expected = 14 * (10e-6 + 10 * MB / 10e9)
    assert flat_ring_seconds(80 * MB, 8, CLUSTER) == pytest.approx(expected)


def test_auto_takes_the_faster():
    assert all_reduce_seconds(80 * MB, 8, CLUSTER) == pytest.approx(
        min(flat_ring_seconds(80 * MB, 8, CLUSTER), hierarchical_seconds(80 * MB, 8, CLUSTER))
    )
    assert all_reduce_seconds(0, 8, CLUSTER) == pytest.approx(hierarchical_seconds(0, 8, CLUSTER))


def test_one_device_per_machine_needs_no_inner_links():
    link = Interconnect(name="a", machine_latency_seconds=1e-5, machine_bytes_per_second=1e9)
    assert hierarchical_seconds(MB, 4, link) == flat_ring_seconds(MB, 4, link)


def test_messages_add_latencies_only():
    one, many = (all_reduce_seconds(80 * MB, 8, CLUSTER, algorithm="ring", num_messages=n) for n in (1, 11))
    assert many - one == pytest.approx(10 * 14 * 10e-6)


def test_machines_are_filled():
    assert [num_machines(number, CLUSTER) for number in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [([4, 4, 4], 0, 1), ([4, 4, 4], 4, 2), ([4, 4, 4], 3, 3), ([100, 1, 1], 10, 2), ([1, 1, 100], 10, 1), ([], 10, 1)],
)
def test_packs(sizes, limit, expected):
    assert num_packs(sizes, limit) == expected


def test_packs_are_those_of_tensorflow(run_python):
    code = """
import random
import tensorflow as tf
from tensorflow.python.distribute.cross_device_utils import group_by_size
from tfaccel.extras.estimates.interconnect import num_packs
random.seed(0)
for _ in range(200):
    sizes = [random.randint(1, 40) for _ in range(random.randint(1, 12))]
    limit = random.choice([0, 8, 40, 100, 400])
    packs = group_by_size([tf.zeros([size]) for size in sizes], limit)
    assert num_packs([4 * size for size in sizes], limit) == len(packs), (sizes, limit)
print("same")
"""
    assert run_python(code).stdout.strip() == "same"


def test_time_is_finite_for_many_devices():
    assert math.isfinite(all_reduce_seconds(10**12, 10**6, CLUSTER))
