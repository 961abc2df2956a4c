"""Checks of the installation and its settings: Python, TensorFlow, Keras, and other libraries."""

import platform
import re
from collections.abc import Iterator

from tfaccel.errors import HardwareError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.detect import detect_machine
from tfaccel.hardware.doctor_check import Check
from tfaccel.hardware.doctor_examination import (
    EXTRAS,
    LIBRARIES,
    TENSORFLOW_PACKAGES,
    Examination,
    explain,
    in_words,
    version_pair,
)
from tfaccel.hardware.keras_settings import keras_backend, uses_legacy_keras
from tfaccel.hardware.tpu import LIBTPU_END, install_command

PYTHON_VERSIONS = ((3, 11), (3, 13))
# The first and last tested (major, minor), and the requirement for pip.
TENSORFLOW_VERSIONS = ((2, 20), (2, 21))
TENSORFLOW_REQUIREMENT = "tensorflow>=2.20,<2.22"
KERAS_VERSIONS = ((3, 15), (3, 15))
KERAS_REQUIREMENT = "keras>=3.15,<3.16"


def check_python(examination: Examination) -> Iterator[Check]:
    """Checks the version of Python."""
    yield check_version("python", platform.python_version(), PYTHON_VERSIONS, "use Python 3.11, 3.12 or 3.13")


def check_machine(examination: Examination) -> Iterator[Check]:
    """Checks that the machine and the settings of its cluster can be read."""
    try:
        hardware = detect_machine(examination.machine)
        memory = f"{hardware.memory_bytes / 2**30:.1f} GiB"
        detail = f"{hardware.cpu_model}, {hardware.num_usable_cores} threads usable, {memory}"
        yield Check(name="machine", status="ok", detail=detail)
    except HardwareError as error:
        yield Check(name="machine", status="fail", detail=str(error), remedy="run tfaccel on Linux")
    try:
        cluster = find_cluster(examination.machine)
    except HardwareError as error:
        yield Check(name="cluster", status="fail", detail=str(error), remedy="correct or unset the variable it names")
        return
    if cluster is None:
        yield Check(name="cluster", status="skip", detail="this process works alone")
    else:
        place = f"{cluster.task_type} {cluster.task_index} among {cluster.num_workers} workers"
        yield Check(name="cluster", status="ok", detail=f"{place} (from {cluster.source})")


def check_packages(examination: Examination) -> Iterator[Check]:
    """Checks for conflicting packages, and the versions of TensorFlow and Keras."""
    found = examination.installed(TENSORFLOW_PACKAGES)
    if len(found) > 1:
        detail = f"{in_words(found)} are installed together, but own the same folder and overwrite each other"
        remedy = f"pip uninstall -y {' '.join(found)}, then install the one that you need"
        yield Check(name="tensorflow packages", status="fail", detail=detail, remedy=remedy)
    else:
        status = "ok" if found else "skip"
        yield Check(name="tensorflow packages", status=status, detail=in_words(found) or "none is installed")
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
        detail = f"{version} is older than {first}, the oldest that works"
        return Check(name=name, status="fail", detail=detail, remedy=install)
    if pair is None or pair > tested[1]:
        detail, remedy = f"{version} is untested; {last} is the newest tested", f"if something fails, go back to {last}"
        return Check(name=name, status="warn", detail=detail, remedy=remedy)
    return Check(name=name, status="ok", detail=version)


def check_libtpu(version: str | None) -> Check:
    """Checks that tensorflow-tpu can be imported with this libtpu."""
    remedy = install_command("libtpu")
    if version is None:
        return Check(name="libtpu", status="fail", detail="tensorflow-tpu needs it; it is not installed", remedy=remedy)
    if tuple(map(int, re.findall(r"\d+", version)[:3])) >= LIBTPU_END:
        detail = f"{version} lacks functions without which importing TensorFlow on a TPU aborts the process"
        return Check(name="libtpu", status="fail", detail=detail, remedy=remedy)
    return Check(name="libtpu", status="ok", detail=version)


def check_keras_settings(examination: Examination) -> Iterator[Check]:
    """Checks for settings that select anything other than Keras 3 on TensorFlow."""
    backend, source = keras_backend(examination.machine)
    if backend == "tensorflow":
        yield Check(name="keras backend", status="ok", detail=f"tensorflow (from {source})")
    else:
        is_variable = source == "KERAS_BACKEND"
        remedy = "export KERAS_BACKEND=tensorflow" if is_variable else f'set "backend": "tensorflow" in {source}'
        detail = f"Keras is set to the backend {backend} (by {source}); tfaccel trains on TensorFlow only"
        yield Check(name="keras backend", status="fail", detail=detail, remedy=remedy)
    if uses_legacy_keras(examination.machine):
        detail = "TF_USE_LEGACY_KERAS makes tf.keras the old Keras 2, whose models tfaccel cannot train"
        remedy = "unset TF_USE_LEGACY_KERAS (importing tensorflow_model_optimization sets it)"
        yield Check(name="legacy keras", status="fail", detail=detail, remedy=remedy)
    else:
        yield Check(name="legacy keras", status="ok", detail="tf.keras is Keras 3")


def check_imports(examination: Examination) -> Iterator[Check]:
    """Checks that TensorFlow and the other libraries can be imported."""
    result = examination.tensorflow
    if not result.ok:
        remedy = f"pip install '{TENSORFLOW_REQUIREMENT}' (in a new virtual environment, if it is installed already)"
        yield Check(name="import tensorflow", status="fail", detail=explain(result), remedy=remedy)
    else:
        yield Check(name="import tensorflow", status="ok", detail=result.data["version"])
    for package, library in examination.libraries.items() if result.ok else ():
        name = f"import {package}"
        if library.ok:
            version = library.data["version"] or examination.machine.package_version(package) or "works"
            yield Check(name=name, status="ok", detail=version)
        elif package in EXTRAS and library.cause.endswith(f"No module named {LIBRARIES[package].split('.')[0]!r}"):
            detail = f"not installed; training does without it (pip install 'tfaccel[{EXTRAS[package]}]')"
            yield Check(name=name, status="skip", detail=detail)
        elif not library.was_tried:
            yield Check(name=name, status="skip", detail=library.cause)
        else:
            requirement = KERAS_REQUIREMENT if package == "keras" else package
            yield Check(name=name, status="fail", detail=explain(library), remedy=f"pip install '{requirement}'")
