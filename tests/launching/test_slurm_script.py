"""The batch script: its directives, and what it does when workers end. `srun` and `scontrol` have stand-ins here."""

import json
import os
import re
import subprocess
import sys

import pytest

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.extras.cluster.slurm_script import SlurmOptions, slurm_script

# Runs the tasks of a step at the same time, as `srun` does, and ends with the highest status.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for ((task = 0; task < $SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task "$@" & tasks+=($!)
done
highest=0
for task in "${tasks[@]}"; do
    status=0; wait "$task" || status=$?
    ((status > highest)) && highest=$status
done
exit "$highest"
"""
SCONTROL = """#!/bin/bash
case $1 in
    show) echo node1; echo node2 ;;
    requeue) echo "requeued $2" ;;
esac
"""
ODD_WORDS = ("a b", "it's", '"quoted"', "$HOME", "$(date)", "`date`", "*", "", "line\nline", "\\")


def job(**changes):
    return ClusterJob(**{"command": ("python", "train.py"), "num_workers": 2, **changes})


def directives(text):
    """The options that a script asks `sbatch` for; they must stand before its first command."""
    lines = text.splitlines()
    found = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH ")]
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH "))
    assert all(line.startswith("#") for line in lines[: last + 1])
    return dict(line.partition("=")[::2] for line in found)


@pytest.fixture
def run_script(tmp_path):
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(made, **variables):
        options = SlurmOptions(workers_per_node=made.num_workers // 2 or 1)
        script = tmp_path / "job.sh"
        script.write_text(slurm_script(made, options))
        subprocess.run(["bash", "-n", script], check=True)
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_NTASKS": str(made.num_workers),
            **variables,
        }
        return subprocess.run(
            ["bash", script], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def python(code):
    return (sys.executable, "-c", code)


def test_directives():
    made = job(
        num_workers=4,
        name="digits",
        cores_per_worker=8,
        gpus_per_worker=1,
        memory_per_worker_bytes=3 * 2**30 + 1,
        time_limit_seconds=26 * 3600 + 61,
    )
    text = slurm_script(made, SlurmOptions(workers_per_node=2, partition="gpu,big", account="lab.1"))
    assert text.startswith("#!/bin/bash\n")
    assert directives(text) == {
        "job-name": "digits",
        "nodes": "2",
        "ntasks": "4",
        "ntasks-per-node": "2",
        "cpus-per-task": "8",
        "gpus-per-task": "1",
        "mem": "6145M",
        "time": "1-02:01:00",
        "partition": "gpu,big",
        "account": "lab.1",
        "requeue": "",
        "open-mode": "append",
        "output": "digits-%j.log",
        "signal": "TERM@60",
    }
    assert "set -euo pipefail" in text
    assert "--cpus-per-task=8 --output=digits-%j-worker-%t.log" in text


def test_what_is_not_asked_for_is_left_to_the_cluster():
    asked = directives(slurm_script(job(grace_seconds=100.5)))
    assert not {"cpus-per-task", "gpus-per-task", "mem", "time", "partition", "account"} & set(asked)
    assert asked["signal"] == "TERM@146"


def test_workers_get_the_command_and_the_environment_unchanged(run_script):
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    for odd in ODD_WORDS:
        done = run_script(job(command=(*python(code), *ODD_WORDS), num_workers=1, environment={"ODD": odd}))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [list(ODD_WORDS), odd]


def test_workers_know_their_place(run_script):
    done = run_script(
        job(command=python("import os; os.write(1, (os.environ['TF_CONFIG'] + chr(10)).encode())"), num_workers=4)
    )
    configs = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one["task"]["index"])
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(4)]
    addresses = ["node1:20014", "node1:20015", "node2:20014", "node2:20015"]
    assert [config["cluster"] for config in configs] == [{"worker": addresses}] * 4


def test_a_single_worker_has_no_cluster(run_script):
    done = run_script(job(command=python("import os; print('TF_CONFIG' in os.environ)"), num_workers=1))
    assert done.stdout == "False\n"


EXITS = "import os, sys; sys.exit(int(sys.argv[1 + int(os.environ['SLURM_PROCID'])]))"


@pytest.mark.parametrize(
    ("statuses", "restarts", "status", "said"),
    [
        ((0, 0), 0, 0, ""),
        ((0, 138), 0, 138, "The workers ended with status 138: the job is requeued.\nrequeued 7\n"),
        ((137, 138), 1, 138, "The workers ended with status 138: the job is requeued.\nrequeued 7\n"),
        ((143, 138), 2, 138, "The workers ended with status 143, after 2 restarts.\n"),
        ((138, 1), 0, 1, "A worker failed with status 1; starting again would not help. See its log.\n"),
        ((2, 138), 0, 2, "A worker failed with status 2; starting again would not help. See its log.\n"),
        ((138, 139), 0, 255, "A worker failed with status 255; starting again would not help. See its log.\n"),
    ],
)
def test_the_end_of_workers_decides_what_follows(run_script, statuses, restarts, status, said):
    made = job(command=(*python(EXITS), *map(str, statuses)), max_restarts=2)
    done = run_script(made, **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}))
    assert (done.returncode, done.stdout) == (status, said), done.stderr


def test_a_command_that_does_not_exist_is_final(run_script):
    done = run_script(job(command=("no-such-program",)))
    assert done.returncode == 255
    assert "no-such-program: command not found" in done.stderr
    assert "starting again would not help" in done.stdout


def test_a_worker_has_time_to_save_after_the_signal(tmp_path):
    """Slurm sends it to the shell of the worker and to the command; the shell must not end first."""
    code = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(138)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""
    worker = re.search(r"^worker='(.*?)^'$", slurm_script(job()), re.MULTILINE | re.DOTALL)[1]
    command = ["bash", "-c", worker, "worker", *python(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, 15)
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 138


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"workers_per_node": 3}, "`workers_per_node` must divide `num_workers`. Received: num_workers=2, workers"),
        ({}, {"workers_per_node": 0}, "`workers_per_node` must be a whole number of at least 1."),
        ({}, {"partition": "a b"}, "`partition` must be the name of a Slurm partition. Received: partition='a b'."),
        ({}, {"account": "a\n#SBATCH --uid=0"}, "`account` must be the name of a Slurm account."),
        ({"time_limit_seconds": 200}, {}, "Under Slurm, the time limit must be at least 300 seconds: the workers are"),
    ],
)
def test_what_slurm_cannot_run_is_refused(changes, options, message):
    with pytest.raises(LaunchError) as caught:
        slurm_script(job(**changes), SlurmOptions(**options))
    assert message in str(caught.value)
