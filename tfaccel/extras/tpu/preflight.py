"""Prepares a notebook runtime: detects TPU, GPU or CPU, finds missing packages, and checks that the device works.

The packages on Colab and Kaggle change from month to month; Colab's TPU runtimes have no TensorFlow. This module never
imports TensorFlow or JAX but tries them in a child process, since an incompatible TPU library kills the process or
hangs.

If TensorFlow cannot drive the TPU, Keras's JAX backend may: plain `Model.fit` then trains the same workload.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tfaccel.hardware.doctor import TENSORFLOW_PACKAGES, ProbeProcess, explain
from tfaccel.hardware.gpu import driver_gpus, visible_gpus
from tfaccel.hardware.machine import Machine
from tfaccel.hardware.tpu import TPU_PACKAGES, find_tpus, install_command, tpu_environment, tpu_wheel_version
from tfaccel.processes.child import ProcessError, last_words, run_program

if TYPE_CHECKING:
    from tfaccel.planning.plan import Plan
    from tfaccel.planning.workload import Workload
    from tfaccel.training.run.result import TrainResult

_ON_CPU = MappingProxyType({"strategy": "none", "devices": ("CPU:0",), "jit_compile": False})
_BY_JAX = MappingProxyType({**_ON_CPU, "dtype_policy": "mixed_bfloat16"})
_JAX_PROGRAM = "tfaccel.extras.tpu.jax_probes"
_TPU_SECONDS = 180.0
_PIP_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class NotebookRuntime:
    """The device that training runs on.

    Args:
        kind: "TPU", "GPU" or "CPU".
        reason: what was found, and why training is on the CPU despite a TPU.
        plan_fields: the fields to pass to `tfaccel.default_plan`.
        environ: environment variables to set before importing Keras.
    """

    kind: str
    reason: str
    plan_fields: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} runtime: {self.reason}"

    def train(self, workload: "Workload", plan: "Plan", **options: Any) -> "TrainResult":
        """Calls `tfaccel.train`, or plain `Model.fit` if Keras's JAX backend drives the TPU.

        Args:
            workload, plan, **options: see `tfaccel.train`.
        """
        if self.environ.get("KERAS_BACKEND") == "jax":
            from tfaccel.extras.tpu.jax_training import train_on_jax

            return train_on_jax(workload, plan, **options)
        from tfaccel.training.train import train

        return train(workload, plan, **options)


def prepare_runtime(
    machine: Machine | None = None,
    *,
    install: bool = False,
    say: Callable[[str], None] = lambda text: None,
    run_pip: Callable[..., str | None] | None = None,
) -> NotebookRuntime:
    """Detects the device to train on; optionally installs missing packages. Never imports TensorFlow.

    Args:
        machine: the machine; None for this one.
        install: whether to install missing packages with pip.
        say: called with a message before each slow step.
        run_pip: `run_pip(*requirements)` installs packages and returns None, or an error message.

    Raises:
        RuntimeError: if required packages are missing or could not be installed.

    Example:
        >>> prepare_runtime().kind in ("CPU", "GPU", "TPU")
        True
    """
    machine = machine or Machine.here()
    pip = run_pip or (lambda *requirements: _run_pip(machine, *requirements))
    tpus = find_tpus(machine)
    if tpus:
        found = f"{len(tpus)} {tpus[0].model} ({tpu_environment(machine) or 'local'})"
        refusal = _prepare_tpu(machine, pip if install else None, say)
        if refusal is None:
            return NotebookRuntime(kind="TPU", reason=f"{found}, driven by TensorFlow's TPU build.")
        _prepare_others(machine, pip if install else None, say)
        jax_refusal = _prepare_jax(machine, pip if install else None, say)
        if jax_refusal is None:
            reason = f"{found}, one core used by Keras's JAX backend with plain Model.fit, since {refusal}."
            return NotebookRuntime(kind="TPU", reason=reason, plan_fields=_BY_JAX, environ={"KERAS_BACKEND": "jax"})
        reason = f"{found} found, but training is on the CPU: {refusal}; {jax_refusal}."
        return NotebookRuntime(kind="CPU", reason=reason, plan_fields=_ON_CPU)
    _prepare_others(machine, pip if install else None, say)
    gpus = visible_gpus(driver_gpus(machine), machine.environ.get("CUDA_VISIBLE_DEVICES"))
    if gpus:
        return NotebookRuntime(kind="GPU", reason=f"{len(gpus)} {gpus[0].model}.")
    return NotebookRuntime(kind="CPU", reason="no TPU and no GPU here.")


def missing_packages(machine: Machine, *, on_tpu: bool = False) -> tuple[str, ...]:
    """The missing dependencies of tfaccel, as pip requirements; on a TPU without TensorFlow, which differs there.

    Example:
        >>> missing_packages(Machine.here())
        ()
    """
    required = [text for text in metadata.requires("tfaccel") or [] if "extra ==" not in text]
    by_name = {re.split(r"[^\w.-]", text, maxsplit=1)[0]: text for text in required}
    if on_tpu or any(machine.package_version(name) for name in TENSORFLOW_PACKAGES):
        by_name.pop("tensorflow", None)
    return tuple(text for name, text in by_name.items() if machine.package_version(name) is None)


def _prepare_tpu(machine: Machine, pip: Callable[..., str | None] | None, say: Callable[[str], None]) -> str | None:
    """Why TensorFlow cannot use the TPU; None if it can."""
    if tpu_wheel_version(machine) is None:
        others = [name for name in TENSORFLOW_PACKAGES if machine.package_version(name)]
        wanted = [f"{name}{bound}" for name, bound in TPU_PACKAGES.items()]
        if others:
            return f"{others[0]} is installed, which cannot drive it; in a new environment: {install_command()}"
        if pip is None:
            return f"tensorflow-tpu is not installed: {install_command()}"
        say(f"Installing {', '.join(wanted)} ...")
        failure = pip(*wanted, *missing_packages(machine, on_tpu=True))
        if failure:
            return f"tensorflow-tpu cannot be installed: {failure}"
    say("Starting the TPU in a child process ...")
    with ProbeProcess(machine) as process:
        result = process.run(["compute", "TPU:0", "matmul"], time_limit_seconds=_TPU_SECONDS)
    return None if result.ok else f"TensorFlow's TPU build cannot use it: {explain(result)}"


def _prepare_jax(machine: Machine, pip: Callable[..., str | None] | None, say: Callable[[str], None]) -> str | None:
    """Why Keras's JAX backend cannot use the TPU; None if it can."""
    if machine.package_version("jax") is None:
        if pip is None:
            return "JAX is not installed: pip install 'jax[tpu]'"
        say("Installing jax[tpu] ...")
        failure = pip("jax[tpu]")
        if failure:
            return f"JAX cannot be installed: {failure}"
    say("Starting the TPU from JAX in a child process ...")
    with ProbeProcess(machine, program=_JAX_PROGRAM) as process:
        result = process.run(["matmul"], time_limit_seconds=_TPU_SECONDS)
    return None if result.ok else f"JAX cannot use it either: {explain(result)}"


def _prepare_others(machine: Machine, pip: Callable[..., str | None] | None, say: Callable[[str], None]) -> None:
    missing = missing_packages(machine)
    if not missing:
        return
    failure: str | None = "install=False"
    if pip is not None:
        say(f"Installing {', '.join(missing)} ...")
        failure = pip(*missing)
    if failure:
        raise RuntimeError(f"Packages are missing ({failure}). Run: pip install {_quoted(list(missing))}")


def _run_pip(machine: Machine, *requirements: str) -> str | None:
    """Installs packages; returns pip's error if it failed."""
    command = [machine.python, "-m", "pip", "install", "--quiet", *requirements]
    try:
        run_program(command, time_limit_seconds=_PIP_SECONDS)
    except ProcessError as error:
        errors = [line for line in error.output.splitlines() if line.startswith("ERROR")]
        return errors[0] if errors else f"pip {error.how}: {last_words(error.output)}"
    return None


def _quoted(requirements: list[str]) -> str:
    return " ".join(f"'{requirement}'" for requirement in requirements)
