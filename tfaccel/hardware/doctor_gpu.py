"""Why TensorFlow does not see a GPU that the driver reports: the library that failed to load, and the fix."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.hardware.doctor_check import Check
from tfaccel.hardware.doctor_examination import Examination, in_words
from tfaccel.hardware.hardware import Device
from tfaccel.hardware.machine import Machine

DRIVER_LIBRARY = "libcuda.so.1"
# The libraries that TensorFlow for CUDA 12 needs, and the package that provides each.
CUDA_12_LIBRARIES = {
    "libcudart.so.12": "nvidia-cuda-runtime-cu12",
    "libcublas.so.12": "nvidia-cublas-cu12",
    "libcublasLt.so.12": "nvidia-cublas-cu12",
    "libcufft.so.11": "nvidia-cufft-cu12",
    "libcusolver.so.11": "nvidia-cusolver-cu12",
    "libcusparse.so.12": "nvidia-cusparse-cu12",
    "libcudnn.so.9": "nvidia-cudnn-cu12",
}
# The oldest driver for CUDA 12. See https://docs.nvidia.com/deploy/cuda-compatibility/.
CUDA_12_DRIVER = (525, 60)


@dataclass(frozen=True, kw_only=True)
class GpuFindings:
    """The facts when TensorFlow sees too few GPUs.

    Args:
        gpus: the GPUs that it should see.
        num_seen: the number that it sees.
        tensorflow_version: its version.
        build: its build, from `tf.sysconfig.get_build_info`.
        load_errors: library that could not be loaded -> the reason.
        packages: NVIDIA's installed packages.
        other_versions: files of other versions of the missing libraries.
    """

    gpus: tuple[Device, ...]
    num_seen: int
    tensorflow_version: str
    build: Mapping[str, Any]
    load_errors: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    other_versions: tuple[str, ...] = ()


def check_gpus(examination: Examination) -> Iterator[Check]:
    """Checks that TensorFlow sees the GPUs that the driver reports."""
    shown, usable = examination.driver_gpus, examination.gpus
    num_seen = examination.tensorflow.data["num_gpus"] if examination.tensorflow.ok else 0
    if not shown and not num_seen:
        yield _no_driver(examination.machine)
    elif shown and not usable:
        selection = examination.machine.environ.get("CUDA_VISIBLE_DEVICES")
        detail = f"the driver shows {len(shown)}; CUDA_VISIBLE_DEVICES={selection!r} hides them all"
        yield Check(name="gpus", status="skip", detail=detail)
    elif not examination.tensorflow.ok:
        yield Check(name="gpus", status="skip", detail="TensorFlow cannot be imported")
    elif num_seen >= len(usable):
        yield Check(name="gpus", status="ok", detail=f"TensorFlow sees {num_seen}: {_models(usable)}")
    else:
        yield diagnose(_findings(examination, usable, num_seen))


def diagnose(findings: GpuFindings) -> Check:
    """Names the cause: a build without CUDA, the driver or a library; otherwise suggests what to try."""
    seen = f"TensorFlow sees {findings.num_seen} of {len(findings.gpus)} GPUs ({_models(findings.gpus)})"
    version, driver = findings.tensorflow_version, findings.gpus[0].driver_version or "of unknown version"
    cuda, cudnn = findings.build.get("cuda_version"), findings.build.get("cudnn_version")
    install = f"pip install 'tfaccel[gpu]' (or: pip install 'tensorflow[and-cuda]=={version}')"
    if not findings.build.get("is_cuda_build"):
        detail = f"{seen}: TensorFlow {version} was built without CUDA"
        return Check(name="gpus", status="fail", detail=detail, remedy=install)
    causes, remedies = [], []
    if (version_numbers(driver) or CUDA_12_DRIVER) < CUDA_12_DRIVER:
        causes.append(f"the driver {driver} is too old")
        remedies.append("install NVIDIA's driver 525.60 or newer")
    if DRIVER_LIBRARY in findings.load_errors:
        remedies.append(f"{DRIVER_LIBRARY} comes with the driver: in a container, start it with --gpus all")
    if set(findings.load_errors) - {DRIVER_LIBRARY}:
        remedies.append(install)
    if findings.load_errors:
        causes.append(f"failed to load: {_reasons(findings.load_errors)}")
    if not causes:
        causes.append("all its libraries load")
        remedies.append("see that nvidia-smi works and /dev/nvidia* can be opened, then restart the machine")
    packages = in_words(dict(findings.packages)) or "no NVIDIA package"
    others = f", other versions: {', '.join(findings.other_versions)}" if findings.other_versions else ""
    detail = (
        f"{seen}: {'; '.join(causes)}. TensorFlow {version} was built for CUDA {cuda} and cuDNN {cudnn}. "
        f"Installed: driver {driver}, {packages}{others}"
    )
    return Check(name="gpus", status="fail", detail=detail, remedy="; ".join(remedies))


def version_numbers(version: str) -> tuple[int, ...] | None:
    """The numbers in a driver version, such as (580, 65, 6); None if there are none."""
    return tuple(map(int, re.findall(r"\d+", version))) or None


def _findings(examination: Examination, gpus: tuple[Device, ...], num_seen: int) -> GpuFindings:
    machine, tensorflow = examination.machine, examination.tensorflow.data
    is_cuda_12 = str(tensorflow["build"].get("cuda_version", "")).startswith("12")
    names = [DRIVER_LIBRARY, *(CUDA_12_LIBRARIES if is_cuda_12 else ())]
    results = examination.probe([["library", name, *_package_files(machine, name)] for name in names])
    errors = {name: result.cause for name, result in zip(names, results, strict=True) if not result.ok}
    return GpuFindings(
        gpus=gpus,
        num_seen=num_seen,
        tensorflow_version=tensorflow["version"],
        build=tensorflow["build"],
        load_errors=errors,
        packages=machine.package_versions("nvidia-"),
        other_versions=tuple(path for name in errors for path in _other_versions(machine, name)),
    )


def _package_files(machine: Machine, name: str) -> list[str]:
    """The paths of a library in NVIDIA's packages, where TensorFlow searches too."""
    return [str(path) for folder in machine.site_folders for path in sorted(Path(folder).glob(f"nvidia/*/lib/{name}"))]


