"""How many workers a call from Python asks for: what is refused, and what an engine gets."""

import json

import pytest

from tfaccel.errors import LaunchError
from tfaccel.launching.worker_group import WorkerGroup


def test_without_an_engine_and_a_number_there_is_no_group():
    assert WorkerGroup.of(None, None, None) is None
    assert WorkerGroup.of(None, 2, {"max_restarts": 0}) == WorkerGroup(
        engine="local", num_workers=2, options={"max_restarts": 0}
    )


@pytest.mark.parametrize(
    ("engine", "num_workers", "options", "message"),
    [
        ("rya", 2, {}, "`engine` must be one of local, ray. Received: engine='rya'. Did you mean 'ray'?"),
        (
            "slurm",
            2,
            {},
            "Training cannot wait for a job of slurm. Received: engine='slurm'. Submit the command with",
        ),
        (
            "ray",
            None,
            {},
            "Give the number of workers, a whole number of at least 1, such as num_workers=2. Received: en",
        ),
        ("ray", 0, {}, "Give the number of workers, a whole number of at least 1, such as num_workers=2. Received: en"),
        (
            None,
            None,
            {"address": "auto"},
            "engine_options need an engine. Received: engine_options={'address': 'auto'}",
        ),
        ("local", 2, {"address": "auto"}, "The engine local has no option 'address'."),
        ("ray", 2, {"adress": "auto"}, "The engine ray has no option 'adress'. Did you mean 'address'?"),
        ("ray", 2, {"wait_seconds": 0}, "`wait_seconds` must be a number of seconds above 0. Received: 0."),
        ("ray", 2, {"min_workers": 0}, "`min_workers` must be a whole number of at least 1, or None. Received: 0."),
        ("ray", 2, {"max_restarts": -1}, "`max_restarts` must be a whole number of at least 0. Received: max_restarts"),
    ],
)
def test_what_is_refused(engine, num_workers, options, message):
    with pytest.raises(LaunchError) as caught:
        WorkerGroup.of(engine, num_workers, options)
    assert str(caught.value).startswith(message)


def test_a_worker_does_not_start_others(tmp_path, monkeypatch):
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    group = WorkerGroup(engine="ray", num_workers=2)
    with pytest.raises(
        LaunchError, match=r"^This process is a worker of a cluster of 2 already \(tf_config\), and cannot"
    ):
        group.run(["true"], folder=tmp_path, on_event=print)


def test_more_workers_than_there_are_at_least_are_refused(tmp_path):
    group = WorkerGroup(engine="ray", num_workers=2, options={"min_workers": 3})
    with pytest.raises(
        LaunchError, match=r"^Training may go on with fewer workers, not with more\. Received: min_workers"
    ):
        group.run(["true"], folder=tmp_path, on_event=print)


def test_output_of_workers_is_shown_or_only_kept(tmp_path, capfd):
    group = WorkerGroup(engine="local", num_workers=1, options={"cores_per_worker": 1})
    for shows in (True, False):
        assert group.run(["echo", "a line"], folder=tmp_path / str(shows), on_event=print, shows_output=shows) == 0
        assert ("[0] a line\n" in capfd.readouterr().out) == shows
        assert (tmp_path / str(shows) / "worker-0.log").read_text() == "a line\n"
