import dataclasses
import re
import sys
from pathlib import Path

import pytest
from made_up_machine import add_command, add_package, make_machine

from tfaccel.extras.tpu.preflight import missing_packages, prepare_runtime
from tfaccel.hardware.machine import Machine
from tfaccel.hardware.tpu import TPU_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
V5E = {
    "/sys/bus/pci/devices/0000:00:04.0/vendor": "0x1ae0\n",
    "/sys/bus/pci/devices/0000:00:04.0/device": "0x0063\n",
    "/dev/vfio/0": "",
}
ON_CPU = {"strategy": "none", "devices": ("CPU:0",), "jit_compile": False}
REAL_PACKAGES = Machine.here().site_folders


class Pip:
    """Stands for pip: notes what is asked for, and fails where it should."""

    def __init__(self, failure=None):
        self.asked = []
        self.failure = failure

    def __call__(self, *requirements):
        self.asked.append(requirements)
        return self.failure(requirements) if self.failure else None


def tpu_machine(tmp_path, *, python="#!/bin/sh\nexit 1\n", **packages):
    folders = {add_package(tmp_path, name.replace("_", "-"), version) for name, version in packages.items()}
    path = tmp_path / "python"
    path.write_text(python)
    path.chmod(0o755)
    return make_machine(tmp_path, files=V5E, site_folders=tuple(folders), python=str(path))


def test_pins_are_those_of_requirements_tpu():
    if not (ROOT / "requirements-tpu.txt").exists():
        pytest.skip("needs the sources")
    text = (ROOT / "requirements-tpu.txt").read_text()
    for name, bound in TPU_PACKAGES.items():
        assert re.search(rf"^{re.escape(name + bound)}$", text, re.MULTILINE)


def test_a_cpu_with_all_packages_needs_nothing(tmp_path):
    pip = Pip()
    runtime = prepare_runtime(make_machine(tmp_path, site_folders=REAL_PACKAGES), install=True, run_pip=pip)
    assert (str(runtime), runtime.plan_fields, pip.asked) == ("CPU runtime: no TPU and no GPU here.", {}, [])


def test_a_gpu_is_told(tmp_path):
    commands = add_command(tmp_path, "nvidia-smi", 'echo "GPU-0, Tesla T4, 15360, 580.65.06, 7.5"')
    machine = make_machine(tmp_path, site_folders=REAL_PACKAGES, environ={"PATH": f"{commands}:/usr/bin:/bin"})
    assert str(prepare_runtime(machine)) == "GPU runtime: 1 Tesla T4."


def test_missing_packages_are_installed_where_asked(tmp_path):
    machine = make_machine(tmp_path)
    pip, said = Pip(), []
    assert prepare_runtime(machine, install=True, say=said.append, run_pip=pip).kind == "CPU"
    ((*requirements,),) = pip.asked
    for package in ("keras", "tensorflow"):
        assert any(requirement.startswith((f"{package}<", f"{package}>")) for requirement in requirements)
    assert said == [f"Installing {', '.join(requirements)} ..."]
    assert not [requirement for requirement in requirements if "extra" in requirement]


def test_missing_packages_that_nobody_installs_are_an_error_with_the_command(tmp_path):
    with pytest.raises(RuntimeError, match=r"missing \(install=False\)\. Run: pip install '.*'keras[<>].*'"):
        prepare_runtime(make_machine(tmp_path))
    pip = Pip(lambda requirements: "ERROR: no network")
    with pytest.raises(RuntimeError, match=r"missing \(ERROR: no network\)"):
        prepare_runtime(make_machine(tmp_path), install=True, run_pip=pip)


def test_another_tensorflow_counts_as_one(tmp_path):
    machine = make_machine(tmp_path, site_folders=(add_package(tmp_path, "tensorflow-cpu", "2.21.0"),))
    assert not [text for text in missing_packages(machine) if text.startswith("tensorflow")]


def test_a_tpu_beside_a_tensorflow_that_cannot_drive_it(tmp_path):
    machine = tpu_machine(tmp_path, tensorflow="2.21.0")
    runtime = prepare_runtime(machine, install=True, run_pip=Pip())
    assert (runtime.kind, runtime.plan_fields) == ("CPU", ON_CPU)
    assert (
        "1 TPU v5e (local) found, but training is on the CPU: tensorflow is installed, which cannot" in runtime.reason
    )
    assert "in a new environment: pip install 'tensorflow-tpu>=2.20,<2.21' 'libtpu<0.0.32'" in runtime.reason


