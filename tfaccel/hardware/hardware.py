"""`Hardware`: the description of a machine, which can be detected, saved as JSON, or made up in one line."""

from __future__ import annotations

import json
from os import PathLike
from typing import Any, Self

from tfaccel.errors import HardwareError
from tfaccel.local_path import local_path
from tfaccel.records import Record, quoted
from tfaccel.short_repr import noun

DEVICE_KINDS = ("CPU", "GPU", "TPU")
CLUSTER_SOURCES = ("tf_config", "slurm", "kubernetes", "cloud_tpu")


@noun(error=HardwareError, checks_numbers=False)
class Device(Record):
    """One device, with TensorFlow's index.

    Args:
        kind: "CPU", "GPU" or "TPU".
        index: position among the devices of its kind that this process may use, from 0.
        model: the product name, such as "NVIDIA H100 80GB HBM3"; empty if unknown.
        memory_bytes: total memory; None if unknown.
        compute_capability: NVIDIA's (major, minor), such as (9, 0); None if unknown.
        driver_version: the version of the driver; None if unknown.

    Raises:
        HardwareError: if a field is invalid.

    Example:
        >>> Device(kind="GPU", index=0, model="NVIDIA H100", compute_capability=(9, 0)).name
        'GPU:0'
    """

    _json_error = HardwareError

    kind: str
    index: int
    model: str = ""
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    driver_version: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in DEVICE_KINDS:
            raise HardwareError(
                f"A device's kind must be one of {', '.join(DEVICE_KINDS)}. Received: kind={self.kind!r}."
            )
        check_count(self, "index", minimum=0)
        check_text(self, "model")
        if self.memory_bytes is not None:
            check_count(self, "memory_bytes", minimum=1)
        if self.driver_version is not None:
            check_text(self, "driver_version")
        if self.compute_capability is not None:
            object.__setattr__(self, "compute_capability", _capability(self.compute_capability))

    @property
    def name(self) -> str:
        """TensorFlow's short name of the device, such as "GPU:0"."""
        return f"{self.kind}:{self.index}"


