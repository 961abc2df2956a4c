"""The description of a machine and its installation for bug reports, without importing the reported packages.

The backend of Keras, and whether tf.keras is the old Keras 2, are told without importing either.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tfaccel
from tfaccel.errors import HardwareError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.detect import detect_machine
from tfaccel.hardware.hardware import Cluster
from tfaccel.hardware.machine import Machine

# Reported even if not installed.
MAIN_PACKAGES = (
    "tensorflow",
    "keras",
    "numpy",
    "keras-tuner",
    "tensorboard",
    "ai-edge-litert",
    "tf-keras",
    "tensorflow-model-optimization",
)
# Reported only if installed.
OTHER_PACKAGES = (
    "tensorflow-cpu",
    "tensorflow-tpu",
    "tf-nightly",
    "libtpu",
    "nvidia-ml-py",
    "protobuf",
    "h5py",
    "ml-dtypes",
    "jax",
    "torch",
    "ray",
)
# The values of these are numbers, switches and flags. Others may contain host names, addresses, paths or tokens (such
# as another tool's TF_TOKEN_...), so only their names are reported.
_SHOWN = """
    TF_AUTOTUNE_THRESHOLD TF_CPP_MAX_VLOG_LEVEL TF_CPP_MIN_LOG_LEVEL TF_CPP_VMODULE TF_CUDNN_DETERMINISTIC
    TF_CUDNN_USE_AUTOTUNE TF_DETERMINISTIC_OPS TF_DISABLE_MKL TF_ENABLE_ONEDNN_OPTS TF_FORCE_GPU_ALLOW_GROWTH
    TF_FP16_CONV_USE_FP32_COMPUTE TF_GPU_ALLOCATOR TF_GPU_THREAD_COUNT TF_GPU_THREAD_MODE TF_NUM_INTEROP_THREADS
    TF_NUM_INTRAOP_THREADS TF_USE_LEGACY_KERAS TF_XLA_FLAGS XLA_FLAGS
    CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES NVIDIA_TF32_OVERRIDE
    NVIDIA_VISIBLE_DEVICES NCCL_ALGO NCCL_DEBUG NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_PROTO NCCL_SHM_DISABLE
    KERAS_BACKEND KERAS_HOME
    KMP_AFFINITY KMP_BLOCKTIME MKL_NUM_THREADS OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OPENBLAS_NUM_THREADS
    ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA
    SLURM_CPUS_PER_TASK SLURM_GPUS_ON_NODE SLURM_LOCALID SLURM_NNODES SLURM_NODEID SLURM_NTASKS SLURM_PROCID
    SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE
    TPU_ACCELERATOR_TYPE TPU_CHIPS_PER_HOST_BOUNDS TPU_CHIPS_PER_PROCESS_BOUNDS TPU_HOST_BOUNDS TPU_PROCESS_BOUNDS
    TPU_SKIP_MDS_QUERY TPU_TOPOLOGY TPU_VISIBLE_CHIPS TPU_VISIBLE_DEVICES TPU_WORKER_ID ISTPUVM PJRT_DEVICE
    JOB_COMPLETION_INDEX JOB_COMPLETIONS PYTHONHASHSEED