def _other_versions(machine: Machine, name: str) -> list[str]:
    """Files such as libcudnn.so.8 if libcudnn.so.9 is missing."""
    pattern = f"{name.partition('.so.')[0]}.so.[0-9]*"
    system = [f"/usr/local/cuda*/lib64/{pattern}", f"/usr/lib/*-linux-gnu/{pattern}", f"/usr/lib64/{pattern}"]
    found = [path for place in system for path in machine.glob(place)] + _package_files(machine, pattern)
    majors = {path: re.search(r"\.so\.\d+", path) for path in found}
    return [path for path, major in majors.items() if major is None or not name.endswith(major[0])]


def _reasons(load_errors: Mapping[str, str]) -> str:
    """The libraries, with the package that provides each, grouped by the loader's reason."""
    groups: dict[str, list[str]] = {}
    for name, why in load_errors.items():
        # The loader's message begins with the name again, "OSError: libcudnn.so.9: cannot open ...".
        reason = why.removeprefix("OSError: ").removeprefix(f"{name}: ")
        groups.setdefault(reason, []).append(f"{name} (of {CUDA_12_LIBRARIES.get(name, 'the driver')})")
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in groups.items())


def _no_driver(machine: Machine) -> Check:
    for path in machine.glob("/sys/bus/pci/devices/*/vendor"):
        device_class = (machine.read(path.removesuffix("vendor") + "class") or "").strip()
        if (machine.read(path) or "").strip() == "0x10de" and device_class.startswith("0x03"):
            detail = f"an NVIDIA card is on the PCI bus ({path.split('/')[-2]}), but no driver shows it"
            remedy = "install NVIDIA's driver, 525.60 or newer; in a container start it with --gpus all"
            return Check(name="gpus", status="warn", detail=detail, remedy=remedy)
    return Check(name="gpus", status="skip", detail="no GPU here")


def _models(gpus: tuple[Device, ...]) -> str:
    counts = {gpu.model or "unknown model": 0 for gpu in gpus}
    for gpu in gpus:
        counts[gpu.model or "unknown model"] += 1
    texts = [f"{count} x {model}" if count > 1 else model for model, count in counts.items()]
    return ", ".join(texts) or "unknown models"
