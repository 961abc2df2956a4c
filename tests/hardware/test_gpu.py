from types import SimpleNamespace

import pytest
from made_up_machine import add_command, make_machine

from tfaccel.hardware.gpu import DriverGpu, driver_gpus, find_gpus, visible_gpus
from tfaccel.hardware.hardware import Device

NEW_DRIVER = """
case "$1" in
  *compute_cap*) echo "GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 580.65.06, 9.0"
                 echo "GPU-bbbb, NVIDIA GB10, [N/A], 580.65.06, 12.1";;
esac
"""
OLD_DRIVER = """
case "$1" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac
echo "GPU-cccc, Tesla K80, 11441, 450.80.02"
"""


def test_nvidia_smi_of_a_new_driver(tmp_path):
    machine = make_machine(tmp_path, environ={"PATH": add_command(tmp_path, "nvidia-smi", NEW_DRIVER)})
    h100, gb10 = find_gpus(machine)
    assert h100 == Device(
        kind="GPU",
        index=0,
        model="NVIDIA H100 80GB HBM3",
        memory_bytes=81559 * 2**20,
        compute_capability=(9, 0),
        driver_version="580.65.06",
    )
    assert (gb10.name, gb10.memory_bytes, gb10.compute_capability) == ("GPU:1", None, (12, 1))


def test_nvidia_smi_of_an_old_driver_lacks_the_capability(tmp_path):
    machine = make_machine(tmp_path, environ={"PATH": add_command(tmp_path, "nvidia-smi", OLD_DRIVER)})
    (gpu,) = find_gpus(machine)
    assert (gpu.model, gpu.compute_capability, gpu.driver_version) == ("Tesla K80", None, "450.80.02")


def test_proc_serves_where_nvidia_smi_fails(tmp_path):
    path = add_command(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    files = {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n",
        "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-dddd\n",
    }
    machine = make_machine(tmp_path, files=files, environ={"PATH": path})
    (gpu,) = driver_gpus(machine)
    assert gpu.uuid == "GPU-dddd"
    assert (gpu.device.model, gpu.device.driver_version) == ("NVIDIA A100", "580.65.06")


class NvmlError(Exception):
    pass


def make_nvml(*, init_error: bool = False) -> SimpleNamespace:
    """A stand-in for NVIDIA's library: one GPU that does not tell its memory; older ones answer in bytes."""

    def fail(*_args):
        raise NvmlError

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=fail if init_error else lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"535.104.05",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA L4",
        nvmlDeviceGetUUID=lambda handle: b"GPU-eeee",
        nvmlDeviceGetMemoryInfo=fail,
        nvmlDeviceGetCudaComputeCapability=lambda handle: (8, 9),
    )


def test_nvml_comes_first_and_nvidia_smi_where_it_fails(tmp_path):
    environ = {"PATH": add_command(tmp_path, "nvidia-smi", NEW_DRIVER)}
    (gpu,) = find_gpus(make_machine(tmp_path, environ=environ, import_nvml=make_nvml))
    assert gpu == Device(kind="GPU", index=0, model="NVIDIA L4", compute_capability=(8, 9), driver_version="535.104.05")
    broken = make_machine(tmp_path, environ=environ, import_nvml=lambda: make_nvml(init_error=True))
    assert len(find_gpus(broken)) == 2


def test_no_driver_no_gpus(tmp_path):
    assert find_gpus(make_machine(tmp_path, environ={"PATH": str(tmp_path)})) == ()


FOUR = tuple(DriverGpu(device=Device(kind="GPU", index=i, model=f"model {i}"), uuid=f"GPU-{i}{i}ff") for i in range(4))


@pytest.mark.parametrize(
    ("selection", "models"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", [2, 0]),
        ("0, 9, 1", [0]),
        ("GPU-33,GPU-11ff", [3, 1]),
        ("GPU-", []),
    ],
)
def test_cuda_visible_devices_as_cuda_reads_it(selection, models):
    chosen = visible_gpus(FOUR, selection)
    assert [gpu.model for gpu in chosen] == [f"model {i}" for i in models]
    assert [gpu.index for gpu in chosen] == list(range(len(models)))


def test_a_slice_is_a_device_of_unknown_memory():
    whole = DriverGpu(device=Device(kind="GPU", index=0, model="NVIDIA H100", memory_bytes=2**36), uuid="GPU-1")
    (part,) = visible_gpus([whole], "MIG-1234")
    assert (part.model, part.memory_bytes) == ("NVIDIA H100 (MIG)", None)
