"""Fixtures that every test may use, and guards that fail a test which leaves global state changed.

* `run_python` runs code or a module in a child process: for tests that need devices or a TensorFlow of their own. The
  child has TensorFlow loaded, not started, unless the test asks for a fresh interpreter.
* `logical_devices` gives the four logical CPU devices of this process; a test that starts TensorFlow here asks for it.
* After every test, os.environ, Keras's global settings and the running threads must be as they were before it.
"""

import functools
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from forked_python import ForkedPython
from rings import StoredDurations, chosen

from tfaccel.processes.quiet_start import collect_less_often, keep_loaded_objects

NUM_LOGICAL_CPUS = 4
THREAD_GRACE_SECONDS = 60.0

# Environment that would make a test's outcome depend on the machine it runs on: clusters, other backends, compilers.
FOREIGN_NAMES = re.compile(
    r"TF_CONFIG|TF_XLA_FLAGS|XLA_FLAGS|TF_USE_LEGACY_KERAS|TF_FORCE_GPU_ALLOW_GROWTH|KERAS_BACKEND|ISTPUVM"
    r"|(SLURM|TPU|XRT|COLAB|JOB_COMPLETION|KUBERNETES|OMPI|PMI)_.*"
)

# Set once by importing TensorFlow, h5py or scikit-learn; no test can undo it. pytest itself sets the last one.
NAMES_SET_BY_IMPORTS = {
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "TF2_BEHAVIOR",
    "TPU_ML_PLATFORM",
    "TPU_ML_PLATFORM_VERSION",
    "HDF5_PLUGIN_PATH",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTEST_CURRENT_TEST",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked slow as well")
    parser.addoption("--quick", action="store_true", help="leave out the functions that take longest; see rings.py")
    parser.addoption("--store-durations", action="store_true", help="write how long functions take to durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--store-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(StoredDurations())
    collect_less_often()  # importing and tracing create many objects that stay
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a shell starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it to their children
    for name in [name for name in os.environ if FOREIGN_NAMES.fullmatch(name)]:
        del os.environ[name]
    keras_home = tempfile.TemporaryDirectory(prefix="tfaccel-tests-")  # The user's keras.json must not matter.
    config.add_cleanup(keras_home.cleanup)
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1", KERAS_HOME=keras_home.name)
    os.environ["TFACCEL_CACHE"] = str(Path(keras_home.name, "measured"))  # Empty when a test begins.


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:], left = chosen(items, config)
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if sys.modules.get("tensorflow"):  # A test module imports it: split the CPU before anything starts the runtime.
        split_cpu()
        keep_modules()


@functools.cache
def keep_modules() -> None:
    keep_loaded_objects()


def split_cpu() -> bool:
    """Gives this process its logical CPU devices; False where TensorFlow has started without them."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or []) == NUM_LOGICAL_CPUS:
        return True
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * NUM_LOGICAL_CPUS)
    except RuntimeError:
        return False
    return True


@pytest.fixture(scope="session")
def logical_devices() -> list[Any]:
    """The four logical CPU devices of this process, `CPU:0` to `CPU:3`; imports TensorFlow (some seconds, once)."""
    import tensorflow as tf

    if not split_cpu():
        pytest.fail("TensorFlow has started before logical_devices was asked for; see the first test that failed.")
    devices: list[Any] = tf.config.list_logical_devices("CPU")
    return devices


@pytest.fixture(autouse=True)
def unchanged_globals() -> Iterator[None]:
    """Fails a test that leaves the environment, Keras's settings or threads changed; puts back what it can."""
    shutil.rmtree(os.environ["TFACCEL_CACHE"], ignore_errors=True)
    environment = environment_now()
    threads = set(threading.enumerate())
    settings = keras_settings()
    yield
    problems = environment_changes(environment) + keras_changes(settings) + threads_left(threads)
    if sys.modules.get("tensorflow") and not split_cpu():
        problems.append("TensorFlow was started without the fixture logical_devices")
    if problems:
        pytest.fail("the test left global state changed: " + "; ".join(problems), pytrace=False)


def environment_now() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NAMES_SET_BY_IMPORTS}


def environment_changes(before: dict[str, str]) -> list[str]:
    now = environment_now()
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    for name in names:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    return [f"os.environ[{name!r}] was {before.get(name)!r} and is {now.get(name)!r}" for name in names]


