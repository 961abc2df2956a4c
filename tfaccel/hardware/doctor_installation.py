"""Checks what works on a machine: a list of small functions, each of which yields `Check`s."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.errors import HardwareError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.detect import detect_machine
from tfaccel.hardware.doctor import (
    COMPUTATIONS,
    EXTRAS,
    LIBRARIES,
    TENSORFLOW_PACKAGES,
    Check,
    Examination,
    ProbeResult,
    explain,
    in_words,
    version_pair,
)
from tfaccel.hardware.environment import keras_backend, uses_legacy_keras
from tfaccel.hardware.gpu import CUDA_12_LIBRARIES
from tfaccel.hardware.hardware import Device
from tfaccel.hardware.machine import Machine
from tfaccel.hardware.tpu import LIBTPU_END, find_tpus, install_command, tpu_wheel_version

PYTHON_VERSIONS = ((3, 11), (3, 13))
# The first and last tested (major, minor), and the requirement for pip.
TENSORFLOW_VERSIONS = ((2, 20), (2, 21))
TENSORFLOW_REQUIREMENT = "tensorflow>=2.20,<2.22"
KERAS_VERSIONS = ((3, 15), (3, 15))
KERAS_REQUIREMENT = "keras>=3.15,<3.16"
BFLOAT16_CAPABILITY = (8, 0)
_KERNEL = re.compile(r"(sm|compute)_(\d+)(\d)")
DRIVER_LIBRARY = "libcuda.so.1"
# The oldest driver for CUDA 12. See https://docs.nvidia.com/deploy/cuda-compatibility/.
CUDA_12_DRIVER = (525, 60)
CheckFunction = Callable[[Examination], Iterable[Check]]


def check_python(examination: Examination) -> Iterator[Check]:
    """Checks the version of Python."""
    yield check_version("python", platform.python_version(), PYTHON_VERSIONS, "use Python 3.11, 3.12 or 3.13")


def check_machine(examination: Examination) -> Iterator[Check]:
    """Checks that the machine and the settings of its cluster can be read."""
    try:
        hardware = detect_machine(examination.machine)
        memory = f"{hardware.memory_bytes / 2**30:.1f} GiB"
        yield Check("machine", "ok", f"{hardware.cpu_model}, {hardware.num_usable_cores} threads usable, {memory}")
    except HardwareError as error:
        yield Check("machine", "fail", str(error), "run tfaccel on Linux")
    try:
        cluster = find_cluster(examination.machine)
    except HardwareError as error:
        yield Check("cluster", "fail", str(error), "correct or unset the variable it names")
        return
    if cluster is None:
        yield Check("cluster", "skip", "this process works alone")
    else:
        place = f"{cluster.task_type} {cluster.task_index} among {cluster.num_workers} workers"
        yield Check("cluster", "ok", f"{place} (from {cluster.source})")


def check_packages(examination: Examination) -> Iterator[Check]:
    """Checks for conflicting packages, and the versions of TensorFlow and Keras."""
    found = examination.installed(TENSORFLOW_PACKAGES)
    if len(found) > 1:
        detail = f"{in_words(found)} are installed together, but own the same folder and overwrite each other"
        remedy = f"pip uninstall -y {' '.join(found)}, then install the one that you need"
        yield Check("tensorflow packages", "fail", detail, remedy)
    else:
        status = "ok" if found else "skip"
        yield Check("tensorflow packages", status, in_words(found) or "none is installed")
    for name, version in list(found.items())[:1]:
        install = f"pip install '{TENSORFLOW_REQUIREMENT}'" if name == "tensorflow" else f"install {name} 2.20 or 2.21"
        yield check_version("tensorflow version", version, TENSORFLOW_VERSIONS, install)
    keras = examination.machine.package_version("keras")
    if keras is not None:
        yield check_version("keras version", keras, KERAS_VERSIONS, f"pip install '{KERAS_REQUIREMENT}'")
    if "tensorflow-tpu" in found:
        yield check_libtpu(examination.machine.package_version("libtpu"))


def check_version(name: str, version: str, tested: tuple[tuple[int, int], tuple[int, int]], install: str) -> Check:
    """Versions older than the tested ones fail; newer ones cause a warning.

    Example:
        >>> check_version("keras version", "3.16.0", ((3, 15), (3, 15)), "pip install 'keras>=3.15,<3.16'").status
        'warn'
    """
    first, last = (".".join(map(str, pair)) for pair in tested)
    pair = version_pair(version)
    if pair is not None and pair < tested[0]:
        return Check(name, "fail", f"{version} is older than {first}, the oldest that works", install)
    if pair is None or pair > tested[1]:
        detail, remedy = f"{version} is untested; {last} is the newest tested", f"if something fails, go back to {last}"
        return Check(name, "warn", detail, remedy)
    return Check(name, "ok", version)


def check_libtpu(version: str | None) -> Check:
    """Checks that tensorflow-tpu can be imported with this libtpu."""
    remedy = install_command("libtpu")
    if version is None:
        return Check("libtpu", "fail", "tensorflow-tpu needs it; it is not installed", remedy)
    if tuple(map(int, re.findall(r"\d+", version)[:3])) >= LIBTPU_END:
        detail = f"{version} lacks functions without which importing TensorFlow on a TPU aborts the process"
        return Check("libtpu", "fail", detail, remedy)
    return Check("libtpu", "ok", version)


def check_keras_settings(examination: Examination) -> Iterator[Check]:
    """Checks for settings that select anything other than Keras 3 on TensorFlow."""
    backend, source = keras_backend(examination.machine)
    if backend == "tensorflow":
        yield Check("keras backend", "ok", f"tensorflow (from {source})")
    else:
        is_variable = source == "KERAS_BACKEND"
        remedy = "export KERAS_BACKEND=tensorflow" if is_variable else f'set "backend": "tensorflow" in {source}'
        detail = f"Keras is set to the backend {backend} (by {source}); tfaccel trains on TensorFlow only"
        yield Check("keras backend", "fail", detail, remedy)
    if uses_legacy_keras(examination.machine):
        detail = "TF_USE_LEGACY_KERAS makes tf.keras the old Keras 2, whose models tfaccel cannot train"
        remedy = "unset TF_USE_LEGACY_KERAS (importing tensorflow_model_optimization sets it)"
        yield Check("legacy keras", "fail", detail, remedy)
    else:
        yield Check("legacy keras", "ok", "tf.keras is Keras 3")


def check_imports(examination: Examination) -> Iterator[Check]:
    """Checks that TensorFlow and the other libraries can be imported."""
    result = examination.tensorflow
    if not result.ok:
        remedy = f"pip install '{TENSORFLOW_REQUIREMENT}' (in a new virtual environment, if it is installed already)"
        yield Check("import tensorflow", "fail", explain(result), remedy)
    else:
        yield Check("import tensorflow", "ok", result.data["version"])
    for package, library in examination.libraries.items() if result.ok else ():
        name = f"import {package}"
        if library.ok:
            version = library.data["version"] or examination.machine.package_version(package) or "works"
            yield Check(name, "ok", version)
        elif package in EXTRAS and library.cause.endswith(f"No module named {LIBRARIES[package].split('.')[0]!r}"):
            detail = f"not installed; training does without it (pip install 'tfaccel[{EXTRAS[package]}]')"
            yield Check(name, "skip", detail)
        elif not library.was_tried:
            yield Check(name, "skip", library.cause)
        else:
            requirement = KERAS_REQUIREMENT if package == "keras" else package
            yield Check(name, "fail", explain(library), f"pip install '{requirement}'")


def check_cpu(examination: Examination) -> Iterator[Check]:
    """Checks the computations on the CPU."""
    if not examination.tensorflow.ok:
        yield Check("CPU:0", "skip", "TensorFlow cannot be imported")
        return
    for name, result in examination.computations("CPU:0").items():
        if name == "XLA step" and not result.ok and tpu_wheel_version(examination.machine):
            detail = f"tensorflow-tpu cannot compile for the CPU: {explain(result)}"
            remedy = "pass jit_compile=False to whatever runs on the CPU; a TPU compiles by itself"
            yield Check(f"CPU:0 {name}", "warn", detail, remedy)
        else:
            yield computation_check("CPU:0", name, result)


def check_gpu_computations(examination: Examination) -> Iterator[Check]:
    """Checks the computations on every GPU that TensorFlow sees."""
    if not examination.tensorflow.ok:
        return
    gpus = examination.gpus
    for index in range(examination.tensorflow.data["num_gpus"]):
        gpu = gpus[index] if index < len(gpus) else Device(kind="GPU", index=index)
        yield from check_one_gpu(examination, gpu)


def check_one_gpu(examination: Examination, gpu: Device) -> Iterator[Check]:
    """Checks one GPU: precompiled kernels, then each computation that its compute capability supports."""
    capability = gpu.compute_capability
    if capability is not None:
        kernels = examination.tensorflow.data["build"].get("cuda_compute_capabilities", [])
        yield kernels_check(gpu.name, capability, kernels)
    lacks_bfloat16 = capability is not None and capability < BFLOAT16_CAPABILITY
    results = examination.computations(gpu.name, left_out=["bfloat16"] if lacks_bfloat16 else [])
    for name in COMPUTATIONS:
        if name in results:
            yield computation_check(gpu.name, name, results[name])
        else:
            detail = f"compute capability {_dotted(capability)} has no bfloat16 (8.0 and newer have); use float16"
            yield Check(f"{gpu.name} {name}", "skip", detail)


def check_tpus(examination: Examination) -> Iterator[Check]:
    """Checks TPUs: the package that drives them, then the computations on every core."""
    tpus = find_tpus(examination.machine)
    if not tpus:
        yield Check("tpus", "skip", "no TPU here")
        return
    if tpu_wheel_version(examination.machine) is None:
        detail = f"{len(tpus)} {tpus[0].model} found, but TensorFlow drives TPUs only as tensorflow-tpu"
        yield Check("tpus", "fail", detail, f"in a new environment: {install_command()}")
        return
    yield Check("tpus", "ok", f"{len(tpus)} {tpus[0].model}")
    if not examination.tensorflow.ok:
        yield Check("TPU:0", "skip", "TensorFlow cannot be imported")
        return
    for tpu in tpus:
        for name, result in examination.computations(tpu.name).items():
            yield computation_check(tpu.name, name, result)


def computation_check(device: str, name: str, result: ProbeResult) -> Check:
    """The check of one computation on one device."""
    title = f"{device} {name}"
    if result.ok:
        error = f"{result.data['max_relative_error']:.1e}"
        return Check(title, "ok", f"differs from numpy by {error} relative")
    if not result.was_tried:
        return Check(title, "skip", result.cause)
    return Check(title, "fail", explain(result), _computation_remedy(device, result))


def kernels_check(device: str, capability: tuple[int, int], kernels: Sequence[str]) -> Check:
    """Whether this build of TensorFlow has machine code for the GPU.

    "sm_80" is machine code for 8.0 and later 8.x; "compute_90" also includes code that the driver can compile for all
    newer GPUs on first use. See https://docs.nvidia.com/cuda/blackwell-compatibility-guide/.
    """
    name, dotted = f"{device} kernels", _dotted(capability)
    built = [(match[1], (int(match[2]), int(match[3]))) for k in kernels if (match := _KERNEL.fullmatch(k))]
    if not built:
        return Check(name, "skip", "this build of TensorFlow does not tell what it was built for")
    if any(pair[0] == capability[0] and pair[1] <= capability[1] for _, pair in built):
        return Check(name, "ok", f"built for compute capability {dotted}")
    if any(kind == "compute" and pair < capability for kind, pair in built):
        detail = f"none built for compute capability {dotted}: each is compiled when first used, which takes minutes"
        remedy = "export CUDA_CACHE_MAXSIZE=4294967296 to compile only once; a newer TensorFlow may have them"
        return Check(name, "warn", detail, remedy)
    detail = f"none built for compute capability {dotted}, only for {', '.join(kernels)}"
    return Check(name, "fail", detail, "hide this GPU with CUDA_VISIBLE_DEVICES and use another one")


def _computation_remedy(device: str, result: ProbeResult) -> str:
    if device.startswith("CPU"):
        return "reinstall TensorFlow in a new virtual environment; if it persists, report it with `tfaccel env`"
    if result.has_hung:
        return f"look whether another program blocks {device}; give more time with --time_limit_seconds"
    # If the process was killed, only its output shows whether the device ran out of memory.
    told = result.output if result.cause.startswith("its process") else f"{result.cause} {result.output}"
    if "out of memory" in told.lower() or "RESOURCE_EXHAUSTED" in told:
        return f"free memory on {device}: nvidia-smi lists the programs that hold it"
    return f"update the driver and TensorFlow's CUDA packages (pip install -U 'tfaccel[gpu]'), or leave {device} out"


def _dotted(capability: tuple[int, int] | None) -> str:
    return ".".join(map(str, capability or ()))


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
        yield Check("gpus", "skip", f"the driver shows {len(shown)}; CUDA_VISIBLE_DEVICES={selection!r} hides them all")
    elif not examination.tensorflow.ok:
        yield Check("gpus", "skip", "TensorFlow cannot be imported")
    elif num_seen >= len(usable):
        yield Check("gpus", "ok", f"TensorFlow sees {num_seen}: {_models(usable)}")
    else:
        yield diagnose(_findings(examination, usable, num_seen))


def diagnose(findings: GpuFindings) -> Check:
    """Names the cause: a build without CUDA, the driver or a library; otherwise suggests what to try."""
    seen = f"TensorFlow sees {findings.num_seen} of {len(findings.gpus)} GPUs ({_models(findings.gpus)})"
    version, driver = findings.tensorflow_version, findings.gpus[0].driver_version or "of unknown version"
    cuda, cudnn = findings.build.get("cuda_version"), findings.build.get("cudnn_version")
    install = f"pip install 'tfaccel[gpu]' (or: pip install 'tensorflow[and-cuda]=={version}')"
    if not findings.build.get("is_cuda_build"):
        return Check("gpus", "fail", f"{seen}: TensorFlow {version} was built without CUDA", install)
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
    return Check("gpus", "fail", detail, "; ".join(remedies))


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
            return Check("gpus", "warn", detail, remedy)
    return Check("gpus", "skip", "no GPU here")


def _models(gpus: tuple[Device, ...]) -> str:
    counts = Counter(gpu.model or "unknown model" for gpu in gpus)
    texts = [f"{count} x {model}" if count > 1 else model for model, count in counts.items()]
    return ", ".join(texts) or "unknown models"


CHECKS: tuple[CheckFunction, ...] = (
    check_python,
    check_machine,
    check_packages,
    check_keras_settings,
    check_imports,
    check_cpu,
    check_gpus,
    check_gpu_computations,
    check_tpus,
)


def examine(examination: Examination, *, checks: Sequence[CheckFunction] = CHECKS) -> list[Check]:
    """Runs the checks in order.

    Args:
        examination: the machine to check, and the time limit of one probe.
        checks: the functions to run.

    Example:
        >>> from tfaccel.hardware.machine import Machine
        >>> [check.name for check in examine(Examination(Machine.here()), checks=[check_python])]
        ['python']
    """
    return [check for function in checks for check in function(examination)]
