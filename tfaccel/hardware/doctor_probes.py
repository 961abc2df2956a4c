"""The program of the doctor's child processes: runs probes in order and reports each.

`doctor_child` starts it; TensorFlow is imported only by the probes that need it.
"""

import ctypes
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

from tfaccel.processes.connection import connect_to_parent

_TERMINAL_CODE = re.compile(r"\x1b\[[\d;]*m")  # Keras prints bold text


def serve_probes(argv: list[str], probes: Mapping[str, Callable[..., dict[str, Any]]]) -> NoReturn:
    """Runs probes until the caller terminates the process; after a failure, which is reported, the next one runs.

    Args:
        argv: the command line of a `ConnectedChild`.
        probes: the function of each probe, by name; it returns a dict of JSON values.
    """
    parent = connect_to_parent(argv)
    while True:
        name, *arguments = parent.recv()
        try:
            report = {"ok": True, "data": probes[name](*arguments)}
        except Exception as error:
            message = " ".join(_TERMINAL_CODE.sub("", str(error)).split())
            report = {"ok": False, "cause": f"{type(error).__name__}: {message}"}
        sys.stdout.flush()
        sys.stderr.flush()
        parent.send(report)


def probe_import(module: str) -> dict[str, Any]:
    """Imports a module."""
    imported = import_module(module)
    return {"version": str(getattr(imported, "__version__", ""))}


def probe_tensorflow_devices() -> dict[str, Any]:
    """The GPUs that TensorFlow sees, and its build."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    plain = {name: value for name, value in build.items() if isinstance(value, (str, bool, list))}
    return {"num_gpus": len(tf.config.list_physical_devices("GPU")), "build": plain}


def probe_library(name: str, *paths: str) -> dict[str, Any]:
    """Loads a shared library as TensorFlow does: by name, else from one of the given paths."""
    try:
        ctypes.CDLL(name)
        return {"path": name}
    except OSError as error:
        first_error = error
    for path in paths:
        try:
            ctypes.CDLL(path)
            return {"path": path}
        except OSError as error:
            first_error = error
    raise first_error


def probe_compute(device: str, computation: str) -> dict[str, Any]:
    """Computes on a device and compares with NumPy."""
    # Imports NumPy, which may be broken itself.
    from tfaccel.hardware.doctor_arithmetic import COMPUTATIONS, compare_with_numpy

    if device.startswith("TPU"):
        start_tpu()
    return compare_with_numpy(device, COMPUTATIONS[computation])


def probe_tpu(tpu: str) -> dict[str, Any]:
    """Initializes the TPU of that name or address, or "local"; the data has "num_devices"."""
    return {"num_devices": start_tpu(tpu)}


def start_tpu(tpu: str = "local") -> int:
    """Initializes a TPU once in this process; returns its number of devices."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("TPU"):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    return len(tf.config.list_logical_devices("TPU"))


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "import": probe_import,
    "tensorflow devices": probe_tensorflow_devices,
    "library": probe_library,
    "compute": probe_compute,
    "tpu": probe_tpu,
}


if __name__ == "__main__":
    serve_probes(sys.argv, PROBES)
