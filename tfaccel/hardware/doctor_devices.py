"""Checks of the computations on every device: matmul, convolution, float16, bfloat16, an XLA-compiled training step."""

import re
from collections.abc import Iterator, Sequence

from tfaccel.hardware.doctor_check import Check
from tfaccel.hardware.doctor_child import ProbeResult
from tfaccel.hardware.doctor_examination import COMPUTATIONS, Examination, explain
from tfaccel.hardware.hardware import Device
from tfaccel.hardware.tpu import find_tpus, install_command, tpu_wheel_version

BFLOAT16_CAPABILITY = (8, 0)


def check_cpu(examination: Examination) -> Iterator[Check]:
    """Checks the computations on the CPU."""
    if not examination.tensorflow.ok:
        yield _without_tensorflow("CPU:0")
        return
    for name, result in examination.computations("CPU:0").items():
        if name == "XLA step" and not result.ok and tpu_wheel_version(examination.machine):
            detail = f"tensorflow-tpu cannot compile for the CPU: {explain(result)}"
            remedy = "pass jit_compile=False to whatever runs on the CPU; a TPU compiles by itself"
            yield Check(name=f"CPU:0 {name}", status="warn", detail=detail, remedy=remedy)
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
            yield Check(name=f"{gpu.name} {name}", status="skip", detail=detail)


def check_tpus(examination: Examination) -> Iterator[Check]:
    """Checks TPUs: the package that drives them, then the computations on every core."""
    tpus = find_tpus(examination.machine)
    if not tpus:
        yield Check(name="tpus", status="skip", detail="no TPU here")
        return
    if tpu_wheel_version(examination.machine) is None:
        detail = f"{len(tpus)} {tpus[0].model} found, but TensorFlow drives TPUs only as tensorflow-tpu"
        remedy = f"in a new environment: {install_command()}"
        yield Check(name="tpus", status="fail", detail=detail, remedy=remedy)
        return
    yield Check(name="tpus", status="ok", detail=f"{len(tpus)} {tpus[0].model}")
    if not examination.tensorflow.ok:
        yield _without_tensorflow("TPU:0")
        return
    for tpu in tpus:
        for name, result in examination.computations(tpu.name).items():
            yield computation_check(tpu.name, name, result)


def computation_check(device: str, name: str, result: ProbeResult) -> Check:
    """The check of one computation on one device."""
    title = f"{device} {name}"
    if result.ok:
        error = f"{result.data['max_relative_error']:.1e}"
        return Check(name=title, status="ok", detail=f"differs from numpy by {error} relative")
    if not result.was_tried:
        return Check(name=title, status="skip", detail=result.cause)
    return Check(name=title, status="fail", detail=explain(result), remedy=_computation_remedy(device, result))


def kernels_check(device: str, capability: tuple[int, int], kernels: Sequence[str]) -> Check:
    """Whether this build of TensorFlow has machine code for the GPU.

    "sm_80" is machine code for 8.0 and later 8.x; "compute_90" also includes code that the driver can compile for all
    newer GPUs on first use. See https://docs.nvidia.com/cuda/blackwell-compatibility-guide/.
    """
    name, dotted = f"{device} kernels", _dotted(capability)
    built = [(match[1], (int(match[2]), int(match[3]))) for k in kernels if (match := _KERNEL.fullmatch(k))]
    if not built:
        return Check(name=name, status="skip", detail="this build of TensorFlow does not tell what it was built for")
    if any(pair[0] == capability[0] and pair[1] <= capability[1] for _, pair in built):
        return Check(name=name, status="ok", detail=f"built for compute capability {dotted}")
    if any(kind == "compute" and pair < capability for kind, pair in built):
        detail = f"none built for compute capability {dotted}: each is compiled when first used, which takes minutes"
        remedy = "export CUDA_CACHE_MAXSIZE=4294967296 to compile only once; a newer TensorFlow may have them"
        return Check(name=name, status="warn", detail=detail, remedy=remedy)
    detail = f"none built for compute capability {dotted}, only for {', '.join(kernels)}"
    remedy = "hide this GPU with CUDA_VISIBLE_DEVICES and use another one"
    return Check(name=name, status="fail", detail=detail, remedy=remedy)


_KERNEL = re.compile(r"(sm|compute)_(\d+)(\d)")


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


def _without_tensorflow(device: str) -> Check:
    return Check(name=device, status="skip", detail="TensorFlow cannot be imported")


def _dotted(capability: tuple[int, int] | None) -> str:
    return ".".join(map(str, capability or ()))
