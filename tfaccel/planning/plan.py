"""`Plan`: all settings of a training run. Flat and explicit: no field is "auto"."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from os import PathLike
from typing import Any, Self

from tfaccel.errors import PlanError
from tfaccel.files import write_json
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import local_path
from tfaccel.planning.plan_checks import (
    EVERYDAY,
    EXPERIMENTAL,
    LEFT_TO_TENSORFLOW,
    Setting,
    check_plan,
    check_setting,
    choice,
    count,
    switch,
)
from tfaccel.records import Record
from tfaccel.remote import readable_path
from tfaccel.short_repr import noun

REFUSED_STRATEGIES: Mapping[str, str] = {
    "parameter_server": "Keras 3 does not support ParameterServerStrategy: its fit and predict fail, and asynchronous "
    "workers lose counts of optimizer.iterations",
    "central_storage": "CentralStorageStrategy with Keras 3 reports wrong losses and metrics, clips gradients wrongly, "
    "and crashes with a loss scale, EMA or gradient accumulation",
}
_THREADS: Mapping[str, Any] = {
    "flag": "num_threads",
    "help": "number of threads for TensorFlow's operations, or auto",
    "axes": ("threads",),
}


@noun(suggests=True)
class Plan(Record):
    """How to train: on which devices, in which precision, with which batches.

    `candidate_plans` proposes plans for a machine and a workload; `Runtime` sets one up. Incompatible values are
    rejected here, so that no plan contradicts itself. Plans that differ only in their reasons are equal.

    Six fields are for every day: `strategy`, `devices`, `dtype_policy`, `jit_compile`, `global_batch_size` and
    `steps_per_execution`. Six are experimental, for models that do not fit or input that is late, and may still change:
    `pipeline_stages`, `embedding_updates`, `embeddings_on`, `optimizer_state`, `optimizer_slots_dtype` and
    `data_service`. The others are for experts; their defaults, or `tfaccel find-fastest`, are right for most models.

    Args:
        strategy: "none", "one_device", "mirrored", "multi_worker_mirrored" or "tpu".
        devices: this process's devices, one per replica, such as ("CPU:0",), ("GPU:0", "GPU:1") or, for logical
            CPUs, ("CPU:0", "CPU:1"); with pipeline stages, those of the first replica's stages, then the second's, ...
        pipeline_stages: number of parts that a functional or sequential model is cut into, each with its weights,
            slots and computation on a device of its own. The stages work side by side on different micro-batches of an
            optimizer step (`accumulation_steps`); results are those of one device with as many.
        num_logical_cpus: number of logical devices that the CPU is divided into.
        num_workers: number of processes that train together, all with the same number of devices.
        dtype_policy: Keras's policy: "float32", "mixed_float16" or "mixed_bfloat16".
        jit_compile: whether XLA compiles forward and backward pass. False under "tpu", which compiles by itself.
        xla_auto_clustering: whether XLA compiles the groups of operations that TensorFlow selects, in place of the
            whole pass. Read when TensorFlow is loaded.
        grappler_bfloat16: whether TensorFlow's graph optimizer moves operations of a float32 model to bfloat16, on CPUs
            that compute in it. The model's dtype policy stays float32.
        global_batch_size: examples per optimizer step, over all replicas of all workers.
        accumulation_steps: micro-batches that each replica's share of the global batch is divided into; their
            gradients are summed before the one optimizer step.
        steps_per_execution: optimizer steps in one call of the training function, run by a loop in the graph; 1: one
            call per step, without a loop. None: a loop of as many steps as take about half a second, measured while
            training; the number does not affect results.
        intra_op_threads: threads inside one operation; None leaves the number to TensorFlow (all usable cores).
        inter_op_threads: maximum number of parallel operations; None leaves the number to TensorFlow.
        gpu_memory_growth: allocate GPU memory as needed instead of all of it at the start.
        gpu_memory_limit_bytes: maximum memory to use on each GPU; None for no limit.
        communication: how replicas sum gradients: "tensorflow_default", "nccl" (GPUs), "ring" (several workers) or
            "hierarchical_copy" (GPUs of one machine).
        bytes_per_pack: gradients are summed in packs of about this many bytes; 0 leaves the size to TensorFlow.
        sum_duplicate_indices: sum the gradients of repeated embedding indices before the optimizer sees them. Keras
            does not, so Adam and clipping then see the gradients of one row as if they were of different rows.
        embedding_updates: "keras": the optimizer passes over whole embedding tables; "rows": it updates only the rows
            whose ids are in the batch, after it has summed the gradients of repeated ids. That is exact for SGD without
            momentum and Adagrad, and refused otherwise. "rows_lazy": the same for Adam and others, whose moments then
            decay only at steps that have the row: another algorithm.
        embeddings_on: where embedding tables and their slots are: "device", or "host" (in main memory, once per
            process; a step copies the rows of its batch to the device, and their gradients back). "host" needs row
            updates.
        optimizer_state: where the optimizer's slots are, such as Adam's moments. "replicated": on each replica, as with
            Keras; "sharded": each on one replica, which updates its weight and gives it to the others, so that each of
            N replicas has an N-th of them; "host": in the CPU's memory, where weights are then updated.
        optimizer_slots_dtype: dtype of the slots: "float32", or "bfloat16" for half of their memory: another
            algorithm, since slots are rounded after each update.
        synchronize_batch_norm: compute the statistics of batch normalization over the rows of all replicas, as on one
            device; False: over those of each replica alone, which lets XLA compile, but gives different results.
        onednn: whether TensorFlow runs oneDNN's operations on the CPU; None leaves it to TensorFlow, which does on CPUs
            with AVX512_VNNI, AVX_VNNI or AMX. TensorFlow reads it when it is loaded.
        memory_allocator: "jemalloc", "tcmalloc", "mimalloc" or "glibc_huge_pages", in place of the C library's; None
            for the one that the process has. Read when the process starts.
        gpu_thread_mode: whose threads launch the GPUs' kernels: "global", "gpu_private" (each GPU's own) or
            "gpu_shared" (of all GPUs); None leaves it to TensorFlow. Read when TensorFlow is loaded.
        data_threads: threads of the input pipeline; None shares the operations' threads.
        data_service: number of tf.data service workers, processes that prepare the training batches for this one, which
            then only receives them; None for none. The batches and their order stay the same.
        prefetch_batches: global batches that the input pipeline prefetches; 0 for none. Like `data_threads`, it has no
            effect on arrays in memory on CPUs, which need no pipeline.
        prefetch_to_device: prefetch the last of them to GPU memory, if there is a single replica, on a GPU.
        cache_data: keep the examples in memory after the first epoch.
        augment_on: where a workload's `augment` runs: "host" (in the input pipeline, ahead of training) or "device" (at
            the start of each step, on the replica's device).
        fused_kernels: train with fused kernels in place of Keras's elementwise operations; the functions are the same,
            the rounding is not. Under XLA, which fuses by itself, only on one GPU, where attention becomes one kernel.
        rematerialization: recompute the activations of layers in the backward pass instead of keeping them: less
            memory, a longer step, the same numbers.
        logit_chunks: number of parts of a replica's tokens that logits are computed for one after the other: the last
            matrix product of a model, and its sparse categorical cross-entropy. The logits of all tokens are then never
            in memory. The loss and the gradients are the same up to rounding.
        tpu: the TPU's name or address, "local" for the TPU of this machine; None under other strategies.
        reasons: pairs of a field's name and why it has its value.

    Raises:
        PlanError: if a value is invalid, or incompatible with another one; the message says how to fix it.

    Example:
        >>> plan = Plan(strategy="mirrored", devices=("GPU:0", "GPU:1"), global_batch_size=128, accumulation_steps=4)
        >>> plan.num_replicas, plan.replica_batch_size, plan.micro_batch_size
        (2, 64, 16)
        >>> Plan.from_json(plan.to_json()) == plan
        True
    """

    # Each field once: its values and default, who sets it, why it has its default if no rule decides (`reason`), its
    # flag, the axes along which `find_fastest` changes it, and whether the training step reads it (`in_engine`).
    strategy: str = choice(
        *("none", "one_device", "mirrored", "multi_worker_mirrored", "tpu"),
        level=EVERYDAY,
        refused=REFUSED_STRATEGIES,
        flag="strategy",
        help="none, one_device, mirrored, multi_worker_mirrored, tpu, or auto",
        axes=("devices",),
    )
    devices: tuple[str, ...] = switch(
        level=EVERYDAY,
        flag="devices",
        help="devices that hold replicas, such as GPU:0,GPU:1, or auto",
        axes=("devices",),
    )
    pipeline_stages: int = count(1, 1_024, default=1, level=EXPERIMENTAL, in_engine=True)
    num_logical_cpus: int = count(  # TensorFlow creates all logical CPUs and threads when it starts
        1,
        1_024,
        default=1,
        flag="logical_cpus",
        help="number of logical devices to split the CPU into, or auto",
        axes=("devices",),
    )
    num_workers: int = count(1, 65_536, default=1)
    dtype_policy: str = choice(
        *("float32", "mixed_float16", "mixed_bfloat16"),
        default="float32",
        level=EVERYDAY,
        refused={
            "float16": "pure float16 keeps the weights in float16 too, where small updates are lost; use mixed_float16",
            "bfloat16": "pure bfloat16 keeps the weights in bfloat16 too, where small updates are lost; use "
            "mixed_bfloat16",
            "float64": "float64 is not accelerated on any of these devices; use float32",
        },
        flag="dtype_policy",
        help="float32, mixed_float16, mixed_bfloat16, or auto",
        axes=("precision",),
    )
    jit_compile: bool = switch(
        False,
        level=EVERYDAY,
        flag="xla",
        help="on, off, or auto: whether to compile the forward and backward pass with XLA",
        axes=("XLA",),
    )
    xla_auto_clustering: bool = switch(
        False,
        reason="`tfaccel find-fastest` measures it. It made a CNN on a CPU four times as slow.",
        axes=("clustering",),
    )
    grappler_bfloat16: bool = switch(
        False,
        reason="The dtype policy decides; `tfaccel find-fastest` measures it on CPUs that compute in bfloat16.",
        axes=("Grappler",),
    )
    global_batch_size: int = count(
        1,
        level=EVERYDAY,
        flag="global_batch_size",
        help="examples per optimizer step over all replicas, or auto",
        axes=("batch",),
    )
    accumulation_steps: int = count(
        1,
        default=1,
        flag="accumulation_steps",
        help="micro-batches per optimizer step, or auto",
        axes=("micro-batches",),
    )
    steps_per_execution: int | None = count(
        1,
        default=None,
        none=LEFT_TO_TENSORFLOW,
        level=EVERYDAY,
        reason="A loop in the graph; while training, so many steps that a call takes about half a second.",
        flag="steps_per_execution",
        help="optimizer steps per call, or auto",
        axes=("steps",),
    )
    intra_op_threads: int | None = count(1, 4_096, default=None, none=LEFT_TO_TENSORFLOW, **_THREADS)
    inter_op_threads: int | None = count(1, 4_096, default=None, none=LEFT_TO_TENSORFLOW, **_THREADS)
    gpu_memory_growth: bool = switch(False)
    gpu_memory_limit_bytes: int | None = count(1, 2**50, default=None, none=LEFT_TO_TENSORFLOW)
    communication: str = choice(
        *("tensorflow_default", "nccl", "ring", "hierarchical_copy"),
        default="tensorflow_default",
        axes=("devices", "communication"),
    )
    bytes_per_pack: int = count(0, default=0, axes=("communication",), in_engine=True)
    sum_duplicate_indices: bool = switch(
        False,
        reason="As Keras does on one device; it matters for embeddings with Adam or clipping only.",
        in_engine=True,
    )
    embedding_updates: str = choice(
        *("keras", "rows", "rows_lazy"),
        default="keras",
        level=EXPERIMENTAL,
        reason="As Keras does, for every optimizer; with SGD or Adagrad, rows is faster for large tables.",
        in_engine=True,
    )
    embeddings_on: str = choice(
        *("device", "host"),
        default="device",
        level=EXPERIMENTAL,
        reason="Lookups are fastest there; host keeps tables that are too large for it in main memory.",
        in_engine=True,
    )
    optimizer_state: str = choice(
        *("replicated", "sharded", "host"),
        default="replicated",
        level=EXPERIMENTAL,
        reason="As Keras does; sharded or host is for models whose optimizer state does not fit.",
        in_engine=True,
    )
    optimizer_slots_dtype: str = choice(
        *("float32", "bfloat16"),
        default="float32",
        level=EXPERIMENTAL,
        reason="As Keras does; bfloat16 halves the optimizer's memory, and changes the results.",
        in_engine=True,
    )
    synchronize_batch_norm: bool = switch(
        True,
        flag="synchronize_batch_norm",
        help="on, off, or auto: whether batch normalization synchronizes statistics across replicas",
    )
    onednn: bool | None = switch(None, none=LEFT_TO_TENSORFLOW, axes=("oneDNN",))
    memory_allocator: str | None = choice(
        *("jemalloc", "tcmalloc", "mimalloc", "glibc_huge_pages"),
        default=None,
        none="",
        reason="The process's own; `tfaccel find-fastest` measures those that are installed.",
        axes=("allocator",),
    )
    gpu_thread_mode: str | None = choice(
        *("global", "gpu_private", "gpu_shared"), default=None, none="", axes=("GPU threads",)
    )
    data_threads: int | None = count(1, 4_096, default=None, none=LEFT_TO_TENSORFLOW, axes=("input",))
    data_service: int | None = count(
        1,
        1_024,
        default=None,
        none="for no data workers",
        level=EXPERIMENTAL,
        reason="This process prepares its batches; data workers pay where cores are idle and input is late.",
        flag="data_service",
        help="number of tf.data service workers that prepare the training batches, or auto for none",
    )
    prefetch_batches: int = count(
        0,
        65_536,
        default=2,
        reason="The next batch is ready when a step ends; more would only take memory.",
        axes=("input",),
    )
    prefetch_to_device: bool = switch(False, axes=("input",))
    cache_data: bool = switch(False, reason="Whether all examples fit into memory is not known.", axes=("input",))
    augment_on: str = choice("host", "device", default="host", axes=("input",))
    fused_kernels: bool = switch(False, axes=("kernels",), in_engine=True)
    rematerialization: bool = switch(
        False,
        reason="Recomputing activations takes time; it only helps if memory is short.",
        axes=("rematerialization",),
        in_engine=True,
    )
    logit_chunks: int = count(
        1,
        65_536,
        default=1,
        reason="All logits at once; chunks are for large vocabularies, when memory is short.",
        axes=("logits",),
        in_engine=True,
    )
    tpu: str | None = switch(None, none="")
    reasons: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.devices, list):
            object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "reasons", _pairs(self.reasons))
        for name in SETTINGS:
            check_value(name, getattr(self, name))
        check_plan(self)

    @property
    def num_local_replicas(self) -> int:
        """Replicas in this process."""
        return max(1, len(self.devices) // self.pipeline_stages)

    @property
    def num_replicas(self) -> int:
        """Replicas in all processes."""
        return self.num_local_replicas * self.num_workers

    @property
    def devices_per_replica(self) -> int:
        """Devices of each replica: one, or one for each of its stages."""
        return self.pipeline_stages

    @property
    def replica_batch_size(self) -> int:
        """Examples per optimizer step and replica."""
        return self.global_batch_size // self.num_replicas

    @property
    def micro_batch_size(self) -> int:
        """Examples that one replica processes at once."""
        return self.replica_batch_size // self.accumulation_steps

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The plan from its `to_json` data; omitted fields have their defaults.

        Raises:
            PlanError: for an unknown or missing field, or values that `Plan` rejects.
        """
        if not isinstance(data, Mapping):
            raise PlanError(f"A plan must be a JSON object. Received: {data!r:.200}.")
        check_field_names(data)
        missing = [one.name for one in fields(cls) if one.default is MISSING and one.name not in data]
        if missing:
            raise PlanError(f"A plan needs {', '.join(missing)}. Received only: {', '.join(data) or 'nothing'}.")
        return cls(**data)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan as a JSON file: to a temporary name in the same folder, then renamed.

        Raises:
            PlanError: if the file cannot be written.
        """
        target = local_path(path, PlanError)
        try:
            write_json(target, self.to_json())
        except OSError as error:
            raise PlanError(f"Cannot write the plan file {str(path)!r}: {error.strerror or error}.") from error

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a plan from a JSON file.

        Raises:
            PlanError: if the file cannot be read, is not JSON, or does not hold a plan; the message names the file.
        """
        try:
            return cls.from_json(json.loads(readable_path(path, PlanError).read_text(encoding="utf-8")))
        except OSError as error:
            raise PlanError(f"Cannot read the plan file {str(path)!r}: {error.strerror or error}.") from error
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PlanError(
                f"The plan file {str(path)!r} is not JSON: {error}. `tfaccel plan --write=FILE` writes one."
            ) from error
        except PlanError as error:
            raise PlanError(f"In the plan file {str(path)!r}: {error}") from error


