"""The rules that decide the fields of a plan that depend on machine and workload: one small function each.

A rule may read the fields that are decided before: those of the placement, and those of the rules above it.
"""

from collections.abc import Callable

from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.placements import Case, Choice

_CPU_BFLOAT16_FEATURES = ("AMX_BF16", "AVX512_BF16")
# From so many floating-point operations on. On two cores with AVX512_BF16, steps of 2e8 and more (dense, convolution,
# LSTM) ran 1.03 to 1.23 times as fast in mixed_bfloat16; one of 5e5 ran 0.84 times as fast: casts outweigh the gain.
_LARGE_STEP = 100_000_000
# The pack size in the examples of tf.distribute.
PACK_BYTES = 50 * 2**20
_FLASH_CAPABILITY = (8, 0)  # of cuDNN's kernel for attention
PREFETCHED_BATCH_BYTES = 4 << 20  # on an H100, 77 MB took 10 ms, a third of a step of ResNet-50
# The reason of a choice that `tfaccel.training.run.augmentation_place` makes later.
AUGMENT_ON_UNMEASURED = "Initial choice; training measures host and device when it starts."

Rule = Callable[[Case], list[Choice]]
RULES: dict[str, Rule] = {}
"""Field -> the rule that decides it, in the order in which they are applied."""


def _rule(decide: Rule) -> Rule:
    """Makes a function the rule of the plan field of its name."""
    RULES[decide.__name__] = decide
    return decide


@_rule
def dtype_policy(case: Case) -> list[Choice]:
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


@_rule
def jit_compile(case: Case) -> list[Choice]:
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
        Choice(False, "On CPUs XLA gave 0.5 (convolutions) to 2 times (dense layers) the speed: off until measured."),
        Choice(True, "XLA fuses operations; faster for dense layers, slower for convolutions on CPUs."),
    ]


@_rule
def fused_kernels(case: Case) -> list[Choice]:
    """On under XLA on GPUs that have a kernel for attention in 16 bits; off elsewhere."""
    if case["jit_compile"] and case.kind == "GPU":
        lowest = min(gpu.compute_capability or (0, 0) for gpu in case.accelerators)
        is_one = case.num_replicas == case.num_stages == 1
        if is_one and case["dtype_policy"] != "float32" and lowest >= _FLASH_CAPABILITY:
            reason = "Attention in one kernel of cuDNN, which writes no scores to memory; XLA fuses the rest."
            return [Choice(True, reason)]
    if case["jit_compile"] or case.kind == "TPU":
        return [Choice(False, "XLA fuses operations by itself.")]
    return [Choice(False, "Keras's own operations, to the last bit; `tfaccel find-fastest` measures fused kernels.")]


@_rule
def accumulation_steps(case: Case) -> list[Choice]:
    """One: more only save memory; four for a model in stages, which then overlap."""
    if case.num_stages > 1:
        return [
            Choice(4, "Stages work side by side on different micro-batches; batch normalization sees one at a time.")
        ]
    return [
        Choice(
            1, "Micro-batches only save memory, take time, and change batch normalization, which sees one at a time."
        )
    ]


@_rule
def global_batch_size(case: Case) -> list[Choice]:
    """The workload's recommendation for any number of replicas, so that results do not depend on it."""
    recommended = case.workload.global_batch_size
    divisor = case.num_replicas * case["accumulation_steps"]
    lower = recommended // divisor * divisor
    nearest = lower if lower and recommended - lower <= lower + divisor - recommended else lower + divisor
    share = f"{nearest // case.num_replicas} for each of {case.num_replicas} replicas"
    if nearest == recommended:
        tail = "" if case.num_replicas == 1 else f"; {share}"
        return [Choice(recommended, f"Recommended by the workload; the same on any number of devices{tail}.")]
    return [Choice(nearest, f"The size nearest to the recommended {recommended} that divides evenly: {share}.")]


@_rule
def synchronize_batch_norm(case: Case) -> list[Choice]:
    """On: N replicas compute what one device computes. Off is never proposed, since it changes results."""
    steps = case["accumulation_steps"]
    batch = (
        "the whole batch" if steps == 1 else f"each of {steps} micro-batches, which gives other numbers than one step"
    )
    reason = f"Batch normalization takes its statistics over {batch}"
    if case.num_replicas > 1:
        reason += "; over the rows of one replica they would depend on the number of replicas"
        if case["jit_compile"]:
            reason += ". XLA cannot compile the sums over replicas, and stays off for models that have it"
    return [Choice(True, f"{reason}.")]


@_rule
def intra_op_threads(case: Case) -> list[Choice]:
    """TensorFlow counts cores itself, but does not know of a container's limit."""
    hardware = case.hardware
    usable, physical = hardware.num_usable_cores, hardware.num_physical_cores
    if usable < physical:
        return [Choice(usable, f"This process may use {usable} of {physical} cores; TensorFlow may count them all.")]
    own = Choice(None, f"TensorFlow takes all {usable} usable cores by itself.")
    if case.kind == "CPU" and usable > physical > 1:
        return [
            own,
            Choice(physical, f"One thread for each of {physical} physical cores; hardware threads share units."),
        ]
    return [own]


