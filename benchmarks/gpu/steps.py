"""The steps of the GPU suite, in the order of their importance: whoever has little time runs the first ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfaccel.benchmarks.gpu.step import Step
from tfaccel.errors import TfaccelError
from tfaccel.known_names import did_you_mean

_HERE = "tfaccel.benchmarks.gpu"


def _step(name: str, about: str, function: str, **arguments: Any) -> Step:
    return Step(name=name, about=about, function=f"{_HERE}.{function}", arguments=arguments)


STEPS = (
    _step("env", "the machine and the installation", "step_machine:environment"),
    _step("doctor", "whether every device computes correctly", "step_machine:doctor"),
    _step("parity_one", "parity with plain Keras on one device", "step_machine:parity", num_devices=1),
    _step("parity_two", "the same on two logical devices, mirrored", "step_machine:parity", num_devices=2),
    _step("mlp_fit", "32-wide MLP: tfaccel.fit / Model.fit", "step_figures:fit_with_defaults"),
    _step("mlp_choice", "the fastest plan for the MLP", "step_figures:choice", task="mlp"),
    _step("mlp", "MLP: chosen plan / Model.fit and PyTorch", "step_figures:figures", task="mlp"),
    _step("transformer_choice", "the fastest plan for the Transformer", "step_figures:choice", task="transformer"),
    _step(
        "transformer",
        "Transformer: chosen plan / Model.fit and PyTorch",
        "step_figures:figures",
        task="transformer",
        at_least=1.7,
    ),
    _step("transformer_mfu", "its FLOP utilization in bfloat16, and the roofline", "step_figures:utilization"),
    _step("resnet_choice", "the fastest plan for ResNet-50", "step_figures:choice", task="resnet"),
    _step(
        "resnet",
        "ResNet-50, synthetic images: chosen plan / Model.fit and PyTorch",
        "step_figures:figures",
        task="resnet",
        at_least=2.0,
    ),
    _step(
        "resnet_input",
        "ResNet-50, JPEG images: chosen plan / Model.fit, PyTorch, synthetic",
        "step_input:decoded_input",
    ),
    _step("one_replica_xla", "XLA under a MirroredStrategy of one replica", "step_figures:one_replica_xla"),
    _step("precision", "16-bit policies, with and without XLA: speed and loss", "step_precision:policies"),
    _step("out_of_memory", "training goes on with smaller batches", "step_memory:out_of_memory"),
    _step("half_card_state", "sharded optimizer state on two halves of a card", "step_halves:optimizer_state"),
    _step("half_card_stages", "pipeline stages on two halves of a card", "step_halves:pipeline_stages"),
    _step("half_card_embeddings", "embedding tables on the host", "step_halves:host_embeddings"),
    _step("float8", "mixed_bfloat16 quantized to float8", "step_precision:float8"),
    _step("memory_estimate", "the memory estimate / the measured peak", "step_memory:estimate"),
    _step("memory_growth", "memory taken with growth, and without", "step_memory:growth"),
    _step("augmentation", "where images are augmented", "step_input:augmentation"),
    _step("regret_mlp", "MLP: chosen plan / the best of all", "step_figures:regret", task="mlp"),
    _step(
        "regret_transformer", "Transformer: chosen plan / the best of all", "step_figures:regret", task="transformer"
    ),
)


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
