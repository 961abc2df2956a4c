import json

import pytest
from made_up_machine import add_package, make_machine

from tfaccel.hardware.doctor import COMPUTATIONS, Examination, ProbeResult
from tfaccel.hardware.doctor_installation import check_cpu, check_one_gpu, check_tpus, computation_check, kernels_check
from tfaccel.hardware.hardware import Device
from tfaccel.processes.child import how_it_ended

KERNELS = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]

ARITHMETIC = """
import json, sys
import numpy as np
import tensorflow as tf
from tfaccel.hardware.doctor_probes import COMPUTATIONS, Computation, compare_with_numpy

found = {name: compare_with_numpy("CPU:0", computation) for name, computation in COMPUTATIONS.items()}
ones = np.ones((2, 2))
wrong = {
    "off": ("CPU:0", Computation(run=lambda dtype: [(tf.ones((2, 2)), ones), (1.1 * tf.ones((2, 2)), ones)])),
    "nan": ("CPU:0", Computation(run=lambda dtype: [(tf.ones((2, 2)), ones), (np.nan * tf.ones((2, 2)), ones)])),
    "elsewhere": ("GPU:7", COMPUTATIONS["matmul"]),
}
for name, (device, computation) in wrong.items():
    try:
        found[name] = compare_with_numpy(device, computation)
    except ArithmeticError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_right_numbers_pass_and_wrong_ones_do_not(run_python):
    found = json.loads(run_python(ARITHMETIC).stdout.splitlines()[-1])
    assert {"off", "nan", "elsewhere", *COMPUTATIONS} == found.keys()
    for name in COMPUTATIONS:
        assert found[name]["max_relative_error"] < found[name]["tolerance"]
    assert found["float16"]["max_relative_error"] > 1e-5  # it did not compute in float32
    assert found["bfloat16"]["max_relative_error"] > found["float16"]["max_relative_error"]
    assert found["off"] == "differs from numpy by 1.0e-01 relative; at most 0.002 was expected"
    assert found["nan"].startswith("differs from numpy by nan")
    assert found["elsewhere"].endswith("CPU:0 instead of GPU:7")


@pytest.mark.parametrize(
    ("capability", "status"),
    [((6, 1), "ok"), ((8, 6), "ok"), ((9, 0), "ok"), ((12, 0), "warn"), ((5, 2), "fail")],
)
def test_kernels_must_be_built_for_the_gpu(capability, status):
    check = kernels_check("GPU:0", capability, KERNELS)
    assert check.status == status
    assert f"compute capability {capability[0]}.{capability[1]}" in check.detail
    assert kernels_check("GPU:0", capability, ["sm_121"]).status == "fail"
    assert kernels_check("GPU:0", capability, []).status == "skip"


@pytest.mark.parametrize(
    ("result", "status", "remedy"),
    [
        (ProbeResult(ok=True, data={"max_relative_error": 1e-7}), "ok", ""),
        (ProbeResult(ok=False, cause="no answer within 9 seconds", has_hung=True), "fail", "--time_limit_seconds"),
        (ProbeResult(ok=False, cause="not tried, since two others hung", was_tried=False), "skip", ""),
        (
            ProbeResult(ok=False, cause="ResourceExhaustedError: out of memory"),
            "fail",
            "free",
        ),
        (ProbeResult(ok=False, cause=f"its process {how_it_ended(-6)}", output="ptxas fatal"), "fail", "update the"),
        (ProbeResult(ok=False, cause=f"its process {how_it_ended(-9)}"), "fail", "update the driver"),
        (ProbeResult(ok=False, cause=f"its process {how_it_ended(-6)}", output="Out of memory"), "fail", "free memory"),
    ],
)
def test_each_end_of_a_probe_has_its_status_and_remedy(result, status, remedy):
    check = computation_check("GPU:0", "matmul", result)
    assert (check.name, check.status) == ("GPU:0 matmul", status)
    assert remedy in check.remedy
    assert bool(remedy) is bool(check.remedy)


def make_examination(tmp_path, *, site_folders=(), files=None):
    """A machine whose TensorFlow was imported once, but breaks in the children that compute."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken since')")
    environ = {"PYTHONPATH": str(tmp_path)}
    machine = make_machine(tmp_path, environ=environ, site_folders=site_folders, files=files)
    examination = Examination(machine, time_limit_seconds=60.0)
    data = {"version": "2.21.0", "num_gpus": 1, "build": {"cuda_compute_capabilities": KERNELS}}
    examination.__dict__["tensorflow"] = ProbeResult(ok=True, data=data)
    return examination


def test_an_old_gpu_is_not_asked_for_bfloat16(tmp_path):
    gpu = Device(kind="GPU", index=0, compute_capability=(7, 5))
    checks = {check.name: check for check in check_one_gpu(make_examination(tmp_path), gpu)}
    assert {name: check.status for name, check in checks.items()} == {
        "GPU:0 kernels": "ok",
        "GPU:0 matmul": "fail",
        "GPU:0 convolution": "fail",
        "GPU:0 float16": "fail",
        "GPU:0 bfloat16": "skip",
        "GPU:0 XLA step": "fail",
    }
    assert checks["GPU:0 matmul"].detail == "ImportError: broken since"
    assert "7.5 has no bfloat16" in checks["GPU:0 bfloat16"].detail


def test_a_tpu_needs_the_package_that_drives_it(tmp_path):
    files = {"/dev/accel0": ""}
    (check,) = check_tpus(make_examination(tmp_path, files=files))
    assert check.status == "fail"
    assert "pip install 'tensorflow-tpu" in check.remedy
    site = add_package(tmp_path, "tensorflow-tpu", "2.20.0")
    found, *computations = check_tpus(make_examination(tmp_path, files=files, site_folders=(site,)))
    assert (found.status, found.detail) == ("ok", "1 TPU")
    assert [check.name.split()[0] for check in computations] == ["TPU:0"] * 5
    (none,) = check_tpus(make_examination(tmp_path / "none"))
    assert none.status == "skip"


def test_the_tpu_package_is_not_blamed_for_xla_on_the_cpu(tmp_path):
    site = add_package(tmp_path, "tensorflow-tpu", "2.20.0")
    statuses = {check.name: check.status for check in check_cpu(make_examination(tmp_path, site_folders=(site,)))}
    assert statuses["CPU:0 XLA step"] == "warn"
    assert statuses["CPU:0 matmul"] == "fail"


def test_a_broken_numpy_is_named(tmp_path):
    examination = make_examination(tmp_path)
    (tmp_path / "numpy.py").write_text("raise ImportError('numpy is broken')")
    assert {check.detail for check in check_cpu(examination)} == {"ImportError: numpy is broken"}


def test_devices_are_skipped_where_tensorflow_cannot_be_imported(tmp_path):
    examination = make_examination(tmp_path)
    examination.__dict__["tensorflow"] = ProbeResult(ok=False, cause="its process was killed by SIGABRT")
    (check,) = check_cpu(examination)
    assert (check.name, check.status, check.detail) == ("CPU:0", "skip", "TensorFlow cannot be imported")