@_rule
def inter_op_threads(case: Case) -> list[Choice]:
    """Like `intra_op_threads`."""
    usable, physical = case.hardware.num_usable_cores, case.hardware.num_physical_cores
    if usable < physical:
        return [Choice(usable, f"This process may use {usable} of {physical} cores; TensorFlow may count them all.")]
    return [Choice(None, "TensorFlow's own choice.")]


@_rule
def gpu_memory_growth(case: Case) -> list[Choice]:
    """On, so that other programs can use the rest."""
    if case.kind != "GPU":
        return [Choice(False, "No GPU is used.")]
    if case.fixed.get("gpu_memory_limit_bytes") is not None:
        return [Choice(False, "A limit is set; TensorFlow cannot do both.")]
    return [Choice(True, "Takes GPU memory as needed, so that other programs can use the rest.")]


@_rule
def gpu_memory_limit_bytes(case: Case) -> list[Choice]:
    """None: a limit is for deliberately sharing a GPU."""
    return [Choice(None, "No limit is needed." if case.kind == "GPU" else "No GPU is used.")]


@_rule
def communication(case: Case) -> list[Choice]:
    """NCCL between GPUs; ring between CPU workers; the alternatives as further candidates."""
    strategy = case["strategy"]
    if strategy not in ("mirrored", "multi_worker_mirrored") or case.num_replicas == 1:
        return [
            Choice("tensorflow_default", "There is one replica." if case.num_replicas == 1 else "Built into the TPU.")
        ]
    if case.kind == "CPU":
        if strategy == "mirrored":
            return [Choice("tensorflow_default", "MirroredStrategy sums over CPU devices in a ring by itself.")]
        return [Choice("ring", "TensorFlow's ring is what sums over CPUs of several workers.")]
    nccl = Choice("nccl", "NCCL is made for sums over GPUs.")
    if strategy == "mirrored":
        return [nccl, Choice("hierarchical_copy", "Copies along a tree; can win where GPUs are linked as in a DGX-1.")]
    return [nccl, Choice("ring", "TensorFlow's own ring, where NCCL cannot use the network between the workers.")]


@_rule
def bytes_per_pack(case: Case) -> list[Choice]:
    """TensorFlow's default; as a further candidate for large gradients, packs that are summed in parallel."""
    own = Choice(0, "TensorFlow's own size of packs.")
    several = case["strategy"] in ("mirrored", "multi_worker_mirrored") and case.num_replicas > 1
    if not several or case["communication"] == "hierarchical_copy":
        return [own]
    packs = "Gradients in packs of 50 MiB, which can be summed side by side; for gradients of 200 MB and more."
    return [own, Choice(PACK_BYTES, packs)]


@_rule
def onednn(case: Case) -> list[Choice]:
    """TensorFlow's default."""
    if case.kind != "CPU":
        return [Choice(None, "It is for training on CPUs.")]
    return [Choice(None, "TensorFlow's default for this CPU; `tfaccel find-fastest` measures the opposite.")]


@_rule
def gpu_thread_mode(case: Case) -> list[Choice]:
    """TensorFlow's default; on GPUs, threads of each GPU's own as a further candidate."""
    if case.kind != "GPU":
        return [Choice(None, "No GPU is used.")]
    private = "Threads of each GPU's own launch its kernels, which the input pipeline then cannot delay."
    return [Choice(None, "TensorFlow's default: the operations' threads."), Choice("gpu_private", private)]


@_rule
def data_threads(case: Case) -> list[Choice]:
    """Separate threads for the input if the host only feeds an accelerator."""
    usable = case.hardware.num_usable_cores
    if case.kind == "CPU":
        return [Choice(None, "The input shares the operations' threads: both run on the same cores.")]
    reason = (
        f"The host only feeds the {case.kind}s; of {usable} usable cores, two are left to TensorFlow (never below 2)."
    )
    return [Choice(max(2, usable - 2), reason)]


@_rule
def prefetch_to_device(case: Case) -> list[Choice]:
    """On for large batches on one GPU, which then does not wait for the copy; else a further candidate."""
    if case.kind != "GPU" or case.num_replicas > 1 or case.fixed.get("prefetch_batches") == 0:
        return [Choice(False, "It is for one replica on a GPU, with batches that are prepared ahead.")]
    off = Choice(False, "Starting it takes some 40 ms of each epoch. Arrays that are small stay in GPU memory anyway.")
    batch_bytes = (case.workload.example_bytes or 0) * int(case["global_batch_size"])
    size = f"A batch of {batch_bytes / 1e6:,.0f} MB" if batch_bytes >= PREFETCHED_BATCH_BYTES else "The next batch"
    on = Choice(True, f"{size} is copied to the GPU during a step; a GPU would wait 1 ms for each 7 MB.")
    return [on, off] if batch_bytes >= PREFETCHED_BATCH_BYTES else [off, on]


@_rule
def augment_on(case: Case) -> list[Choice]:
    """The host; with an accelerator, which may be faster, the device as a further candidate."""
    if case.workload.augment is None:
        return [Choice("host", "The workload has nothing that could be moved to the device (`augment`).")]
    if case.kind == "CPU":
        return [Choice("host", "The host is the device: its pipeline augments the next batches during a step.")]
    return [
        Choice("host", AUGMENT_ON_UNMEASURED),
        Choice("device", f"The {case.kind} augments at the start of each step, and the host has less to do."),
    ]
