"""Makes a notebook's runtime ready: is this a TPU, a GPU or a CPU, what is missing, and does what is there work?

Colab's and Kaggle's machines come with other packages from month to month; Colab's TPU runtimes come without
TensorFlow. Nothing here imports TensorFlow or JAX: they are tried in a child process, since a TPU library that does not
fit ends the process or hangs.

Where no TensorFlow can drive a TPU, Keras's JAX backend may: the same workload is then trained by plain `Model.fit`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tfaccel.hardware.doctor_child import ProbeProcess
from tfaccel.hardware.doctor_examination import TENSORFLOW_PACKAGES, explain
from tfaccel.hardware.gpu import driver_gpus, visible_gpus
from tfaccel.hardware.machine import Machine
from tfaccel.hardware.tpu import TPU_PACKAGES, find_tpus, install_command, tpu_environment, tpu_wheel_version
from tfaccel.processes.child import ProcessError, last_words, run_program

if TYPE_CHECKING:
    from tfaccel.planning.plan import Plan
    from tfaccel.planning.workload import Workload
    from tfaccel.training.result import TrainResult

_ON_CPU = MappingProxyType({"strategy": "none", "devices": ("CPU:0",), "jit_compile": False})
_BY_JAX = MappingProxyType({**_ON_CPU, "dtype_policy": "mixed_bfloat16"})
_JAX_PROGRAM = "tfaccel.tpu.jax_probes"
_TPU_SECONDS = 180.0
_PIP_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class NotebookRuntime:
    """What training runs on.

    Args:
        kind: "TPU", "GPU" or "CPU".
        reason: what was found, and why training is on the CPU where there is a TPU.
        plan_fields: fields for `tfaccel.default_plan` that this takes.
        environ: what has to stand in the environment before Keras is imported.
    """

    kind: str
    reason: str
    plan_fields: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} runtime: {self.reason}"

    def train(self, workload: "Workload", plan: "Plan", **options: Any) -> "TrainResult":
        """`tfaccel.train`, or plain `Model.fit` on Keras's JAX backend where that drives the TPU.

        Args:
            workload, plan, **options: as for `tfaccel.train`.
        """
        if self.environ.get("KERAS_BACKEND") == "jax":
            from tfaccel.tpu.jax_training import train_on_jax

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
    """Finds out what this runtime can train on; with `install`, installs what is missing. Never imports TensorFlow.

    Args:
        machine: the machine; None for this one.
        install: let pip install missing packages.
        say: called with a line before each thing that takes long.
        run_pip: `run_pip(*requirements)` installs them and returns None, or why it could not.

    Raises:
        RuntimeError: if packages are missing, or could not be installed, without which nothing trains.

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
            reason = f"{found}, one core of it driven by Keras's JAX backend with plain Model.fit, since {refusal}."
            return NotebookRuntime(kind="TPU", reason=reason, plan_fields=_BY_JAX, environ={"KERAS_BACKEND": "jax"})
        reason = f"{found} found, but training is on the CPU: {refusal}; {jax_refusal}."
        return NotebookRuntime(kind="CPU", reason=reason, plan_fields=_ON_CPU)
    _prepare_others(machine, pip if install else None, say)
    gpus = visible_gpus(driver_gpus(machine), machine.environ.get("CUDA_VISIBLE_DEVICES"))
    if gpus:
        return NotebookRuntime(kind="GPU", reason=f"{len(gpus)} {gpus[0].model}.")
    return NotebookRuntime(kind="CPU", reason="no TPU and no GPU here.")


def missing_packages(machine: Machine, *, on_tpu: bool = False) -> tuple[str, ...]:
    """What tfaccel needs and is not installed, as pip's requirements; on a TPU without TensorFlow, which differs there.

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
    """Why the TPU cannot be used; None where it can."""
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
    """Why Keras's JAX backend cannot use the TPU; None where it can."""
    if machine.package_version("jax") is None:
        if pip is None:
            return "JAX, which could, is not installed: pip install 'jax[tpu]'"
        say("Installing jax[tpu] ...")
        failure = pip("jax[tpu]")
        if failure:
            return f"JAX, which could, cannot be installed: {failure}"
    say("Starting the TPU from JAX in a child process ...")
    with ProbeProcess(machine, program=_JAX_PROGRAM) as process:
        result = process.run(["matmul"], time_limit_seconds=_TPU_SECONDS)
    return None if result.ok else f"JAX cannot use it either: {explain(result)}"


def _prepare_others(machine: Machine, pip: Callable[..., str | None] | None, say: Callable[[str], None]) -> None:
    missing = missing_packages(machine)
    if not missing:
        return
    failure: str | None = "installing was not asked for"
    if pip is not None:
        say(f"Installing {', '.join(missing)} ...")
        failure = pip(*missing)
    if failure:
        raise RuntimeError(f"Packages are missing ({failure}). Run: pip install {_quoted(list(missing))}")


def _run_pip(machine: Machine, *requirements: str) -> str | None:
    """Installs packages; returns pip's error where it failed."""
    command = [machine.python, "-m", "pip", "install", "--quiet", *requirements]
    try:
        run_program(command, time_limit_seconds=_PIP_SECONDS)
    except ProcessError as error:
        errors = [line for line in error.output.splitlines() if line.startswith("ERROR")]
        return errors[0] if errors else f"pip {error.how}: {last_words(error.output)}"
    return None


def _quoted(requirements: list[str]) -> str:
    return " ".join(f"'{requirement}'" for requirement in requirements)
