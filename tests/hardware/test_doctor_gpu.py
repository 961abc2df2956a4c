import _ctypes
import dataclasses
import shutil
import zlib
from pathlib import Path

import pytest
from made_up_machine import add_command, add_package, make_machine

from tfaccel.hardware.doctor import Examination, ProbeResult
from tfaccel.hardware.doctor_installation import CUDA_12_LIBRARIES, GpuFindings, check_gpus, diagnose
from tfaccel.hardware.hardware import Device

BUILD = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}
H100 = Device(kind="GPU", index=0, model="NVIDIA H100", compute_capability=(9, 0), driver_version="580.65.06")
FINDINGS = GpuFindings(
    gpus=(H100, dataclasses.replace(H100, index=1)),
    num_seen=0,
    tensorflow_version="2.21.0",
    build=BUILD,
    load_errors={"libcudnn.so.9": "OSError: libcudnn.so.9: cannot open shared object file: No such file or directory"},
    packages={"nvidia-cublas-cu12": "12.5.3.2"},
    other_versions=("/usr/lib/x86_64-linux-gnu/libcudnn.so.8",),
)


def test_the_missing_library_the_build_what_is_installed_and_the_command():
    check = diagnose(FINDINGS)
    assert check.status == "fail"
    assert check.detail == (
        "TensorFlow sees 0 of 2 GPUs (2 x NVIDIA H100): failed to load: libcudnn.so.9 (of nvidia-cudnn-cu12): cannot "
        "open shared object file: No such file or directory. TensorFlow 2.21.0 was built for CUDA 12.5.1 and cuDNN 9. "
        "Installed: driver 580.65.06, nvidia-cublas-cu12 12.5.3.2, other versions: "
        "/usr/lib/x86_64-linux-gnu/libcudnn.so.8"
    )
    assert check.remedy == "pip install 'tfaccel[gpu]' (or: pip install 'tensorflow[and-cuda]==2.21.0')"


@pytest.mark.parametrize(
    ("changes", "detail", "remedy"),
    [
        ({"build": {"is_cuda_build": False}}, "was built without CUDA", "tensorflow[and-cuda]==2.21.0"),
        (
            {"load_errors": {"libcuda.so.1": "OSError: libcuda.so.1: no"}},
            "failed to load: libcuda.so.1 (of the driver): no.",
            "start it with --gpus all",
        ),
        (
            {"load_errors": {}, "gpus": (dataclasses.replace(H100, driver_version="470.82.01"),)},
            "the driver 470.82.01 is too old.",
            "driver 525.60 or newer",
        ),
        ({"load_errors": {}}, "all its libraries load.", "nvidia-smi"),
    ],
)
def test_other_causes(changes, detail, remedy):
    check = diagnose(dataclasses.replace(FINDINGS, **changes))
    assert check.status == "fail"
    assert detail in check.detail
    assert remedy in check.remedy
    assert ("pip install" in check.remedy) is (detail == "was built without CUDA")


def examine_gpus(machine, *, num_seen=0):
    examination = Examination(machine, time_limit_seconds=60.0)
    examination.__dict__["tensorflow"] = ProbeResult(
        ok=True, data={"version": "2.21.0", "num_gpus": num_seen, "build": BUILD}
    )
    (check,) = check_gpus(examination)
    return check


def make_gpu_machine(tmp_path, **fields):
    script = 'for i in 0 1; do echo "GPU-$i, NVIDIA L4, 23034, 580.65.06, 8.9"; done'
    environ = {"PATH": add_command(tmp_path, "nvidia-smi", script), **fields.pop("environ", {})}
    return make_machine(tmp_path, environ=environ, **fields)


def loadable_library() -> Path | None:
    """Some shared library, to stand for one of CUDA's."""
    files = [getattr(module, "__file__", None) for module in (zlib, _ctypes)]  # which of them depends on the build
    return next((Path(file) for file in files if file), None)


def test_libraries_are_looked_for_in_packages_too(tmp_path):
    site = Path(add_package(tmp_path, "nvidia-cudnn-cu12", "9.10.2.21"))
    some_library = loadable_library()
    if some_library is None:
        pytest.skip("this Python has no library of its own to copy")
    (site / "nvidia/cudnn/lib").mkdir(parents=True)
    shutil.copy(some_library, site / "nvidia/cudnn/lib/libcudnn.so.9")
    (site / "nvidia/cufft/lib").mkdir(parents=True)
    (site / "nvidia/cufft/lib/libcufft.so.11").write_text("not a library")
    files = {"/usr/local/cuda-11.8/lib64/libcusolver.so.10": ""}
    check = examine_gpus(make_gpu_machine(tmp_path, site_folders=(str(site),), files=files))
    assert check.status == "fail"
    assert "TensorFlow sees 0 of 2 GPUs (2 x NVIDIA L4)" in check.detail
    assert "libcudnn.so.9 (of" not in check.detail  # it loads
    assert f"{site}/nvidia/cufft/lib/libcufft.so.11: " in check.detail  # found, and the reason why it does not load
    assert "other versions: /usr/local/cuda-11.8/lib64/libcusolver.so.10" in check.detail
    assert "nvidia-cudnn-cu12 9.10.2.21" in check.detail


def test_every_library_is_tried(tmp_path):
    detail = examine_gpus(make_gpu_machine(tmp_path)).detail
    for name, package in CUDA_12_LIBRARIES.items():
        assert f"{name} (of {package})" in detail


def test_gpus_that_are_seen_or_hidden(tmp_path):
    machine = make_gpu_machine(tmp_path)
    check = examine_gpus(machine, num_seen=2)
    assert (check.status, check.detail) == ("ok", "TensorFlow sees 2: 2 x NVIDIA L4")
    hidden = dataclasses.replace(machine, environ={**machine.environ, "CUDA_VISIBLE_DEVICES": "-1"})
    check = examine_gpus(hidden)
    assert (check.status, check.detail) == ("skip", "the driver shows 2; CUDA_VISIBLE_DEVICES='-1' hides them all")


def test_a_card_without_a_driver(tmp_path):
    assert examine_gpus(make_machine(tmp_path)).status == "skip"
    folder = "/sys/bus/pci/devices/0000:01:00.0"
    files = {f"{folder}/vendor": "0x10de\n", f"{folder}/class": "0x030200\n"}
    check = examine_gpus(make_machine(tmp_path / "card", files=files))
    assert check.status == "warn"
    assert "0000:01:00.0" in check.detail
    sound = {**files, f"{folder}/class": "0x040300\n"}
    assert examine_gpus(make_machine(tmp_path / "sound", files=sound)).status == "skip"
