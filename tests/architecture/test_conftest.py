"""The guards and fixtures of tests/conftest.py do what they promise."""

import shutil
from pathlib import Path

import pytest
from conftest import LONGEST_FIRST

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run_pytest(run_python, folder, tests, *options):
    """Runs pytest with the project's conftest on a file of tests, in a child process; returns its output."""
    for file in (CONFTEST, CONFTEST.with_name("forked_python.py")):
        shutil.copy(file, folder)
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\nfilterwarnings = error\n")
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


def test_files_that_take_longest_are_there_and_run_first(run_python, tmp_path):
    missing = [name for name in LONGEST_FIRST if not (CONFTEST.parent / name).is_file()]
    assert missing == []
    for name in (*LONGEST_FIRST[:2], "data/test_short.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def test_it(): pass\n")
    output = run_pytest(run_python, tmp_path, "def test_it(): pass\n", "--collect-only", "-q")
    assert output.split()[:3] == [f"{name}::test_it" for name in (*LONGEST_FIRST[:2], "data/test_short.py")]


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
