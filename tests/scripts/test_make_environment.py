"""./scripts/demo and ./scripts/test find a Python that fits, and notice when their environment is out of date."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("setup.cfg", "pyproject.toml", "constraints.txt")  # what the environment is made from
pytestmark = pytest.mark.skipif(not (ROOT / "scripts").is_dir(), reason="needs the sources")


def run_bash(code, *, cwd=ROOT, **environment):
    source = f"set -euo pipefail; source {shlex.quote(str(ROOT))}/scripts/environment; {code}"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHON"} | environment
    bash = shutil.which("bash")
    return subprocess.run([bash, "-c", source], cwd=cwd, env=variables, capture_output=True, text=True, check=False)


def fake_python(folder, name, version):
    """An executable that says it is some version of Python."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    supported = version in ("3.11.9", "3.12.4", "3.13.0")
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}" && exit 0\nexit {int(not supported)}\n'
    )
    path.chmod(0o755)
    return path


def test_first_supported_python_is_taken(tmp_path):
    fake_python(tmp_path, "python3", "3.14.0")
    fake_python(tmp_path, "python3.11", "3.11.9")
    newest = fake_python(tmp_path, "python3.12", "3.12.4")
    assert run_bash("find_python", PATH=str(tmp_path)).stdout == f"{newest}\n"
    users_own = fake_python(tmp_path, "python3", "3.13.0")
    assert run_bash("find_python", PATH=str(tmp_path)).stdout == f"{users_own}\n"


def timed_python(folder, name, seconds):
    """A Python that says it takes so long for a small program."""
    folder.mkdir(exist_ok=True)
    path, real = folder / name, shlex.quote(sys.executable)
    path.write_text(
        "#!/bin/sh\n"
        f'case "$2" in *"import subprocess"*) ;; *"import ensurepip"*) echo {seconds}; exit ;; esac\n'
        f'exec {real} "$@"\n'
    )
    path.chmod(0o755)
    return path


def test_a_much_faster_python_is_taken(tmp_path):
    first, fast = timed_python(tmp_path, "python3", 0.6), timed_python(tmp_path, "python3.13", 0.4)
    found = run_bash("find_python", PATH=str(tmp_path))
    assert found.stdout == f"{fast}\n"
    assert f"Taking {fast}, which is faster than {first} (PYTHON={first} takes that one)" in found.stderr
    assert run_bash("find_python", PATH=str(tmp_path), PYTHON="python3").stdout == f"{first}\n"
    timed_python(tmp_path, "python3.13", 0.5)
    assert run_bash("find_python", PATH=str(tmp_path)).stdout == f"{first}\n"


def test_named_python_is_taken(tmp_path):
    fake_python(tmp_path, "python3", "3.13.0")
    named = fake_python(tmp_path / "a name", "mine", "3.12.4")
    assert run_bash("find_python", PATH=str(tmp_path), PYTHON=str(named)).stdout == f"{named}\n"


def test_no_supported_python_is_said_clearly(tmp_path):
    fake_python(tmp_path, "python3", "3.10.2")
    found = run_bash("find_python", PATH=str(tmp_path))
    assert found.returncode == 1
    assert "tfaccel needs Python 3.11, 3.12 or 3.13. Found:" in found.stderr
    assert "python3: Python 3.10.2" in found.stderr
    assert "python3.12: not there" in found.stderr
    assert "PYTHON=/path/to/python" in found.stderr


@pytest.mark.parametrize("changed", FILES)
def test_stamp_follows_what_the_environment_is_made_from(tmp_path, changed):
    for name in FILES:
        (tmp_path / name).write_text("first")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    first = run_bash("environment_stamp", cwd=tmp_path).stdout
    assert len(first) == 65
    assert run_bash("environment_stamp", cwd=tmp_path).stdout == first
    (tmp_path / changed).write_text("second")
    assert run_bash("environment_stamp", cwd=tmp_path).stdout != first


def test_environment_that_stands_is_reused(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text("first")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    python = tmp_path / ".venv/bin/python"
    real = shlex.quote(sys.executable)
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *--editable*) echo installs;; esac; [ "$2" = pip ] || exec {real} "$@"\n'
    )
    python.chmod(0o755)
    first = run_bash("make_environment", cwd=tmp_path)
    assert (first.returncode, first.stdout.count("Installing tfaccel")) == (0, 1)
    assert run_bash("make_environment", cwd=tmp_path).stdout == ""
    (tmp_path / "setup.cfg").write_text("second")
    assert "Installing tfaccel" in run_bash("make_environment", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["scripts/demo", "scripts/test", ".ci/run"])
def test_commands_are_executable_bash(name):
    path = ROOT / name
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", path], check=True)


def test_help_of_test_needs_no_environment(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("test", "environment"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    asked = subprocess.run([tmp_path / "scripts/test", "--help"], capture_output=True, text=True, check=True)
    assert "./scripts/test [--full | --all] [arguments of pytest]" in asked.stdout
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        ("", ["--constraint"]),
        ("ERROR: No matching distribution found for keras==3.15.1", ["--constraint", "--editable"]),
        ("ERROR: ResolutionImpossible: for help visit", ["--constraint", "--editable"]),
        ("ERROR: Could not install packages due to an OSError: no space left", ["--constraint"]),
    ],
)
def test_tested_versions_are_installed_where_they_can_be(tmp_path, failure, tries):
    """The first option that pip gets, for each time that it is called."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    python = tmp_path / ".venv/bin/python"
    python.write_text(
        f"""#!/bin/bash
echo "$5"
[[ "$5" == --constraint && -n {shlex.quote(failure)} ]] || exit 0
echo {shlex.quote(failure)} >"$8"
exit 1
"""
    )
    python.chmod(0o755)
    found = run_bash("install_by_pip", cwd=tmp_path)
    assert found.stdout.split() == tries
    assert (found.returncode == 0) is (len(tries) == 2 or not failure)
    assert ("constraints.txt cannot be installed here" in found.stderr) is (len(tries) == 2)


@pytest.mark.parametrize(
    ("settings", "status", "calls"),
    [
        ("global.extra-index-url='file:///wheels'", 0, ["pip", "uv"]),
        ("global.index-url='file:///mirror'", 0, []),
        (":env:.no-index='1'", 0, []),
        ("", 1, ["pip"]),
    ],
)
def test_uv_installs_unless_pip_is_told_to_use_another_index(tmp_path, settings, status, calls):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    python = tmp_path / ".venv/bin/python"
    python.write_text(
        f"""#!/bin/bash
case "$*" in
*"config list") echo {shlex.quote(settings)} ;;
*"install --quiet uv") echo "pip"; exit {status} ;;
"-m uv pip install "*" --constraint constraints.txt --editable .[dev]") echo "uv" ;;
*) exit 3 ;;
esac
"""
    )
    python.chmod(0o755)
    found = run_bash("install_by_uv", cwd=tmp_path)
    assert found.stdout.split() == calls
    assert (found.returncode == 0) is ("uv" in calls)