SETTINGS: Mapping[str, Setting] = {one.name: one.metadata["setting"] for one in fields(Plan) if one.metadata}
"""Field -> its setting, in the order of the fields."""


@dataclass(frozen=True)
class FieldExplanation:
    """One field of a plan: its value, the reason for it, and the flag that overrides it."""

    field: str
    value: Any
    reason: str
    flag: str


def explain(plan: Plan) -> tuple[FieldExplanation, ...]:
    """Every field of a plan with its reason ("" if the plan has none) and its flag.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, reasons=[("strategy", "One device.")])
        >>> explain(plan)[0]
        FieldExplanation(field='strategy', value='none', reason='One device.', flag='--strategy')
    """
    reasons = dict(plan.reasons)
    return tuple(
        FieldExplanation(name, getattr(plan, name), reasons.get(name, ""), override_flag(name)) for name in SETTINGS
    )


def override_flag(field: str) -> str:
    """The flag that sets a plan field; one that has none of its own is set with --set=FIELD=VALUE.

    Example:
        >>> override_flag("jit_compile"), override_flag("tpu")
        ('--xla', '--set=tpu=VALUE')
    """
    flag = SETTINGS[field].flag
    return f"--set={field}=VALUE" if flag is None else f"--{flag}"


def default_value(field: str) -> Any:
    """The default of a plan field."""
    return Plan.__dataclass_fields__[field].default


