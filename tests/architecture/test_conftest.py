"""The guards and fixtures of tests/conftest.py do what they promise."""

import json
import shutil
from pathlib import Path

import pytest
from rings import QUICK_SECONDS, known_durations

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run_pytest(run_python, folder, tests, *options):
    """Runs pytest with the project's conftest on a file of tests, in a child process; returns its output."""
    for file in (CONFTEST, CONFTEST.with_name("forked_python.py"), CONFTEST.with_name("rings.py")):
        shutil.copy(file, folder)
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  quick\nfilterwarnings = error\n")
    return run_python("pytest", "-p", "no:cacheprovider", "-rA", *options, cwd=folder, check=False, fresh=True).stdout


@pytest.mark.slow
def test_leaks_fail_the_test_that_leaks(run_python, tmp_path):
    output = run_pytest(
        run_python,
        tmp_path,
        """
import os, threading, time
import conftest

conftest.THREAD_GRACE_SECONDS = 0.5

def test_clean():
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()

def test_environment():
    os.environ["LEFT"] = "1"

def test_environment_is_put_back(monkeypatch):
    assert "LEFT" not in os.environ
    monkeypatch.setenv("MENDED", "1")

def test_policy():
    import keras
    keras.config.set_dtype_policy("mixed_bfloat16")

def test_policy_is_put_back():
    import keras
    assert keras.config.dtype_policy().name == "float32"

def test_devices(logical_devices):
    assert [device.name for device in logical_devices] == [f"/device:CPU:{i}" for i in range(4)]

def test_thread():
    threading.Thread(target=time.sleep, args=(60,), name="left behind", daemon=True).start()
""",
    )
    assert "7 passed, 3 errors" in output
    assert "os.environ['LEFT'] was None and is '1'" in output
    assert "keras.config.dtype_policy() was float32 and is mixed_bfloat16" in output
    assert "thread 'left behind' still runs" in output


@pytest.mark.slow
def test_starting_tensorflow_without_the_fixture_fails(run_python, tmp_path):
    output = run_pytest(
        run_python,
        tmp_path,
        """
def test_starts():
    import tensorflow as tf
    tf.constant(1) + 1
""",
    )
    assert "1 passed, 1 error" in output
    assert "TensorFlow was started without the fixture logical_devices" in output


def test_slow_tests_run_with_all_only(run_python, tmp_path):
    tests = "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\ndef test_fast(): pass\n"
    assert "1 passed, 1 deselected" in run_pytest(run_python, tmp_path, tests)
    assert "2 passed" in run_pytest(run_python, tmp_path, tests, "--all")


def test_files_that_take_longest_run_first_and_long_functions_are_left_out(run_python, tmp_path):
    seconds = {"test_b.py::test_long": QUICK_SECONDS, "test_b.py::test_kept": QUICK_SECONDS, "test_b.py::test_it": 0.5}
    (tmp_path / "durations.json").write_text(json.dumps(seconds))
    (tmp_path / "test_a.py").write_text("def test_it(): pass\n")
    (tmp_path / "test_b.py").write_text(
        "import pytest\ndef test_long(): pass\n@pytest.mark.quick\ndef test_kept(): pass\n"
        "@pytest.mark.parametrize('n', [1])\ndef test_it(n): pass\n"
    )
    names = "test_b.py::test_long test_b.py::test_kept test_b.py::test_it[1] test_a.py::test_it test_it.py::test_it"
    output = run_pytest(run_python, tmp_path, "def test_it(): pass\n", "--collect-only", "-q")
    assert output.split()[:5] == names.split()
    output = run_pytest(run_python, tmp_path, "def test_it(): pass\n", "--collect-only", "-q", "--quick")
    assert output.split()[:4] == names.split()[1:]


def test_durations_are_stored(run_python, tmp_path):
    tests = "import time\ndef test_long(): time.sleep(0.3)\ndef test_short(): pass\n"
    (tmp_path / "durations.json").write_text('{"test_other.py::test_it": 2.0}')
    assert "2 passed" in run_pytest(run_python, tmp_path, tests, "--store-durations")
    stored = json.loads((tmp_path / "durations.json").read_text())
    assert list(stored) == ["test_it.py::test_long", "test_other.py::test_it"]
    assert 0.3 <= stored["test_it.py::test_long"] < 5


def test_stored_functions_exist():
    files = {name.partition("::")[0] for name in known_durations()}
    assert [name for name in files if not (CONFTEST.parent / name).is_file()] == []


def test_foreign_environment_is_removed(run_python, tmp_path, monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID", "TF_USE_LEGACY_KERAS", "TPU_NAME"):
        monkeypatch.setenv(name, "1")
    names = "TF_CONFIG SLURM_PROCID TF_USE_LEGACY_KERAS TPU_NAME"
    tests = f"import os\ndef test_it(): assert not os.environ.keys() & set('{names}'.split())\n"
    assert "1 passed" in run_pytest(run_python, tmp_path, tests)


def test_child_shows_what_went_wrong(run_python):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)ended with status 3.*said this.*and that"):
        run_python("import sys; print('said this'); print('and that', file=sys.stderr); sys.exit(3)")


def test_child_that_hangs_is_ended(run_python):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)was ended after 0.5 seconds.*begun"):
        run_python("import time; print('begun', flush=True); time.sleep(60)", timeout_seconds=0.5)


@pytest.mark.parametrize("fresh", [False, True], ids=["fork", "fresh"])
def test_child_gets_environment_arguments_and_strict_warnings(run_python, tmp_path, fresh):
    code = "import os, sys; print(os.environ['A'], sys.argv[1:], os.getcwd()); import careful"
    (tmp_path / "careful.py").write_text("print(__name__)")
    child = run_python(code, "x", env={"A": "1"}, cwd=tmp_path, fresh=fresh)
    assert child.stdout == f"1 ['x'] {tmp_path}\ncareful\n"
    child = run_python("careful", "x", cwd=tmp_path, fresh=fresh)
    assert child.stdout == "__main__\n"
    code = "import os; print('TF_CPP_MIN_LOG_LEVEL' in os.environ)"
    child = run_python(code, env={"TF_CPP_MIN_LOG_LEVEL": None}, fresh=fresh)
    assert child.stdout == "False\n"
    code = "import sys; print({'tensorflow', 'keras'} <= set(sys.modules)); sys.exit('told why')"
    child = run_python(code, check=False, fresh=fresh)
    assert (child.stdout, child.returncode, child.stderr) == (f"{not fresh}\n", 1, "told why\n")
    code = "import atexit, warnings; atexit.register(print, 'left'); warnings.warn('careful', DeprecationWarning)"
    child = run_python(code, check=False, fresh=fresh)
    assert child.stdout == "left\n"
    assert child.returncode == 1
    assert "DeprecationWarning: careful" in child.stderr