def keras_settings() -> dict[str, str]:
    """Keras's global settings, or the ones it starts with where it is not imported."""
    if not sys.modules.get("keras"):
        return {"dtype_policy": "float32", "floatx": "float32", "image_data_format": "channels_last"}
    config = importlib.import_module("keras").config
    return {
        "dtype_policy": config.dtype_policy().name,
        "floatx": config.floatx(),
        "image_data_format": config.image_data_format(),
    }


def keras_changes(before: dict[str, str]) -> list[str]:
    now = keras_settings()
    changed = [name for name in before if before[name] != now[name]]
    for name in changed:
        getattr(importlib.import_module("keras").config, f"set_{name}")(before[name])
    return [f"keras.config.{name}() was {before[name]} and is {now[name]}" for name in changed]


def threads_left(before: set[threading.Thread]) -> list[str]:
    deadline = time.monotonic() + THREAD_GRACE_SECONDS
    # Python's stand-in for a thread of TensorFlow's pool that has run Python code cannot be joined.
    new = [one for one in threading.enumerate() if one not in before and not one.name.startswith("Dummy-")]
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [f"thread {thread.name!r} still runs" for thread in new if thread.is_alive()]


@pytest.fixture(scope="session")
def run_python(pytestconfig: pytest.Config) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """A function that runs Python in a child process; see `ChildPython.__call__`."""
    child_python = ChildPython(pytestconfig.getini("filterwarnings"))
    yield child_python
    child_python.close()


class ChildPython:
    """Runs code or a module in a child process, in which warnings are errors just as in the tests."""

    def __init__(self, warning_filters: list[str]) -> None:
        self.warning_options = [f"-W{warning_filter}" for warning_filter in warning_filters]
        self._forked: ForkedPython | None = None

    def __call__(
        self,
        code_or_module: str,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        timeout_seconds: float = 240.0,
        check: bool = True,
        cwd: Path | None = None,
        fresh: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `code_or_module`: a dotted name is run as a module (`python -m`), anything else as code (`python -c`).

        `env` adds to the environment of the tests; a value of None removes the name. A child that runs longer than
        `timeout_seconds` is ended with all it started. With `check`, a status other than 0 fails the test and shows
        the child's output. Returns the completed process: `returncode`, `stdout`, `stderr`.

        The child is a fork that has loaded TensorFlow. With `fresh` it is a new interpreter: for tests of what is
        imported, and of variables that are read when TensorFlow is.
        """
        is_module = bool(re.fullmatch(r"[A-Za-z_][\w.]*", code_or_module))
        variables = {**os.environ, **(env or {})}
        how: dict[str, Any] = {
            "is_module": is_module,
            "env": {name: value for name, value in variables.items() if value is not None},
            "timeout_seconds": timeout_seconds,
            "cwd": cwd,
        }
        run = self._run_fresh if fresh else self._run_forked
        try:
            child = run(code_or_module, [str(argument) for argument in arguments], **how)
        except subprocess.TimeoutExpired as error:
            ended = f"was ended after {timeout_seconds:g} seconds"
            pytest.fail(describe_child(code_or_module, ended, error.stdout, error.stderr), pytrace=False)
        if check and child.returncode != 0:
            ended = f"ended with status {child.returncode}"
            pytest.fail(describe_child(code_or_module, ended, child.stdout, child.stderr), pytrace=False)
        return child

    def _run_forked(self, *arguments: Any, **how: Any) -> subprocess.CompletedProcess[str]:
        if self._forked is None:
            self._forked = ForkedPython(self.warning_options)
        return self._forked.run(*arguments, **how)

    def _run_fresh(
        self, program: str, arguments: list[str], *, is_module: bool, env: Any, timeout_seconds: float, cwd: Path | None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *self.warning_options, "-m" if is_module else "-c", program, *arguments]
        streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen(command, env=env, cwd=cwd, start_new_session=True, **streams)
        try:
            stdout, stderr = child.communicate(timeout=timeout_seconds)
        except BaseException as error:
            stdout, stderr = end_group(child)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise subprocess.TimeoutExpired(command, timeout_seconds, stdout, stderr) from None
        return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)

    def close(self) -> None:
        """Ends the process that is forked."""
        if self._forked is not None:
            self._forked.close()


def end_group(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Ends a child and every process it started; returns what they wrote."""
    os.killpg(child.pid, signal.SIGKILL)
    return child.communicate()


def describe_child(code_or_module: str, ended: str, stdout: str, stderr: str) -> str:
    return (
        f"the child process {ended}\n"
        f"--- what it ran\n{code_or_module}\n"
        f"--- its standard output\n{stdout[-8000:]}\n"
        f"--- its standard error\n{stderr[-8000:]}"
    )
