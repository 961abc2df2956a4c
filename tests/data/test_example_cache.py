"""Caches: where there is room, told with the reason; nothing half-written is ever read."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from tfaccel.data.cache import CacheOptions, choose_cache
from tfaccel.errors import DataError

GB = 10**9


@pytest.mark.parametrize(
    ("size", "memory", "disk", "place", "reason"),
    [
        (GB, 3 * GB, 0, "memory", "a third of the free memory is enough: the examples take 1.0 GB when decoded"),
        (GB, 2 * GB, 2 * GB, "disk", "free memory: 2.0 GB, free disk: 2.0 GB"),
        (GB, 2 * GB, GB, "none", "more than a third of the free memory and half of the disk"),
        (GB, None, 2 * GB, "disk", "free memory: unknown"),
        (5000, 0, 0, "none", "the examples take 5.0 kB"),
    ],
)
def test_the_first_place_with_room_is_taken(size, memory, disk, place, reason):
    choice = choose_cache(size, free_memory_bytes=memory, free_disk_bytes=disk)
    assert choice.place == place
    assert reason in choice.reason


def test_what_is_asked_for_is_done_or_refused():
    room = {"free_memory_bytes": 2 * GB, "free_disk_bytes": 3 * GB}
    for place in ("memory", "disk", "none"):
        assert choose_cache(GB, **room, place=place).place == place
    with pytest.raises(DataError, match=r"The cache cannot be in memory: the examples take 3\.0 GB .*Use 'disk'"):
        choose_cache(3 * GB, **room, place="memory")
    with pytest.raises(DataError, match=r"The cache cannot be on disk: .* free disk: 3\.0 GB\. Use 'memory'"):
        choose_cache(4 * GB, **room, place="disk")
    with pytest.raises(DataError, match=r"must be one of auto, memory, disk, none\. Received: place='ram'\."):
        CacheOptions(place="ram")


def test_caches_lie_in_the_user_s_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CacheOptions().path == tmp_path / "tfaccel" / "examples"


def test_without_a_home_directory_caches_are_in_memory(make_cache, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # a user that no list of users has
    assert CacheOptions().path is None
    assert make_cache().choice.place == "memory"
    with pytest.raises(DataError, match=r"The cache cannot be on disk: .* free disk: 0\.0 kB"):
        make_cache(place="disk")


@pytest.fixture
def make_cache(logical_devices):
    import tensorflow as tf

    from tfaccel.data.cache import ExampleCache

    def pair(rows):
        images = tf.cast(rows, tf.uint8)[:, None, None] * tf.ones([2, 3], tf.uint8)
        return {"image": images, "label": rows * 2}

    return lambda read=pair, **options: ExampleCache(read, num_examples=100, options=CacheOptions(**options))


@pytest.mark.parametrize("place", ["memory", "disk", "none"])
def test_examples_come_out_as_they_went_in(make_cache, tmp_path, place):
    import tensorflow as tf

    read = make_cache(place=place, folder=tmp_path).read
    found = next(iter(tf.data.Dataset.from_tensors(tf.constant([99, 0, 42], tf.int64)).map(read)))
    assert found["label"].numpy().tolist() == [198, 0, 84]
    assert np.array_equal(found["image"].numpy(), np.broadcast_to(np.array([99, 0, 42])[:, None, None], (3, 2, 3)))
    assert (found["image"].dtype, found["image"].shape) == (tf.uint8, (3, 2, 3))


def test_the_choice_follows_the_measured_size_and_is_logged(make_cache, tmp_path, monkeypatch, caplog):
    free = SimpleNamespace(memory=10**6)
    monkeypatch.setattr("tfaccel.data.cache.free_memory_bytes", lambda machine: free.memory)
    with caplog.at_level(logging.INFO, "tfaccel"):
        assert make_cache(folder=tmp_path).choice.place == "memory"
        free.memory = 3 * 100 * 14 - 10  # 6 bytes of an image, 8 of a label; a third may be used
        assert make_cache(folder=tmp_path).choice.place == "disk"
    assert (
        "Cache of 100 examples: memory (a third of the free memory is enough: the examples take 1.4 kB" in caplog.text
    )
    assert "Cache of 100 examples: disk (more than a third" in caplog.text


def test_workers_on_one_machine_share_its_memory(make_cache, tmp_path, monkeypatch):
    monkeypatch.setattr("tfaccel.data.cache.free_memory_bytes", lambda machine: 3 * 100 * 14)
    for addresses, place in ((["a:1", "b:1"], "memory"), (["a:1", "a:2"], "disk")):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        assert make_cache(folder=tmp_path).choice.place == place


def test_a_cache_on_disk_goes_with_the_process_or_serves_the_next(make_cache, tmp_path):
    import tensorflow as tf

    kept = make_cache(place="disk", folder=tmp_path, identity=lambda: "these")
    assert len(list(tmp_path.iterdir())) == 1
    other = make_cache(
        lambda rows: {"image": rows, "label": rows}, place="disk", folder=tmp_path, identity=lambda: "those"
    )
    assert len(list(tmp_path.iterdir())) == 2
    # With the identity and shapes of the first, nothing is read again: the examples are the first's.
    again = make_cache(
        lambda rows: {"image": tf.zeros([tf.size(rows), 2, 3], tf.uint8), "label": rows},
        place="disk",
        folder=tmp_path,
        identity=lambda: "these",
    )
    assert again.read(tf.constant([7], tf.int64))["label"].numpy() == [14]
    assert other.read(tf.constant([7], tf.int64))["label"].numpy() == [7]
    assert kept.choice.place == "disk"


def test_a_cache_that_cannot_be_filled_leaves_nothing(make_cache, tmp_path):
    import tensorflow as tf

    def fails_later(rows):
        return tf.debugging.check_numerics(tf.where(rows == 50, np.nan, tf.cast(rows, tf.float32)), "a bad example")

    with pytest.raises(tf.errors.InvalidArgumentError, match="a bad example"):
        make_cache(fails_later, place="disk", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_place_to_write_nothing_is_kept(make_cache, tmp_path, monkeypatch):
    monkeypatch.setattr("tfaccel.data.cache.free_memory_bytes", lambda machine: 0)
    (tmp_path / "file").write_text("")
    assert make_cache(folder=tmp_path / "file" / "below").choice.place == "none"
    with pytest.raises(DataError, match=r"The cache cannot be on disk: .* free disk: 0\.0 kB\."):
        make_cache(place="disk", folder=tmp_path / "file" / "below")


def test_texts_are_not_cached(make_cache, tmp_path):
    import tensorflow as tf

    cache = make_cache(tf.strings.as_string, folder=tmp_path)
    assert cache.choice is None
    assert cache.read(tf.constant([7], tf.int64)).numpy().tolist() == [b"7"]
