"""`tfaccel.Resume`: a script that is started again ends, to the last bit, as if it had never been interrupted."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALL_PLACES = ("0.1", "1.2", "1.test", "2.end")
SLOW = (
    "arrays",
    "unseeded",
    "executions",
    "part",
    "alike",
    "repeated",
    "replayed",
    "batches",
    "workers",
    "hooks",
    "generator",
)


def outcomes(run_python, *kinds, places=ALL_PLACES):
    code = f"from resume_program import main\nmain(*{kinds!r}, places={places!r})"
    child = run_python(code, env={"PYTHONPATH": str(HERE)})
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]


def check(found, kinds):
    assert [kind for kind, *_ in found] == list(kinds)
    for kind, whole, interrupted, again in found:
        assert interrupted == whole, kind
        assert len(whole[1]) > 2, kind
        assert again == whole, kind


def test_interrupted_fit_ends_as_an_undisturbed_one(run_python):
    check(outcomes(run_python, "shuffled", places=("1.2",)), ["shuffled"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SLOW, "mirrored"])
def test_every_kind_of_data(run_python, kind):
    check(outcomes(run_python, kind), [kind])


def started(folder, kind, *where):
    command = [sys.executable, str(HERE / "resume_program.py"), str(folder), kind, *where]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child):
    out, errors = child.communicate(timeout=300)
    return child.returncode, out.splitlines()[-1] if out else "", errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "repeated", "unseeded"])
def test_killed_process_starts_again(tmp_path, kind):
    if kind == "unseeded":  # the order of its data is drawn once, and then kept
        assert ended(started(tmp_path / "a", kind, "0.0"))[0] == -9
        subprocess.run(["cp", "-r", str(tmp_path / "a"), str(tmp_path / "b")], check=True)
    status, expected, errors = ended(started(tmp_path / "a", kind))
    assert status == 0, errors
    for where in ("0.3", "2.1", "2.test"):
        assert ended(started(tmp_path / "b", kind, where))[0] == -9
    assert ended(started(tmp_path / "b", kind))[:2] == (0, expected)


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path):
    """Each process is killed some time after its first checkpoint; then the directory ends as if nothing had been."""
    began = time.monotonic()
    status, expected, errors = ended(started(tmp_path / "a", "batches"))
    assert status == 0, errors
    seconds, generator = time.monotonic() - began, random.Random(0)
    for _ in range(8):
        child = started(tmp_path / "b", "batches")
        while not list((tmp_path / "b/checkpoints").glob("step_*")) and child.poll() is None:
            time.sleep(0.02)
        time.sleep(generator.uniform(0, seconds))
        child.kill()
        child.communicate()
    assert ended(started(tmp_path / "b", "batches"))[:2] == (0, expected)