"""
_NAMED = "LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH COLAB_TPU_ADDR XRT_TPU_CONFIG KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
_NAMED_PREFIXES = ("TF_", "XLA_", "CUDA_", "CUDNN_", "NCCL_", "KERAS_", "OMP_", "KMP_", "ONEDNN_", "TPU_")
_TASK_TYPES = ("chief", "worker", "ps", "evaluator")
# Variables of another tool, whose names contain host names.
_HIDDEN_PREFIXES = ("TF_TOKEN_", "TF_VAR_", "TF_CLI_")


def describe_environment(machine: Machine) -> dict[str, Any]:
    """The machine and the installation as JSON values, without secrets, host names and user names.

    Returns:
        A dict with "tfaccel", "python", "platform", "packages" (version or None by name), "cuda_packages",
        "keras_backend", "hardware" (as `Hardware.to_json`, without the workers' addresses; None if it cannot be
        detected), "problems" (what could not be read) and "environment" (None for hidden values).

    Example:
        >>> describe_environment(Machine.here())["packages"]["keras"] is not None
        True
    """
    problems: list[str] = []
    backend, source = keras_backend(machine)
    return {
        "tfaccel": tfaccel.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "packages": _packages(machine),
        "cuda_packages": machine.package_versions("nvidia-"),
        "keras_backend": {"name": backend, "source": _without_home(machine, source)},
        "hardware": _hardware(machine, problems),
        "problems": problems,
        "environment": {
            name: None if value is None else _without_home(machine, value)
            for name, value in relevant_variables(machine.environ).items()
        },
    }


def _packages(machine: Machine) -> dict[str, str | None]:
    versions = {name: machine.package_version(name) for name in (*MAIN_PACKAGES, *OTHER_PACKAGES)}
    return {name: version for name, version in versions.items() if version is not None or name in MAIN_PACKAGES}


def _hardware(machine: Machine, problems: list[str]) -> dict[str, Any] | None:
    try:
        hardware = detect_machine(machine)
    except HardwareError as error:
        problems.append(str(error))
        return None
    cluster: Cluster | None = None
    try:
        cluster = find_cluster(machine)
    except HardwareError:
        # The error quotes the setting, which may name hosts.
        problems.append("The cluster's settings cannot be read; `tfaccel doctor` quotes them.")
    if cluster is not None:
        cluster = dataclasses.replace(cluster, addresses=())
    return dataclasses.replace(hardware, cluster=cluster).to_json()


def _without_home(machine: Machine, text: str) -> str:
    return text.replace(str(machine.home), "~") if len(machine.home.parts) > 1 else text


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The relevant variables, sorted by name; hidden values are None.

    Only this process's task and the number of tasks of each type are reported from TF_CONFIG.

    Example:
        >>> relevant_variables({"OMP_NUM_THREADS": "4", "TPU_NAME": "grpc://10.0.0.2:8470", "HOME": "/home/ada"})
        {'OMP_NUM_THREADS': '4', 'TPU_NAME': None}
    """
    shown, named = _SHOWN.split(), _NAMED.split()
    found: dict[str, str | None] = {}
    for name, value in sorted(environ.items()):
        if name.startswith(_HIDDEN_PREFIXES):
            continue
        if name == "TF_CONFIG":
            found[name] = _reduced_tf_config(value)
        elif name in shown:
            found[name] = value
        elif name in named or name.startswith(_NAMED_PREFIXES):
            found[name] = None
    return found


def _reduced_tf_config(text: str) -> str | None:
    """A summary such as "task worker 1; 1 chief, 3 worker"; None if the text is malformed."""
    try:
        config = json.loads(text)
        tasks = [f"{len(config['cluster'][kind])} {kind}" for kind in _TASK_TYPES if kind in config["cluster"]]
        kind, index = str(config["task"]["type"]), int(config["task"]["index"])
    except (ValueError, TypeError, KeyError):
        return None
    return f"task {kind} {index}; {', '.join(tasks)}" if kind in _TASK_TYPES else None


def keras_backend(machine: Machine) -> tuple[str, str]:
    """Keras's backend and its source: "KERAS_BACKEND", the path of keras.json, or "default".

    Keras reads the environment first, then `keras.json` in KERAS_HOME or ~/.keras; it ignores a malformed file.
    """
    from_environ = machine.environ.get("KERAS_BACKEND")
    if from_environ:
        return from_environ, "KERAS_BACKEND"
    path = Path(machine.environ.get("KERAS_HOME") or machine.home / ".keras") / "keras.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "tensorflow", "default"
    backend = config.get("backend") if isinstance(config, dict) else None
    return (backend, str(path)) if isinstance(backend, str) and backend else ("tensorflow", "default")


def uses_legacy_keras(machine: Machine) -> bool:
    """Whether TF_USE_LEGACY_KERAS makes `tf.keras` the old Keras 2."""
    return machine.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
