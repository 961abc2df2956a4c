"""`tfaccel launch`: what it refuses, and what it does where there is a cluster already."""

import json
import sys

import pytest

from tfaccel.scripts.main import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_workers=2"], "There is no COMMAND to launch. Give it after `--`: tfaccel launch --num_workers=2 --"),
        (["--", "python"], "Give the number of workers: --num_workers=2, say."),
        (
            ["--num_workers=0", "--", "python"],
            "num_workers must be a whole number of at least 1. Received: num_workers=0",
        ),
        (["--num_workers=2", "--", "no-such"], "The command to launch was not found: 'no-such'. Give it after `--`"),
        (["--num_workers=2", "--gpus_per_worker=9", "--", "python"], "2 workers with 9 GPUs each need 18 GPUs; this"),
    ],
)
def test_refusals_take_one_line_and_status_2(words, message, capsys):
    assert main(["tfaccel", "launch", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tfaccel launch: ") and message in line


def test_worker_of_a_cluster_runs_the_command_in_its_place(run_python):
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    environment = {"TF_CONFIG": json.dumps(config)}
    words = ["launch", "--", sys.executable, "-c", "print('in its place')"]
    child = run_python("tfaccel.scripts.main", *words, env=environment, fresh=True)
    assert child.stdout == "in its place\n"
    assert "launch: worker 1 of 2 (tf_config) runs the command" in child.stderr
    words = ["launch", "--num_workers=3", *words[1:]]
    refused = run_python("tfaccel.scripts.main", *words, env=environment, fresh=True, check=False)
    assert refused.returncode == 2
    assert "This process is a worker of a cluster of 2 (tf_config). Received: --num_workers=3." in refused.stderr
