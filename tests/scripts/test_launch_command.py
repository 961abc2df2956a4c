"""`tfaccel launch`: what its engines print, what it refuses, and what it does where there is a cluster already."""

import json
import subprocess
import sys

import pytest
import yaml

from tfaccel.scripts.main import main

COMMAND = ["--", "tfaccel", "train", "--recipe=image_classification", "--run_dir=/checkpoints/run", "--resume=auto"]


def test_slurm_script_is_printed(capsys):
    assert main(["tfaccel", "launch", "--engine=slurm", "--num_workers=2", "--name=digits", "--dry_run", *COMMAND]) == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert "#SBATCH --job-name=digits" in script and "#SBATCH --ntasks=2" in script


def test_kubernetes_manifest_is_printed(capsys):
    flags = ["--cores_per_worker=2", "--memory_per_worker_gib=4", "--volume_claim=runs", "--image=digits:1"]
    words = ["tfaccel", "launch", "--engine=kubernetes", "--num_workers=2", "--dry_run", *flags, *COMMAND]
    assert main(words) == 0
    kinds = [one["kind"] for one in yaml.safe_load_all(capsys.readouterr().out)]
    assert {"Service", "Job"} <= set(kinds)


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
        (["--engine=slrum", "--", "python"], "Received: --engine=slrum. Did you mean 'slurm'?"),
        (["--engine=kubernetes", "--num_workers=2", "--", "python"], "Give their image: --image=REGISTRY/NAME:TAG."),
        (["--image=a:1", "--", "python"], "--image is for --engine=kubernetes. Received: --image with --engine=local."),
        (["--name=a", "--", "python"], "--name is for --engine=slurm or --engine=kubernetes or --engine=ray."),
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
