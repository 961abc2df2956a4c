"""Checks what works on a machine: a list of small functions, each of which yields `Check`s."""

from collections.abc import Callable, Iterable, Sequence

from tfaccel.hardware.doctor_check import Check
from tfaccel.hardware.doctor_devices import check_cpu, check_gpu_computations, check_tpus
from tfaccel.hardware.doctor_examination import Examination
from tfaccel.hardware.doctor_gpu import check_gpus
from tfaccel.hardware.doctor_installation import (
    check_imports,
    check_keras_settings,
    check_machine,
    check_packages,
    check_python,
)

CheckFunction = Callable[[Examination], Iterable[Check]]

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
