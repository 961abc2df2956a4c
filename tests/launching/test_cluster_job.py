"""The noun of a cluster's job: what it takes, and what it refuses."""

import pytest

from tfaccel.errors import LaunchError, TfaccelError
from tfaccel.extras.cluster.cluster_job import ClusterJob


def job(**changes):
    return ClusterJob(**{"command": ("python", "train.py"), "num_workers": 2, **changes})


def test_json_both_ways():
    whole = job(
        name="digits-2",
        cores_per_worker=4,
        gpus_per_worker=1,
        memory_per_worker_bytes=2**34,
        time_limit_seconds=7200.0,
        max_restarts=0,
        grace_seconds=30.0,
        environment={"A": "$b 'c'"},
    )
    assert ClusterJob.from_json(whole.to_json()) == whole
    with pytest.raises(LaunchError, match=r"A cluster job has no field 'num_worker'\. Did you mean 'num_workers'\?"):
        ClusterJob.from_json({"num_worker": 2})


def test_a_job_cannot_be_changed_from_outside():
    words, variables = ["python", "train.py"], {"A": "1"}
    made = job(command=words, environment=variables)
    words.append("--more")
    variables["B"] = "2"
    assert (made.command, made.environment) == (("python", "train.py"), {"A": "1"})


def test_the_error_is_for_users():
    with pytest.raises(TfaccelError) as caught:
        job(num_workers=0)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_workers": 0}, "`num_workers` must be a whole number of at least 1. Received: num_workers=0."),
        ({"num_workers": True}, "Received: num_workers=True."),
        ({"cores_per_worker": 0}, "`cores_per_worker` must be a whole number of at least 1."),
        ({"gpus_per_worker": -1}, "`gpus_per_worker` must be a whole number of at least 0."),
        ({"gpus_per_worker": None}, "Received: gpus_per_worker=None."),
        ({"memory_per_worker_bytes": 4}, "`memory_per_worker_bytes` must be a whole number of at least 1048576."),
        ({"max_restarts": -1}, "`max_restarts` must be a whole number of at least 0. Received: max_restarts=-1."),
        ({"grace_seconds": 0}, "`grace_seconds` must be a number of seconds above 0. Received: grace_seconds=0."),
        ({"time_limit_seconds": float("nan")}, "`time_limit_seconds` must be a number of seconds above 0."),
        (
            {"time_limit_seconds": 10},
            "must be longer than the grace time of 15 seconds. Received: time_limit_seconds=1",
        ),
        (
            {"name": "Digits"},
            "small letters, digits and hyphens, begin with a letter and end with no hyphen. Received:",
        ),
        ({"name": "2digits"}, "Received: name='2digits'."),
        ({"name": "digits-"}, "Received: name='digits-'."),
        ({"name": "a\nb"}, r"Received: name='a\nb'."),
        ({"name": ""}, "Received: name=''."),
        ({"name": "a" * 62}, "Shorten the job's name by 1. Received: name='aaa"),
        ({"command": ()}, "There is no command to run on the workers. Give it after `--`"),
        ({"command": ("",)}, "There is no command to run on the workers."),
        ({"command": "python train.py"}, "`command` must be a list of strings. Received: command='python train.py'."),
        ({"command": ("a", 1)}, "`command` must be a list of strings."),
        ({"command": ("a", "b\0c")}, "A command cannot contain the character NUL."),
        (
            {"environment": {"A B": "1"}},
            "consist of letters, digits and underscores, and begin with no digit. Received",
        ),
        ({"environment": {"A": 1}}, "An environment variable must be text. Received: A=1."),
        ({"environment": {"TF_CONFIG": "{}"}}, "TF_CONFIG describes a worker's place in the cluster and is set for"),
        ({"environment": {"SLURM_PROCID": "1"}}, "Remove it from the environment of the job."),
    ],
)
def test_what_cannot_run_is_refused(changes, message):
    with pytest.raises(LaunchError) as caught:
        job(**changes)
    assert message in str(caught.value)


def test_a_name_may_have_as_many_characters_as_names_of_workers_allow():
    assert job(name="a" * 61, num_workers=10).name == "a" * 61
    with pytest.raises(LaunchError, match="Shorten the job's name by 1"):
        job(name="a" * 61, num_workers=11)


def test_flags_of_the_command():
    command = ("tfaccel", "train", "--run_dir=runs/a b", "--resume", "auto", "--quiet", "--seed")
    assert [job(command=command).flag(name) for name in ("run_dir", "resume", "seed", "epochs")] == [
        "runs/a b",
        "auto",
        None,
        None,
    ]
