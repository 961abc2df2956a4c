"""Versions come when they are whole, stay while what is newer is broken, and go when their folders are gone."""

import gc
import logging
import shutil
import threading
import time
import weakref

import pytest

from tfaccel.errors import ServeError
from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.model_config import VersionPolicy
from tfaccel.extras.serving.versions import Versions, VersionState


def write_version(folder, *, graph=b"graph", num_shards=1, index=True):
    """The files of a SavedModel; without `index`, or with fewer shards than are named, it is not whole."""
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_bytes(graph)
    for shard in range(num_shards):
        (folder / "variables" / f"variables.data-{shard:05d}-of-00001").write_bytes(b"data")
    if index:
        (folder / "variables" / "variables.index").write_bytes(b"index")


@pytest.fixture
def make(tmp_path):
    """A function that makes the versions of a folder; a graph that says `broken` cannot be loaded."""

    def load(folder, version):
        if (folder / "saved_model.pb").read_bytes() == b"broken":
            raise ServeError(f"version {version} cannot be loaded")
        return f"servable {version}"

    return lambda **settings: Versions("pets", tmp_path / "models", load, **settings)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def served(versions):
    return {number: state.state for number, state in versions.states().items()}


def look(versions, times=2):
    for _ in range(times):
        versions._look()


def test_half_written_version_waits_until_nothing_changes(make, folder):
    write_version(folder / "1")
    versions = make()
    versions.load_all()
    write_version(folder / "2", num_shards=0, index=False)
    look(versions, 3)
    write_version(folder / "2", num_shards=0)
    look(versions, 3)
    assert served(versions) == {1: "AVAILABLE"}
    write_version(folder / "2")
    look(versions, 1)
    (folder / "2" / "variables" / "variables.data-00000-of-00001").write_bytes(b"data, and more of it")
    look(versions, 1)
    assert served(versions) == {1: "AVAILABLE"}
    look(versions, 1)
    assert served(versions) == {2: "AVAILABLE", 1: "AVAILABLE"}
    assert (versions.get(None), versions.get(1)) == ("servable 2", "servable 1")


def test_broken_version_is_tried_again_when_it_is_mended(make, folder, caplog):
    write_version(folder / "1")
    versions = make()
    versions.load_all()
    write_version(folder / "2", graph=b"broken")
    with caplog.at_level(logging.WARNING, "tfaccel"):
        look(versions, 5)
    assert [record.getMessage() for record in caplog.records] == [
        "Version 2 of pets is not served: version 2 cannot be loaded"
    ]
    assert versions.states()[2] == VersionState("END", "version 2 cannot be loaded")
    assert versions.states(2) == {2: versions.states()[2]}
    assert versions.get(None) == "servable 1"
    write_version(folder / "2", graph=b"mended")
    look(versions)
    assert versions.get(None) == "servable 2"


def test_old_version_stays_until_as_many_newer_ones_are_served(make, folder):
    for number in (1, 2):
        write_version(folder / str(number))
    write_version(folder / "3", graph=b"broken")
    versions = make(policy=VersionPolicy(latest=1))
    versions.load_all()
    assert (served(versions), versions.available) == ({3: "END", 2: "AVAILABLE"}, [2])
    write_version(folder / "4", index=False)
    look(versions, 3)
    assert versions.get(None) == "servable 2"
    write_version(folder / "4")
    look(versions)
    assert served(versions) == {4: "AVAILABLE", 3: "END"}
    with pytest.raises(RequestError, match=r"Specific\(pets, 2\). Versions: 4."):
        versions.get(2)
    shutil.rmtree(folder / "4")
    look(versions)
    assert versions.get(None) == "servable 2"


def test_what_is_served_stays_while_the_folder_is_gone(make, folder, caplog):
    write_version(folder / "1")
    versions, loaded = make(), threading.Event()
    with caplog.at_level(logging.WARNING, "tfaccel"):
        versions.watch(0.05, loaded=loaded.set, failed=pytest.fail)
        assert loaded.wait(10)
        folder.rename(folder.parent / "away")
        wait_for(lambda: caplog.records)
        time.sleep(0.2)
        assert versions.get(None) == "servable 1"
        (folder.parent / "away").rename(folder)
        shutil.rmtree(folder / "1")
        wait_for(lambda: not versions.is_ready)
        versions.stop()
    assert [record.getMessage() for record in caplog.records] == [f"Cannot look for versions of pets: {folder} is gone"]
    with pytest.raises(RequestError, match=r"Latest\(pets\). Versions: none.") as caught:
        versions.get(None)
    assert caught.value.status == 404


def test_models_are_asked_for_later_while_they_are_loaded(make, folder):
    write_version(folder / "1")
    versions = make()
    assert not versions.is_ready
    with pytest.raises(RequestError, match="pets is being loaded") as caught:
        versions.get(None)
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})
    with pytest.raises(RequestError, match=r"Could not find version 7 of model pets. Versions: none."):
        versions.states(7)


def test_ready_when_all_that_should_be_served_is_loaded(tmp_path, folder):
    for number in (1, 2, 5):
        write_version(folder / str(number))
    steps, versions = [], None

    def load(path, version):
        steps.append((version, versions.is_ready, served(versions)))
        return f"servable {version}"

    versions = Versions("pets", folder, load, policy=VersionPolicy(versions=frozenset({1, 2})), labels={"stable": 1})
    versions.load_all()
    assert steps == [(2, False, {2: "LOADING", 1: "START"}), (1, False, {2: "AVAILABLE", 1: "LOADING"})]
    assert (versions.is_ready, versions.available, versions.labelled("stable")) == (True, [1, 2], 1)
    versions.configure(VersionPolicy(versions=frozenset({2, 5})), {"stable": 5})
    assert not versions.is_ready
    look(versions)
    assert (versions.is_ready, versions.available, versions.labelled("stable")) == (True, [2, 5], 5)
    versions = Versions("pets", folder, load, policy=VersionPolicy(versions=frozenset({7})))
    with pytest.raises(ServeError, match=r"has none of the versions that pets should be served with: 7\."):
        versions.load_all()


def test_numbers_of_other_scripts_are_no_versions(make, folder):
    for name in ("1", "\u0662", "0003", "9" * 30):
        write_version(folder / name)
    versions = make()
    versions.load_all()
    assert versions.available == [1, 3]


def test_folder_without_a_model_that_can_be_served_is_an_error(make, folder):
    faults = []
    versions = make()
    versions.watch(1.0, loaded=pytest.fail, failed=faults.append)
    wait_for(lambda: faults)
    versions.stop()
    write_version(folder / "3", graph=b"broken")
    with pytest.raises(ServeError, match="version 3 cannot be loaded"):
        make().load_all()
    assert len(faults) == 1 and "holds no SavedModel, and no folders of versions" in str(faults[0])


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Cyclic:
    """Holds itself, as a graph does."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("is_used", [False, True])
def test_what_is_no_longer_served_is_freed(folder, is_used):
    write_version(folder / "1")
    versions = Versions("pets", folder, lambda folder, version: Cyclic(), policy=VersionPolicy(latest=1))
    gc.disable()
    try:
        versions.load_all()
        first = weakref.ref(versions.get(None))
        used = first() if is_used else None  # by a request in progress
        write_version(folder / "2")
        look(versions, 2)
        assert (served(versions), first() is used) == ({2: "AVAILABLE"}, True)
        del used
        look(versions, 1)
        assert first() is None
    finally:
        gc.enable()
