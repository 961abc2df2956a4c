"""`tfaccel launch --engine=slurm|kubernetes --dry_run`, and what is refused."""

import subprocess

import pytest
import yaml

from tfaccel.scripts.main import main

COMMAND = ("--", "python", "train.py", "a b")


@pytest.fixture
def launch(capfd):
    def launch(*arguments):
        status = main(["tfaccel", "launch", *arguments])
        said = capfd.readouterr()
        return status, said.out, said.err

    return launch


def test_a_dry_run_prints_a_batch_script(launch):
    flags = ["--num_workers=4", "--workers_per_node=2", "--cores_per_worker=3", "--gpus_per_worker=1", "--name=digits"]
    flags += ["--memory_per_worker_gib=1.5", "--time_limit_hours=2.5", "--partition=gpu", "--environment=A=1,B=x=y"]
    status, text, said = launch(
        "--engine=slurm", "--dry_run", *flags, "--max_restarts=7", "--grace_seconds=30", *COMMAND
    )
    assert (status, said) == (0, "")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    lines = text.splitlines()
    wanted = ["job-name=digits", "nodes=2", "ntasks=4", "cpus-per-task=3", "gpus-per-task=1", "mem=3072M"]
    wanted += ["time=0-02:30:00", "partition=gpu", "signal=TERM@75"]
    assert [one for one in wanted if f"#SBATCH --{one}" not in lines] == []
    assert {"command=(python train.py 'a b')", "export A=1", "export B=x=y"} <= set(lines)
    assert "after 7 restarts" in text


def test_a_dry_run_prints_a_manifest(launch):
    flags = ["--num_workers=2", "--cores_per_worker=3", "--memory_per_worker_gib=2", "--image=digits:1"]
    flags += ["--volume_claim=runs", "--mount_path=/runs", "--namespace=team", "--user_id=2000"]
    status, text, said = launch("--engine=kubernetes", "--dry_run", *flags, *COMMAND)
    assert (status, said) == (0, "")
    job = list(yaml.safe_load_all(text))[-1]
    pod = job["spec"]["template"]["spec"]
    assert (job["metadata"]["namespace"], pod["securityContext"]["runAsUser"]) == ("team", 2000)
    assert pod["containers"][0]["command"] == ["python", "train.py", "a b"]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "3", "memory": "2Gi"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--engine=slrum"],
            "--engine must be one of local, slurm, kubernetes, ray. Received: --engine=slrum. Did you",
        ),
        (["--engine=slurm", "--image=a"], "--image is for --engine=kubernetes. Received: --image with --engine=slurm."),
        (["--partition=a"], "--partition is for --engine=slurm. Received: --partition with --engine=local."),
        (["--engine=ray", "--dry_run"], "--dry_run is for --engine=slurm or --engine=kubernetes. Received: --dry_run"),
        (
            ["--engine=kubernetes"],
            "Kubernetes runs workers in containers. Give their image: --image=REGISTRY/NAME:TAG.",
        ),
        (["--engine=slurm", "--environment=A"], "--environment takes NAME=VALUE, separated by commas. Received: 'A'."),
    ],
)
def test_flags_that_do_not_fit_are_refused(launch, flags, message):
    status, text, said = launch("--num_workers=2", *flags, *COMMAND)
    assert (status, text) == (2, "")
    assert said.startswith(f"tfaccel launch: {message}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("engine", "flags", "program"),
    [
        (
            "slurm",
            [],
            "sbatch was not found, so that the job cannot be submitted from here. Print it with --dry_run, and",
        ),
        (
            "kubernetes",
            ["--image=a", "--cores_per_worker=1", "--memory_per_worker_gib=1", "--max_restarts=0"],
            "kubectl was not found, so that the job cannot be submitted from here.",
        ),
    ],
)
def test_without_the_program_that_submits_the_dry_run_is_named(launch, monkeypatch, engine, flags, program):
    monkeypatch.setenv("PATH", "")
    status, text, said = launch(f"--engine={engine}", "--num_workers=2", *flags, *COMMAND)
    assert (status, text) == (2, "")
    assert said.startswith(f"tfaccel launch: {program}")