def check_value(field: str, value: Any) -> None:
    """Raises PlanError if this field cannot have this value in any plan.

    Example:
        >>> check_value("jit_compile", "auto")
        Traceback (most recent call last):
        ...
        tfaccel.errors.PlanError: `jit_compile` must be true or false. Received: jit_compile='auto'.
    """
    if field in SETTINGS:
        check_setting(field, value, SETTINGS[field])


def plan_field_names() -> tuple[str, ...]:
    """The names of the fields that can be set, in order (all but `reasons`)."""
    return tuple(SETTINGS)


def check_field_names(names: Iterable[str], *, can_be_set: bool = False) -> None:
    """Raises PlanError for a name that is not a field of `Plan`, and suggests the closest one.

    Args:
        names: the names.
        can_be_set: whether `reasons`, which are not set, is refused as well.
    """
    known = {*SETTINGS} if can_be_set else {*SETTINGS, "reasons"}
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known) or f" Fields: {', '.join(SETTINGS)}."
            raise PlanError(f"Plan has no field {name!r}.{hint}")


def _pairs(reasons: Any) -> tuple[tuple[str, str], ...]:
    pairs = tuple(reasons.items()) if isinstance(reasons, Mapping) else reasons
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in pairs
    ):
        raise PlanError(f"reasons must be pairs of a field's name and a text. Received: reasons={reasons!r:.200}.")
    return tuple((name, text) for name, text in pairs)
