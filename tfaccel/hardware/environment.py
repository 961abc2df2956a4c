"""What a bug report should tell of a machine and its installation, without importing what it reports on."""

import dataclasses
import platform
from typing import Any

import tfaccel
from tfaccel.errors import HardwareError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.detect import detect_machine
from tfaccel.hardware.environment_variables import relevant_variables
from tfaccel.hardware.hardware import Cluster
from tfaccel.hardware.keras_settings import keras_backend
from tfaccel.hardware.machine import Machine

# Told even where they are not installed.
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
# Told only where they are installed.
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


def describe_environment(machine: Machine) -> dict[str, Any]:
    """The machine and the installation as JSON values; nothing secret, no host names, no user's name.

    Args:
        machine: the machine to describe.

    Returns:
        A dict with "tfaccel", "python", "platform", "packages" (version or None by name), "cuda_packages",
        "keras_backend", "hardware" (as `Hardware.to_json`, the workers' addresses left out; None where it cannot be
        detected), "problems" (what could not be read) and "environment" (None for values that are not told).

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
    main = {name: machine.package_version(name) for name in MAIN_PACKAGES}
    others = {name: machine.package_version(name) for name in OTHER_PACKAGES}
    return {**main, **{name: version for name, version in others.items() if version is not None}}


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