def test_a_tpu_without_tensorflow_gets_its_build_and_is_tried(tmp_path):
    pip, said = Pip(), []
    runtime = prepare_runtime(tpu_machine(tmp_path), install=True, say=said.append, run_pip=pip)
    assert pip.asked[0][:2] == ("tensorflow-tpu>=2.20,<2.21", "libtpu<0.0.32")
    assert not [text for text in pip.asked[0] if re.match(r"tensorflow\b(?!-)", text)]
    assert said[1] == "Starting the TPU in a child process ..."
    assert (runtime.kind, runtime.plan_fields) == ("CPU", ON_CPU)
    assert "TensorFlow's TPU build cannot use it: its process ended with status 1" in runtime.reason


def test_a_tpu_build_that_cannot_be_installed_leaves_the_cpu(tmp_path):
    pip = Pip(lambda requirements: "ERROR: No matching distribution" if "libtpu<0.0.32" in requirements else None)
    runtime = prepare_runtime(tpu_machine(tmp_path), install=True, run_pip=pip)
    assert "tensorflow-tpu cannot be installed: ERROR: No matching distribution" in runtime.reason
    assert any(requirement.startswith("tensorflow") for requirement in pip.asked[1])


# Stands for an interpreter: says that a TPU computes, if it is asked by that module.
ANSWERS = f"""#!{sys.executable}
import sys
from multiprocessing.connection import Connection
module, connection = sys.argv[3], Connection(int(sys.argv[4]))
if module != "MODULE":
    sys.exit(1)
connection.recv()
connection.send({{"ok": True, "data": {{}}}})
connection.recv()
"""
JAX_ONLY = ANSWERS.replace("MODULE", "tfaccel.extras.tpu.jax_probes")


def test_a_tpu_that_computes_is_used(tmp_path):
    python = ANSWERS.replace("MODULE", "tfaccel.hardware.doctor_probes")
    machine = tpu_machine(tmp_path, python=python, tensorflow_tpu="2.20.0")
    runtime = prepare_runtime(machine)
    assert str(runtime) == "TPU runtime: 1 TPU v5e (local), driven by TensorFlow's TPU build."
    assert runtime.plan_fields == {}


def test_a_tpu_that_only_jax_can_drive_is_used_by_keras_on_jax(tmp_path):
    pip, said = Pip(lambda wanted: "ERROR: none" if "libtpu<0.0.32" in wanted else None), []
    runtime = prepare_runtime(tpu_machine(tmp_path, python=JAX_ONLY), install=True, say=said.append, run_pip=pip)
    assert runtime.kind == "TPU"
    assert runtime.reason == (
        "1 TPU v5e (local), one core used by Keras's JAX backend with plain Model.fit, since tensorflow-tpu "
        "cannot be installed: ERROR: none."
    )
    assert pip.asked[-1] == ("jax[tpu]",)
    assert said[-2:] == ["Installing jax[tpu] ...", "Starting the TPU from JAX in a child process ..."]
    assert runtime.environ == {"KERAS_BACKEND": "jax"}
    assert runtime.plan_fields == {**ON_CPU, "dtype_policy": "mixed_bfloat16"}


def test_jax_that_is_there_is_not_installed(tmp_path):
    pip = Pip()
    machine = tpu_machine(tmp_path, python=JAX_ONLY, tensorflow="2.21.0", jax="0.10.2")
    assert prepare_runtime(machine, install=True, run_pip=pip).environ == {"KERAS_BACKEND": "jax"}
    assert not [wanted for wanted in pip.asked if "jax[tpu]" in wanted]


def test_why_jax_cannot_use_the_tpu_is_told(tmp_path):
    def run(name, **options):
        machine = tpu_machine(tmp_path / name, tensorflow="2.21.0")
        return prepare_runtime(machine, install=True, **options).reason

    (tmp_path / "pip").mkdir()
    (tmp_path / "run").mkdir()
    failing = Pip(lambda wanted: "ERROR: no wheel" if wanted == ("jax[tpu]",) else None)
    assert run("pip", run_pip=failing).endswith("JAX cannot be installed: ERROR: no wheel.")
    assert run("run", run_pip=Pip()).endswith("JAX cannot use it either: its process ended with status 1.")


def test_pip_itself_is_asked_and_its_error_told(tmp_path):
    python = "#!/bin/sh\necho noise >&2\necho 'ERROR: no such version' >&2\nexit 1\n"
    machine = dataclasses.replace(tpu_machine(tmp_path, python=python))
    with pytest.raises(RuntimeError, match="ERROR: no such version"):
        prepare_runtime(machine, install=True)
