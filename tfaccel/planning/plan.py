"""`Plan`: all settings of a training run. Flat and explicit: no field is "auto"."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from typing import Any, Self

from tfaccel.errors import PlanError
from tfaccel.known_names import did_you_mean, suggests_names
from tfaccel.local_path import local_path
from tfaccel.planning.plan_checks import check_plan
from tfaccel.planning.plan_fields import check_fields
from tfaccel.short_repr import short_repr


@short_repr
@suggests_names
@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train: on which devices, in which precision, with which batches.

    `candidate_plans` proposes plans for a machine and a workload; `Runtime` sets one up. Incompatible values are
    rejected here, so that no plan contradicts itself. Plans that differ only in their reasons are equal.

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
            the rounding is not. Not under XLA, which fuses by itself.
        rematerialization: recompute the activations of layers in the backward pass instead of keeping them: less
            memory, a longer step, the same numbers.
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

    strategy: str
    devices: tuple[str, ...]
    pipeline_stages: int = 1
    num_logical_cpus: int = 1
    num_workers: int = 1
    dtype_policy: str = "float32"
    jit_compile: bool = False
    xla_auto_clustering: bool = False
    grappler_bfloat16: bool = False
    global_batch_size: int
    accumulation_steps: int = 1
    steps_per_execution: int | None = None
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None
    gpu_memory_growth: bool = False
    gpu_memory_limit_bytes: int | None = None
    communication: str = "tensorflow_default"
    bytes_per_pack: int = 0
    sum_duplicate_indices: bool = False
    embedding_updates: str = "keras"
    embeddings_on: str = "device"
    optimizer_state: str = "replicated"
    optimizer_slots_dtype: str = "float32"
    synchronize_batch_norm: bool = True
    onednn: bool | None = None
    memory_allocator: str | None = None
    gpu_thread_mode: str | None = None
    data_threads: int | None = None
    data_service: int | None = None
    prefetch_batches: int = 2
    prefetch_to_device: bool = False
    cache_data: bool = False
    augment_on: str = "host"
    fused_kernels: bool = False
    rematerialization: bool = False
    tpu: str | None = None
    reasons: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.devices, list):
            object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "reasons", _pairs(self.reasons))
        check_fields(self)
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
    def replica_batch_size(self) -> int:
        """Examples per optimizer step and replica."""
        return self.global_batch_size // self.num_replicas

    @property
    def micro_batch_size(self) -> int:
        """Examples that one replica processes at once."""
        return self.replica_batch_size // self.accumulation_steps

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**asdict(self), "devices": list(self.devices), "reasons": [list(pair) for pair in self.reasons]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The plan from its `to_json` data; omitted fields have their defaults.

        Raises:
            PlanError: for an unknown or missing field, or values that `Plan` rejects.
        """
        if not isinstance(data, Mapping):
            raise PlanError(f"A plan must be a JSON object. Received: {data!r:.200}.")
        check_field_names(data)
        missing = [name for name in ("strategy", "devices", "global_batch_size") if name not in data]
        if missing:
            raise PlanError(f"A plan needs {', '.join(missing)}. Received only: {', '.join(data) or 'nothing'}.")
        return cls(**data)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan as a JSON file: to a temporary name in the same folder, then renamed.

        Raises:
            PlanError: if the file cannot be written.
        """
        target = local_path(path, PlanError)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise PlanError(f"Cannot write the plan file {str(path)!r}: {error.strerror or error}.") from error

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a plan from a JSON file.

        Raises:
            PlanError: if the file cannot be read, is not JSON, or does not hold a plan; the message names the file.
        """
        try:
            return cls.from_json(json.loads(local_path(path, PlanError).read_text(encoding="utf-8")))
        except OSError as error:
            raise PlanError(f"Cannot read the plan file {str(path)!r}: {error.strerror or error}.") from error
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PlanError(
                f"The plan file {str(path)!r} is not JSON: {error}. `tfaccel plan --write=FILE` writes one."
            ) from error
        except PlanError as error:
            raise PlanError(f"In the plan file {str(path)!r}: {error}") from error


def plan_field_names() -> tuple[str, ...]:
    """The names of the fields that can be set, in order (all but `reasons`)."""
    return tuple(f.name for f in fields(Plan) if f.name != "reasons")


def check_field_names(names: Iterable[str]) -> None:
    """Raises PlanError for a name that is not a field of `Plan`, and suggests the closest one."""
    known = {f.name for f in fields(Plan)}
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known) or f" Fields: {', '.join(plan_field_names())}."
            raise PlanError(f"Plan has no field {name!r}.{hint}")


def _pairs(reasons: Any) -> tuple[tuple[str, str], ...]:
    pairs = tuple(reasons.items()) if isinstance(reasons, Mapping) else reasons
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in pairs
    ):
        raise PlanError(f"reasons must be pairs of a field's name and a text. Received: reasons={reasons!r:.200}.")
    return tuple((name, text) for name, text in pairs)
