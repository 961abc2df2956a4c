import json

import pytest
from made_up_machine import add_package, make_machine

from tfaccel.hardware.doctor import Check, Examination, last_words
from tfaccel.hardware.doctor_installation import (
    check_imports,
    check_keras_settings,
    check_machine,
    check_packages,
    check_python,
    check_version,
)


def run_check(function, machine):
    return {check.name: check for check in function(Examination(machine, time_limit_seconds=60.0))}


def installed(tmp_path, **packages):
    for name, version in packages.items():
        site = add_package(tmp_path, name.replace("_", "-"), version)
    return make_machine(tmp_path, site_folders=(site,))


def test_a_fault_without_a_remedy_and_an_unknown_status_are_refused():
    with pytest.raises(ValueError, match="needs a remedy"):
        Check(name="x", status="fail", detail="broken")
    with pytest.raises(ValueError, match=r"one of ok, warn, fail, skip\. Received: status='good'"):
        Check(name="x", status="good", detail="")


@pytest.mark.parametrize(
    ("version", "status"),
    [("3.14.9", "fail"), ("3.15.0", "ok"), ("3.15.9", "ok"), ("3.16.0.dev1", "warn"), ("4.0", "warn"), ("abc", "warn")],
)
def test_versions_older_than_tested_fail_and_newer_warn(version, status):
    check = check_version("keras version", version, ((3, 15), (3, 15)), "pip install 'keras>=3.15,<3.16'")
    assert check.status == status
    assert (check.remedy == "pip install 'keras>=3.15,<3.16'") is (status == "fail")


def test_installed_versions_are_read_from_metadata(tmp_path):
    checks = run_check(check_packages, installed(tmp_path, tensorflow="2.21.0", keras="3.16.1"))
    assert {name: check.status for name, check in checks.items()} == {
        "tensorflow packages": "ok",
        "tensorflow version": "ok",
        "keras version": "warn",
    }
    assert checks["keras version"].detail == "3.16.1 is untested; 3.15 is the newest tested"
    old = run_check(check_packages, installed(tmp_path / "old", tensorflow="2.16.1", keras="2.15.0"))
    assert {check.status for name, check in old.items() if "version" in name} == {"fail"}
    none = run_check(check_packages, make_machine(tmp_path / "none"))
    assert [check.status for check in none.values()] == ["skip"]


def test_two_packages_that_own_the_same_folder(tmp_path):
    machine = installed(tmp_path, tensorflow="2.21.0", tensorflow_tpu="2.20.0", libtpu="0.0.31")
    check = run_check(check_packages, machine)["tensorflow packages"]
    assert check.status == "fail"
    assert "tensorflow 2.21.0, tensorflow-tpu 2.20.0 are installed together" in check.detail
    assert check.remedy.startswith("pip uninstall -y tensorflow tensorflow-tpu")


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.0.31", "ok"), ("0.0.32", "fail"), ("0.0.42.1", "fail"), ("0.0.51", "fail"), ("0.1.0", "fail")],
)
def test_libtpu_must_have_what_tensorflow_tpu_needs(tmp_path, version, status):
    check = run_check(check_packages, installed(tmp_path, tensorflow_tpu="2.20.0", libtpu=version))["libtpu"]
    assert check.status == status
    assert check.remedy == ("" if status == "ok" else "pip install 'libtpu<0.0.32'")


def test_libtpu_must_be_there_and_matters_to_tpus_only(tmp_path):
    assert run_check(check_packages, installed(tmp_path, tensorflow_tpu="2.20.0"))["libtpu"].status == "fail"
    assert "libtpu" not in run_check(check_packages, installed(tmp_path / "cpu", tensorflow="2.21.0", libtpu="0.1"))


def test_keras_on_another_backend_and_legacy_keras(tmp_path):
    environ = {"KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    checks = run_check(check_keras_settings, make_machine(tmp_path, environ=environ))
    assert [check.status for check in checks.values()] == ["fail", "fail"]
    assert "backend jax (by KERAS_BACKEND)" in checks["keras backend"].detail
    assert checks["keras backend"].remedy == "export KERAS_BACKEND=tensorflow"
    assert checks["legacy keras"].remedy.startswith("unset TF_USE_LEGACY_KERAS")
    good = run_check(check_keras_settings, make_machine(tmp_path))
    assert [check.status for check in good.values()] == ["ok", "ok"]


def test_a_backend_set_in_the_file_is_mended_in_the_file(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}))
    machine = make_machine(tmp_path, environ={"KERAS_HOME": str(tmp_path)})
    check = run_check(check_keras_settings, machine)["keras backend"]
    assert check.remedy == f'set "backend": "tensorflow" in {tmp_path / "keras.json"}'


