"""TPUs: the packages that drive them, their device files, and the environment of this process.

TensorFlow's own list is not reliable: its TPU build lists a TPU_SYSTEM device even without a TPU.
"""

from tfaccel.hardware.hardware import Device
from tfaccel.hardware.machine import Machine

# The packages that drive a TPU, as in requirements-tpu.txt. Newer versions of libtpu lack functions that tensorflow-tpu
# loads on import, which aborts the process: TpuExecutable_FreeMaybeOwningDeviceMemoryArray since 0.0.32, and
# ConfigureDistributedTpuOp_DoWork since 0.0.45.
TPU_PACKAGES = {"tensorflow-tpu": ">=2.20,<2.21", "libtpu": "<0.0.32"}
LIBTPU_END = (0, 0, 32)

_GOOGLE_PCI_VENDOR = "0x1ae0"

# PCI device id -> name of the generation, and TensorFlow devices per chip (v2 and v3 show both cores of a chip).
_TPU_PCI_DEVICES = {
    "0x0027": ("TPU v2 or v3", 2),
    "0x005e": ("TPU v4", 1),
    "0x0062": ("TPU v5p", 1),
    "0x0063": ("TPU v5e", 1),
    "0x006f": ("TPU v6e", 1),
    "0x0076": ("TPU7x", 1),
}

# Environment variables that TPU machines of Google Cloud (and Kubernetes there) set.
_CLOUD_MARKS = (
    "TPU_NAME",
    "TPU_ACCELERATOR_TYPE",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
    "TPU_CONFIG",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
)


def install_command(*names: str) -> str:
    """The pip command for packages of `TPU_PACKAGES`; for all of them if no names are given.

    Example:
        >>> install_command("libtpu")
        "pip install 'libtpu<0.0.32'"
    """
    return "pip install " + " ".join(f"'{name}{TPU_PACKAGES[name]}'" for name in names or TPU_PACKAGES)


def tpu_wheel_version(machine: Machine) -> str | None:
    """The version of `tensorflow-tpu`, the only TensorFlow that can drive a TPU; None if it is not installed."""
    return machine.package_version("tensorflow-tpu")


def find_tpus(machine: Machine) -> tuple[Device, ...]:
    """The TPUs whose device files this process sees, whether or not the installed TensorFlow can drive them.

    v2 to v4 have /dev/accel0 and so on. v5e, v5p and later have /dev/vfio/0 and so on, like any device passed through
    to a virtual machine, so these count only if there is a TPU on the PCI bus.
    """
    on_bus = _tpus_on_bus(machine)
    accel_files = machine.glob("/dev/accel[0-9]*")
    vfio_files = machine.glob("/dev/vfio/[0-9]*")
    num_chips = len(accel_files) or min(len(vfio_files), len(on_bus))
    model, devices_per_chip = on_bus[0] if on_bus else ("TPU", 1)
    return tuple(Device(kind="TPU", index=i, model=model) for i in range(num_chips * devices_per_chip))


def tpu_environment(machine: Machine) -> str | None:
    """The environment of TPUs, from its environment variables: "colab", "kaggle", "cloud", "local" or None."""
    environ = machine.environ
    has_cloud_mark = any(environ.get(name) not in (None, "", "local") for name in _CLOUD_MARKS)
    has_mark = has_cloud_mark or bool(find_tpus(machine)) or environ.get("TPU_NAME") == "local"
    if environ.get("ISTPUVM") == "1" or (environ.get("KAGGLE_KERNEL_RUN_TYPE") and has_mark):
        return "kaggle"
    if environ.get("COLAB_TPU_ADDR") or (environ.get("COLAB_RELEASE_TAG") and has_mark):
        return "colab"
    if has_cloud_mark or environ.get("XRT_TPU_CONFIG"):
        return "cloud"
    return "local" if has_mark else None


def _tpus_on_bus(machine: Machine) -> list[tuple[str, int]]:
    found = []
    for path in machine.glob("/sys/bus/pci/devices/*/vendor"):
        if (machine.read(path) or "").strip() == _GOOGLE_PCI_VENDOR:
            device = (machine.read(path.removesuffix("vendor") + "device") or "").strip()
            if device in _TPU_PCI_DEVICES:
                found.append(_TPU_PCI_DEVICES[device])
    return found
