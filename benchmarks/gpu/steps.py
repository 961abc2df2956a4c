"""The steps of the GPU suite, in the order of their importance: whoever has little time runs the first ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfaccel.benchmarks.gpu.step import Step
from tfaccel.errors import TfaccelError
from tfaccel.known_names import did_you_mean

_HERE = "tfaccel.benchmarks.gpu"


def _step(name: str, about: str, function: str, expected_seconds: float, **arguments: Any) -> Step:
    path = f"{_HERE}.{function}"
    return Step(name=name, about=about, function=path, arguments=arguments, expected_seconds=expected_seconds)


_FIRST = (
    _step("doctor", "whether every device computes correctly", "step_machine:doctor", 50),
    _step("parity", "parity with plain Keras on one device, and mirrored on two", "step_machine:parity", 95),
    _step(
        "transformer_rules",
        "Transformer: plan of the rules / Model.fit, PyTorch",
        "step_figures:rules",
        100,
        task="transformer",
        at_least=1.7,
    ),
    _step(
        "resnet_rules",
        "ResNet-50: plan of the rules / Model.fit, PyTorch",
        "step_figures:rules",
        110,
        task="resnet",
        at_least=2.0,
    ),
    _step(
        "utilization",
        "FLOP utilization of both",
        "step_figures:utilization",
        40,
        tasks={"transformer": 0.45, "resnet": None},
    ),
    _step("mlp_fit", "32-wide MLP: tfaccel.fit / Model.fit", "step_figures:fit_with_defaults", 60),
    _step("attention", "attention: cuDNN's flash kernel / Keras's", "step_kernels:attention", 30),
    *(
        _step(f"kernels_{task}", f"what the GPU does in a step: {task}", "step_kernels:kernels", 60, task=task)
        for task in ("transformer", "resnet")
    ),
    *(
        _step(
            f"first_call_{task}",
            f"{task}: the first call, with and without kept programs",
            "step_compilation:first_call",
            100,
            task=task,
        )
        for task in ("transformer", "resnet")
    ),
    _step("env", "the machine and the installation", "step_machine:environment", 5),
)
_LATER = (
    _step("mlp_choice", "the fastest plan for the MLP", "step_figures:choice", 70, task="mlp"),
    _step("mlp", "MLP: chosen plan / Model.fit, PyTorch", "step_figures:figures", 60, task="mlp"),
    _step("transformer_choice", "the fastest plan for the Transformer", "step_figures:choice", 80, task="transformer"),
    _step(
        "transformer", "Transformer: chosen plan / plan of the rules", "step_figures:figures", 110, task="transformer"
    ),
    _step("resnet_choice", "the fastest plan for ResNet-50", "step_figures:choice", 90, task="resnet"),
    _step("resnet", "ResNet-50: chosen plan / plan of the rules", "step_figures:figures", 110, task="resnet"),
    *(
        _step(
            f"regret_{task}_{policy}",
            f"{task}: chosen plan / the best with {policy}",
            "step_figures:regret",
            110,
            task=task,
            policy=policy,
        )
        for task in ("transformer", "mlp")
        for policy in ("mixed_bfloat16", "mixed_float16", "float32")
    ),
    _step("precision", "16-bit policies with XLA: speed and loss", "step_precision:policies", 110, compiles=True),
    _step("precision_no_xla", "the same without XLA", "step_precision:policies", 80, compiles=False),
    _step("float8", "mixed_bfloat16 quantized to float8", "step_precision:float8", 110),
    _step(
        "resnet_input",
        "ResNet-50, JPEG images: plan of the rules / Model.fit, PyTorch",
        "step_input:decoded_input",
        115,
    ),
    _step("resnet_cache", "ResNet-50, JPEG images kept in memory / synthetic images", "step_input:cached_input", 115),
    _step("augmentation", "where images are augmented", "step_input:augmentation", 115),
    _step("out_of_memory", "training goes on with smaller batches", "step_memory:out_of_memory", 90),
    *(
        _step(
            f"memory_estimate_{task}",
            f"{task}: the memory estimate / the measured peak",
            "step_memory:estimate",
            60,
            task=task,
        )
        for task in ("mlp", "transformer", "resnet")
    ),
    _step("memory_growth", "memory taken with growth, and without", "step_memory:growth", 50),
    _step("half_card_stages", "pipeline stages on two halves of a card", "step_halves:stages_on_halves", 110),
    _step("half_card_state", "sharded optimizer state on two halves of a card", "step_halves:optimizer_state", 110),
    _step("half_card_host_state", "optimizer state on the host", "step_halves:host_state", 110),
    _step("half_card_embeddings", "embedding tables on the host", "step_halves:host_embeddings", 110),
    _step("one_replica_xla", "XLA under a MirroredStrategy of one replica", "step_figures:one_replica_xla", 115),
    _step(
        "transformer_layers",
        "where a step of the Transformer spends its time",
        "step_figures:layers",
        80,
        task="transformer",
    ),
)
STEPS = (*_FIRST, *_LATER)


def chosen_steps(names: Iterable[str]) -> list[Step]:
    """The steps of these names, in the suite's order; "all" for all.

    Raises:
        TfaccelError: for an unknown name.
    """
    by_name = {step.name: step for step in STEPS}
    wanted = list(names) or [""]
    if wanted == ["all"]:
        return list(STEPS)
    for name in wanted:
        if name not in by_name:
            raise TfaccelError(
                f"--steps: unknown step {name!r}.{did_you_mean(name, by_name)} Steps: {', '.join(by_name)}."
            )
    return [step for step in STEPS if step.name in wanted]
