"""Rules for threads, GPU memory, communication between replicas, and the input pipeline."""

from tfaccel.planning.case import Case, Choice

# The pack size in the examples of tf.distribute.
PACK_BYTES = 50 * 2**20
# The reason of a choice that `tfaccel.training.run.augmentation_place` makes later.
PREFETCHED_BATCH_BYTES = 4 << 20  # on an H100, 77 MB took 10 ms, a third of a step of ResNet-50
AUGMENT_ON_UNMEASURED = "To begin with: training measures at its start whether the host or the device is faster."


def intra_op_threads_rule(case: Case) -> list[Choice]:
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


def inter_op_threads_rule(case: Case) -> list[Choice]:
    """Like `intra_op_threads_rule`."""
    usable, physical = case.hardware.num_usable_cores, case.hardware.num_physical_cores
    if usable < physical:
        return [Choice(usable, f"This process may use {usable} of {physical} cores; TensorFlow may count them all.")]
    return [Choice(None, "TensorFlow's own choice.")]


def gpu_memory_growth_rule(case: Case) -> list[Choice]:
    """On, so that other programs can use the rest."""
    if case.kind != "GPU":
        return [Choice(False, "No GPU is used.")]
    if case.fixed.get("gpu_memory_limit_bytes") is not None:
        return [Choice(False, "A limit is set; TensorFlow cannot do both.")]
    return [Choice(True, "Takes GPU memory as needed, so that other programs can use the rest.")]


def gpu_memory_limit_rule(case: Case) -> list[Choice]:
    """None: a limit is for deliberately sharing a GPU."""
    return [Choice(None, "No limit is needed." if case.kind == "GPU" else "No GPU is used.")]


def communication_rule(case: Case) -> list[Choice]:
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


def bytes_per_pack_rule(case: Case) -> list[Choice]:
    """TensorFlow's default; as a further candidate for large gradients, packs that are summed in parallel."""
    own = Choice(0, "TensorFlow's own size of packs.")
    several = case["strategy"] in ("mirrored", "multi_worker_mirrored") and case.num_replicas > 1
    if not several or case["communication"] == "hierarchical_copy":
        return [own]
    packs = "Gradients in packs of 50 MiB, which can be summed side by side; for gradients of 200 MB and more."
    return [own, Choice(PACK_BYTES, packs)]


def sum_duplicate_indices_rule(case: Case) -> list[Choice]:
    """Off, as in plain Keras."""
    return [Choice(False, "As Keras does on one device; it matters for embeddings with Adam or clipping only.")]


def embedding_updates_rule(case: Case) -> list[Choice]:
    """As Keras: whether an optimizer allows row updates is not known before the model is built."""
    return [
        Choice("keras", "As Keras does, for every optimizer; with SGD or Adagrad, rows is faster for large tables.")
    ]


def embeddings_on_rule(case: Case) -> list[Choice]:
    """On the devices, whose memory is the fastest."""
    return [Choice("device", "Lookups are fastest there; host keeps tables that are too large for it in main memory.")]


def optimizer_state_rule(case: Case) -> list[Choice]:
    """As Keras: how much memory the slots take is not known before the model is built."""
    del case
    return [Choice("replicated", "As Keras does; sharded or host is for models whose optimizer state does not fit.")]


def optimizer_slots_dtype_rule(case: Case) -> list[Choice]:
    """As Keras: bfloat16 would be another algorithm."""
    del case
    return [Choice("float32", "As Keras does; bfloat16 halves the optimizer's memory, and changes the results.")]


def data_threads_rule(case: Case) -> list[Choice]:
    """Separate threads for the input if the host only feeds an accelerator."""
    usable = case.hardware.num_usable_cores
    if case.kind == "CPU":
        return [Choice(None, "The input shares the operations' threads: both run on the same cores.")]
    reason = (
        f"The host only feeds the {case.kind}s; of {usable} usable cores, two are left to TensorFlow (never below 2)."
    )
    return [Choice(max(2, usable - 2), reason)]


def data_service_rule(case: Case) -> list[Choice]:
    """None."""
    del case
    return [Choice(None, "This process prepares its batches; data workers pay where cores are idle and input is late.")]


def prefetch_batches_rule(case: Case) -> list[Choice]:
    """Two: one in use, one ready."""
    return [Choice(2, "The next batch is ready when a step ends; more would only take memory.")]


def prefetch_to_device_rule(case: Case) -> list[Choice]:
    """On for large batches on one GPU, which then does not wait for the copy; else a further candidate."""
    if case.kind != "GPU" or case.num_replicas > 1 or case.fixed.get("prefetch_batches") == 0:
        return [Choice(False, "It is for one replica on a GPU, with batches that are prepared ahead.")]
    off = Choice(False, "Starting it takes some 40 ms of each epoch, and small batches are copied in no time.")
    batch_bytes = (case.workload.example_bytes or 0) * int(case["global_batch_size"])
    size = f"A batch of {batch_bytes / 1e6:,.0f} MB" if batch_bytes >= PREFETCHED_BATCH_BYTES else "The next batch"
    on = Choice(True, f"{size} is copied to the GPU during a step; a GPU would wait 1 ms for each 7 MB.")
    return [on, off] if batch_bytes >= PREFETCHED_BATCH_BYTES else [off, on]


def cache_data_rule(case: Case) -> list[Choice]:
    """Off: whether the examples fit into memory is unknown."""
    return [Choice(False, "Whether all examples fit into memory is not known.")]


def augment_on_rule(case: Case) -> list[Choice]:
    """The host; with an accelerator, which may be faster, the device as a further candidate."""
    if case.workload.augment is None:
        return [Choice("host", "The workload has nothing that could be moved to the device (`augment`).")]
    if case.kind == "CPU":
        return [Choice("host", "The host is the device: its pipeline augments the next batches during a step.")]
    return [
        Choice("host", AUGMENT_ON_UNMEASURED),
        Choice("device", f"The {case.kind} augments at the start of each step, and the host has less to do."),
    ]


def onednn_rule(case: Case) -> list[Choice]:
    """TensorFlow's default."""
    if case.kind != "CPU":
        return [Choice(None, "It is for training on CPUs.")]
    return [Choice(None, "TensorFlow's default for this CPU; `tfaccel find-fastest` measures the opposite.")]


def memory_allocator_rule(case: Case) -> list[Choice]:
    """The process's own."""
    del case
    return [Choice(None, "The process's own; `tfaccel find-fastest` measures those that are installed.")]


def gpu_thread_mode_rule(case: Case) -> list[Choice]:
    """TensorFlow's default; on GPUs, threads of each GPU's own as a further candidate."""
    if case.kind != "GPU":
        return [Choice(None, "No GPU is used.")]
    private = "Threads of each GPU's own launch its kernels, which the input pipeline then cannot delay."
    return [Choice(None, "TensorFlow's default: the operations' threads."), Choice("gpu_private", private)]