def test_broken_cluster_settings_are_quoted(tmp_path):
    checks = run_check(check_machine, make_machine(tmp_path, environ={"TF_CONFIG": "oops"}))
    assert (checks["machine"].status, checks["cluster"].status) == ("ok", "fail")
    assert "TF_CONFIG='oops'" in checks["cluster"].detail
    lost = run_check(check_machine, make_machine(tmp_path / "lost", files={"/proc/meminfo": ""}))
    assert lost["machine"].status == "fail"
    assert lost["cluster"].status == "skip"


def test_this_python_works(tmp_path):
    assert run_check(check_python, make_machine(tmp_path))["python"].status == "ok"


def test_a_tensorflow_that_aborts_is_named_and_nothing_else_is_tried(tmp_path):
    words = "F0000 00:00:17.5 12 tpu_library_init_fns.inc:12] ConfigureDistributedTpuOp_DoWork not available"
    code = f"import os, sys; print({words!r}, file=sys.stderr, flush=True); print('bye', flush=True); os.abort()"
    (tmp_path / "tensorflow.py").write_text(code)
    checks = run_check(check_imports, make_machine(tmp_path, environ={"PYTHONPATH": str(tmp_path)}))
    (check,) = checks.values()
    assert check.status == "fail"
    assert check.detail == f"its process was killed by SIGABRT (the program aborted itself); its last words: {words}"
    assert "pip install 'tensorflow>=2.20,<2.22'" in check.remedy


def test_each_library_that_cannot_be_imported_has_its_own_line(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import types\n"
        "__version__ = '2.21.0'\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda kind: [])\n"
        "sysconfig = types.SimpleNamespace(get_build_info=lambda: {'is_cuda_build': False})\n"
    )
    (tmp_path / "keras.py").write_text("__version__ = '3.15.1'")
    (tmp_path / "tensorboard.py").write_text("")
    (tmp_path / "keras_tuner.py").write_text("import nothing_of_that_name")
    (tmp_path / "ai_edge_litert").mkdir()
    (tmp_path / "ai_edge_litert" / "__init__.py").write_text("")
    (tmp_path / "ai_edge_litert" / "interpreter.py").write_text("import os; os.kill(os.getpid(), 11)")
    checks = run_check(check_imports, make_machine(tmp_path, environ={"PYTHONPATH": str(tmp_path)}))
    assert {name: check.status for name, check in checks.items()} == {
        "import tensorflow": "ok",
        "import keras": "ok",
        "import tensorboard": "ok",
        "import keras-tuner": "fail",
        "import ai-edge-litert": "fail",
    }
    assert checks["import keras-tuner"].detail == "ModuleNotFoundError: No module named 'nothing_of_that_name'"
    assert checks["import keras-tuner"].remedy == "pip install 'keras-tuner'"
    assert checks["import ai-edge-litert"].detail.startswith(
        "its process was killed by SIGSEGV (invalid memory access)"
    )


# Each probe imports in one child process, the libraries after Keras.
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras_tuner", "ai_edge_litert"):
            raise ModuleNotFoundError(f"No module named {name.split('.')[0]!r}")

sys.meta_path.insert(0, Absent())
"""


def test_packages_of_extras_may_be_absent(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import types\n"
        "__version__ = '2.21.0'\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda kind: [])\n"
        "sysconfig = types.SimpleNamespace(get_build_info=lambda: {'is_cuda_build': False})\n"
    )
    (tmp_path / "keras.py").write_text(f"__version__ = '3.15.1'\n{ABSENT}")
    (tmp_path / "tensorboard.py").write_text("")
    checks = run_check(check_imports, make_machine(tmp_path, environ={"PYTHONPATH": str(tmp_path)}))
    for package, extra in [("keras-tuner", "tune"), ("ai-edge-litert", "litert")]:
        check = checks[f"import {package}"]
        assert check.status == "skip"
        assert check.detail == f"not installed; training does without it (pip install 'tfaccel[{extra}]')"


def test_last_words_are_the_most_telling_line():
    assert last_words("I0 start\nF0101 boom\nE0101 later\n  done  \n") == "F0101 boom"
    assert last_words("ok\nValueError: bad\nbye\n") == "ValueError: bad"
    assert last_words("one\n\n two  words \n") == "two words"
    assert last_words("") == ""
