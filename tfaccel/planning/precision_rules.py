"""Rules for precision and XLA."""

from tfaccel.planning.case import Case, Choice
from tfaccel.planning.own_model import RebuiltModel

_CPU_BFLOAT16_FEATURES = ("AMX_BF16", "AVX512_BF16")
# From so many floating-point operations on. On two cores with AVX512_BF16, steps of 2e8 and more (dense, convolution,
# LSTM) ran 1.03 to 1.23 times as fast in mixed_bfloat16; one of 5e5 ran 0.84 times as fast: casts outweigh the gain.
_LARGE_STEP = 100_000_000


def dtype_policy_rule(case: Case) -> list[Choice]:
    """16 bits if the device computes faster with them; bfloat16 before float16, which needs a loss scale.

    A Keras model, in place of the function that builds one, keeps its own.
    """
    if isinstance(case.workload.build_model, RebuiltModel):
        reason = "The model's own. To try others, pass the function that builds the model."
        return [Choice(case.workload.build_model.dtype_policy, reason)]
    if case.kind == "CPU":
        return _cpu_dtype_policies(case)
    if case.kind == "TPU":
        return [
            Choice("mixed_bfloat16", "TPUs multiply matrices in bfloat16; it has float32's range: no loss scale."),
            Choice("float32", "Full precision, for comparison; slower on TPUs."),
        ]
    capabilities = [gpu.compute_capability for gpu in case.accelerators]
    known = [capability for capability in capabilities if capability is not None]
    if not known or len(known) < len(capabilities):
        return [Choice("float32", "The GPU's compute capability is not known, so its fast 16-bit formats are not.")]
    lowest = min(known)
    said = f"compute capability {lowest[0]}.{lowest[1]}"
    float32 = Choice("float32", f"Full precision, for comparison; slower than 16 bits with {said}.")
    float16 = Choice("mixed_float16", f"{said} has fast float16 (7.0 and above); the loss is scaled for its range.")
    if lowest >= (8, 0):
        reason = f"{said} has fast bfloat16 (8.0 and above); it has float32's range, so no loss scale is needed."
        return [Choice("mixed_bfloat16", reason), float16, float32]
    if lowest >= (7, 0):
        return [float16, float32]
    return [Choice("float32", f"{said} has no fast 16-bit format (float16 begins at 7.0, bfloat16 at 8.0).")]


def _cpu_dtype_policies(case: Case) -> list[Choice]:
    found = [name for name in _CPU_BFLOAT16_FEATURES if name in case.hardware.cpu_features]
    if not found:
        return [Choice("float32", "This CPU has neither AVX512_BF16 nor AMX, so bfloat16 would be slower.")]
    if case.workload.bfloat16_on_cpu:
        reason = f"The workload recommends it for CPUs that multiply in bfloat16, as this one does ({found[0]})."
        return [Choice("mixed_bfloat16", reason), Choice("float32", "Full precision, for comparison.")]
    if case.step_operations and case.step_operations >= _LARGE_STEP:
        reason = (
            f"This CPU multiplies in bfloat16 ({found[0]}), and a step is large: {case.step_operations:.1e} operations"
        )
        return [Choice("mixed_bfloat16", f"{reason}."), Choice("float32", "Full precision, for comparison.")]
    why = f"this CPU has {found[0]}, but the workload does not recommend bfloat16, in which small steps are slower"
    return [
        Choice("float32", f"Safe without measuring: {why}."),
        Choice("mixed_bfloat16", f"This CPU multiplies in bfloat16 ({found[0]}); the gain depends on the model."),
    ]


def jit_compile_rule(case: Case) -> list[Choice]:
    """XLA on GPUs, where it fuses operations; on CPUs its gain depends on the model; TPUs compile by themselves."""
    if case.kind == "TPU":
        return [Choice(False, "TPUStrategy compiles with XLA by itself.")]
    if case.kind == "GPU":
        return [
            Choice(
                True, "XLA fuses operations; it gave 1.2 to 1.6 times the speed on GPUs. The first step takes longer."
            ),
            Choice(False, "Without XLA, for models that it does not make faster or cannot compile."),
        ]
    return [
        Choice(
            False,
            "On CPUs XLA gave 0.5 (convolutions) to 2 times (dense layers) the speed: off until measured.",
        ),
        Choice(True, "XLA fuses operations; faster for dense layers, slower for convolutions on CPUs."),
    ]


def fused_kernels_rule(case: Case) -> list[Choice]:
    """Off."""
    if case["jit_compile"] or case.kind == "TPU":
        return [Choice(False, "XLA fuses operations by itself.")]
    return [Choice(False, "Keras's own operations, to the last bit; `tfaccel find-fastest` measures fused kernels.")]


def xla_auto_clustering_rule(case: Case) -> list[Choice]:
    """Off."""
    del case
    return [Choice(False, "`tfaccel find-fastest` measures it. It made a CNN on a CPU four times as slow.")]


def grappler_bfloat16_rule(case: Case) -> list[Choice]:
    """Off."""
    del case
    return [
        Choice(False, "The dtype policy decides; `tfaccel find-fastest` measures it on CPUs that compute in bfloat16.")
    ]


def rematerialization_rule(case: Case) -> list[Choice]:
    """Off."""
    del case
    return [Choice(False, "Recomputing activations takes time; it only helps if memory is short.")]
