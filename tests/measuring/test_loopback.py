"""The network between local workers: the fit on made-up times, the cache, and one real measurement."""

import json
import logging

import pytest

from tfaccel.errors import ClusterError
from tfaccel.extras.estimates import loopback
from tfaccel.extras.estimates.interconnect import ring_seconds
from tfaccel.hardware.hardware import Hardware

SIZES = [4, 4096, 65536, 10**6, 10**7]


@pytest.mark.parametrize("num_workers", [2, 4])
def test_fit_finds_latency_and_bandwidth(num_workers):
    times = [ring_seconds(size, num_workers, latency_seconds=2e-3, bytes_per_second=3e8) for size in SIZES]
    found = loopback.fit_link(SIZES, times, num_workers)
    assert found.latency_seconds == pytest.approx(2e-3)
    assert found.bytes_per_second == pytest.approx(3e8)
    assert found.max_error < 1e-9
    disturbed = [time * factor for time, factor in zip(times, (1.1, 0.9, 1.05, 1.0, 0.97), strict=True)]
    found = loopback.fit_link(SIZES, disturbed, num_workers)
    assert found.latency_seconds == pytest.approx(2e-3, rel=0.1)
    assert found.bytes_per_second == pytest.approx(3e8, rel=0.1)
    assert 0.05 < found.max_error < 0.15


def test_times_without_a_bandwidth_are_refused():
    with pytest.raises(ClusterError, match=r"larger ones took no longer\. Is the machine busy\? Measure again\."):
        loopback.fit_link([4, 1000], [2.0, 1.0], 2)


def test_latency_is_not_negative():
    assert loopback.fit_link([0, 1000], [1e-9, 2.0], 2).latency_seconds >= 0


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path))
    return tmp_path / "interconnect.json"


def keep(file, hardware):
    machine = [hardware.cpu_model, hardware.num_usable_cores, loopback.installed_versions()]
    link = {"name": "loopback", "machine_latency_seconds": 0.001, "machine_bytes_per_second": 1e9}
    file.write_text(json.dumps({"machine": machine, "interconnect": link}))


def test_kept_measurement_is_used_on_the_same_machine(cache, monkeypatch):
    hardware, measured = Hardware(num_usable_cores=2), []

    def measure():
        measured.append(1)
        return loopback.fit_link(SIZES, [1.0, 1.1, 1.2, 3.0, 20.0], 2)

    monkeypatch.setattr(loopback, "measure_link", measure)
    keep(cache, hardware)
    assert loopback.loopback_interconnect(hardware).machine_latency_seconds == 0.001
    assert measured == []
    found = loopback.loopback_interconnect(Hardware(num_usable_cores=4))  # another machine: measured, and kept
    assert measured == [1]
    assert loopback.loopback_interconnect(Hardware(num_usable_cores=4)) == found
    assert measured == [1]
    assert loopback.loopback_interconnect(Hardware(num_usable_cores=4), use_cache=False) == found
    assert measured == [1, 1]


def test_damaged_file_is_ignored_with_one_line(cache, monkeypatch, caplog):
    monkeypatch.setattr(loopback, "measure_link", lambda: loopback.fit_link(SIZES, [1.0, 1.1, 1.2, 3.0, 20.0], 2))
    cache.write_text("{")
    with caplog.at_level(logging.WARNING, "tfaccel"):
        loopback.loopback_interconnect(Hardware())
    assert len(caplog.records) == 1
    assert "interconnect.json is ignored: JSONDecodeError" in caplog.text


@pytest.mark.slow
def test_real_measurement():
    found = loopback.measure_link(sizes=(1, 1 << 20, 1 << 22), rounds=3)
    assert 0 <= found.latency_seconds < 1
    assert 1e6 < found.bytes_per_second < 1e12
    assert len(found.measured_seconds) == 3