@noun
class Cluster(Record):
    """The cluster of this process.

    Args:
        source: where it was found: "tf_config", "slurm", "kubernetes" or "cloud_tpu".
        num_workers: number of processes that train together (the chief counts; evaluators and others do not).
        task_index: this process's index within its task type, from 0.
        task_type: TensorFlow's name of this process's role: "worker", "chief", "ps" or "evaluator".
        addresses: the workers' addresses in order, or empty if the source does not name them.
        num_chiefs: the number of workers with task type "chief": 0 or 1.

    Example:
        >>> Cluster(source="slurm", num_workers=4, task_index=0).task_type
        'worker'
    """

    _json_error = HardwareError

    source: str
    num_workers: int
    task_index: int
    task_type: str = "worker"
    addresses: tuple[str, ...] = ()
    num_chiefs: int = 0

    def __post_init__(self) -> None:
        if self.source not in CLUSTER_SOURCES:
            raise HardwareError(
                f"A cluster's source must be one of {', '.join(CLUSTER_SOURCES)}. Received: source={self.source!r}."
            )
        check_count(self, "num_workers", minimum=1)
        check_count(self, "task_index", minimum=0)
        check_count(self, "num_chiefs", minimum=0)
        check_text(self, "task_type")
        object.__setattr__(self, "addresses", texts_from_json(self, "addresses"))
        if self.task_type == "worker" and self.task_index >= self.num_workers:
            raise HardwareError(
                "A worker's task_index must be smaller than num_workers. "
                f"Received: task_index={self.task_index}, num_workers={self.num_workers}."
            )
        if self.addresses and len(self.addresses) != self.num_workers:
            raise HardwareError(
                "A cluster names one address for each worker, or none. "
                f"Received: num_workers={self.num_workers}, addresses={list(self.addresses)}."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files: the chief, or the first worker if there is no chief."""
        return self.task_type == "chief" or (self.task_index == 0 and not self.num_chiefs)


@noun(suggests=True)
class Hardware(Record):
    """A machine: its CPU, memory, accelerators, and its place in a cluster.

    `detect_hardware()` describes this machine. The defaults describe a small machine without accelerators, so that
    another one can be made up in one line.

    Args:
        cpu_model: the name of the CPU.
        num_physical_cores: physical cores of the whole machine.
        num_usable_cores: hardware threads that this process may use (affinity and cgroup quota respected).
        cpu_features: relevant instruction sets, such as "AVX2", "AVX512F", "AVX512_BF16", "AMX_BF16".
        memory_bytes: memory that this process may use (RAM, or the cgroup's limit if that is lower).
        devices: accelerators only: GPUs and TPUs.
        cluster: the cluster of this process; None if it works alone.
        tpu_environment: the environment of TPUs: "colab", "kaggle", "cloud" or "local"; None if there is no sign of
            any.

    Raises:
        HardwareError: if a field is invalid.

    Example:
        >>> node = Hardware(devices=tuple(Device(kind="GPU", index=i) for i in range(8)))
        >>> len(node.gpus), Hardware.from_json(node.to_json()) == node
        (8, True)
    """

    _json_error = HardwareError

    cpu_model: str = "unknown"
    num_physical_cores: int = 1
    num_usable_cores: int = 1
    cpu_features: tuple[str, ...] = ()
    memory_bytes: int = 16 * 2**30
    devices: tuple[Device, ...] = ()
    cluster: Cluster | None = None
    tpu_environment: str | None = None

    def __post_init__(self) -> None:
        check_text(self, "cpu_model")
        for name in ("num_physical_cores", "num_usable_cores", "memory_bytes"):
            check_count(self, name, minimum=1)
        object.__setattr__(self, "cpu_features", tuple(sorted(set(texts_from_json(self, "cpu_features")))))
        object.__setattr__(self, "devices", _accelerators(self.devices))
        if self.cluster is not None and not isinstance(self.cluster, Cluster):
            raise HardwareError(f"cluster must be a Cluster or None. Received: cluster={self.cluster!r}.")
        if self.tpu_environment is not None:
            check_text(self, "tpu_environment")

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs, in TensorFlow's order."""
        return tuple(device for device in self.devices if device.kind == "GPU")

    @property
    def tpus(self) -> tuple[Device, ...]:
        """The TPUs, in TensorFlow's order."""
        return tuple(device for device in self.devices if device.kind == "TPU")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads the hardware from a JSON file: `to_json` data, or the whole output of `tfaccel env --json`.

        Raises:
            HardwareError: if the file cannot be read, is not JSON, or does not describe a machine; it names the file.
        """
        try:
            data = json.loads(local_path(path, HardwareError).read_text(encoding="utf-8"))
            return cls.from_json(data["hardware"] if isinstance(data, dict) and "hardware" in data else data)
        except OSError as error:
            raise HardwareError(f"Cannot read the hardware file {str(path)!r}: {error.strerror or error}.") from error
        except (json.JSONDecodeError, RecursionError) as error:
            raise HardwareError(
                f"The hardware file {str(path)!r} is not JSON: {error}. `tfaccel env --json` prints an example under "
                '"hardware".'
            ) from error
        except UnicodeDecodeError as error:
            raise HardwareError(f"The hardware file {str(path)!r} is not UTF-8 text: {error}.") from error
        except HardwareError as error:
            raise HardwareError(f"In the hardware file {str(path)!r}: {error}") from error


def _accelerators(devices: Any) -> tuple[Device, ...]:
    if not isinstance(devices, (list, tuple)) or not all(isinstance(device, Device) for device in devices):
        raise HardwareError(f"devices must be a sequence of Device. Received: devices={quoted(devices)}.")
    if unknown := sorted({device.kind for device in devices} - {"GPU", "TPU"}):
        raise HardwareError(
            "Hardware.devices lists accelerators only (the CPU has its own fields). Expected: GPU, TPU. "
            f"Received: {', '.join(unknown)}."
        )
    names = [device.name for device in devices]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise HardwareError(f"Each device needs a different index. Received more than once: {', '.join(twice)}.")
    return tuple(devices)


def _capability(value: Any) -> tuple[int, int]:
    parts = tuple(value) if isinstance(value, (list, tuple)) else ()
    if len(parts) != 2 or not all(type(part) is int and part >= 0 for part in parts):
        raise HardwareError(
            f"compute_capability must be two whole numbers, such as [9, 0]. Received: compute_capability={value!r}."
        )
    return parts[0], parts[1]


def check_count(record: Any, name: str, *, minimum: int) -> None:
    """Raises HardwareError unless the field is an integer of at least `minimum`."""
    value = getattr(record, name)
    if type(value) is not int or value < minimum:
        raise HardwareError(f"{name} must be a whole number of at least {minimum}. Received: {name}={quoted(value)}.")


def check_text(record: Any, name: str) -> None:
    """Raises HardwareError unless the field is a string."""
    value = getattr(record, name)
    if not isinstance(value, str):
        raise HardwareError(f"{name} must be a string. Received: {name}={quoted(value)}.")


def texts_from_json(record: Any, name: str) -> tuple[str, ...]:
    """The field as a tuple of strings; raises HardwareError if it is something else."""
    value = getattr(record, name)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        raise HardwareError(f"{name} must be a list of strings. Received: {name}={quoted(value)}.")
    return tuple(value)
