"""What the fields of a `Plan` may be: each by its `Setting`, and in combination, where each check names the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any

from tfaccel.errors import PlanError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.option_checks import MAX_COUNT, shortened

if TYPE_CHECKING:
    from tfaccel.planning.plan import Plan


EVERYDAY, EXPERT, EXPERIMENTAL = "everyday", "expert", "experimental"
LEVELS = (EVERYDAY, EXPERT, EXPERIMENTAL)
LEFT_TO_TENSORFLOW = "to leave it to TensorFlow"
PRECISION = "precision"  # the short name of `dtype_policy`; see `tfaccel.planning.short_names`
# Names that other libraries have for fields of a plan.
OTHER_NAMES = {
    **dict.fromkeys(("mixed_precision", "dtype"), PRECISION),
    **dict.fromkeys(("distribution", "distribute", "distribute_strategy", "distribution_strategy"), "strategy"),
    "xla": "jit_compile",
    **dict.fromkeys(("gpus", "num_gpus", "device", "accelerator"), "devices"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "accumulation_steps"),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a plan field may be, and what is said about it.

    Args:
        level: who sets it: `EVERYDAY`, `EXPERT` or `EXPERIMENTAL`.
        values: the allowed texts; None for a switch, a count, or a field with a check of its own.
        refused: text -> why it is refused although it names something that exists.
        bounds: the smallest and the largest count; None for a switch.
        none: what None means, if the field may be None.
        reason: why a plan has the default, for a field that no rule decides.
        flag: its own command-line flag; None for --set=FIELD=VALUE.
        help: the flag's help.
        axes: the axes along which `find_fastest` changes it.
        in_engine: whether the training step reads it: it is a field of `EngineOptions`, too.
    """

    level: str = EXPERT
    values: tuple[str, ...] | None = None
    refused: Mapping[str, str] | None = None
    bounds: tuple[int, int] | None = None
    none: str | None = None
    reason: str = ""
    flag: str | None = None
    help: str = ""
    axes: tuple[str, ...] = ()
    in_engine: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether the values are true and false, and perhaps None."""
        return self.values is None and self.bounds is None


def switch(default: Any = MISSING, **known: Any) -> Any:
    """A field of `Plan` that is true or false, or has a check of its own.

    Args:
        default: its default, if it has one.
        **known: what `Setting` takes.
    """
    return field(default=default, metadata={"setting": Setting(**known)})


def choice(*values: str, default: Any = MISSING, **known: Any) -> Any:
    """A field that is one of several texts."""
    return switch(default, values=values, **known)


def count(low: int, high: int = MAX_COUNT, *, default: Any = MISSING, **known: Any) -> Any:
    """A field that is a whole number."""
    return switch(default, bounds=(low, high), **known)


def parse_device(device: Any) -> tuple[str, int]:
    """Kind and index of a device name: ("GPU", 1) for "GPU:1"; PlanError if it is not one."""
    match = re.fullmatch(r"(CPU|GPU|TPU):(0|[1-9]\d*)", device) if isinstance(device, str) else None
    if match is None:
        raise PlanError(
            f"A device is written KIND:INDEX, with CPU, GPU or TPU and a number from 0, such as 'GPU:0'. "
            f"Received: {device!r}."
        )
    return match[1], int(match[2])


def check_setting(name: str, value: Any, setting: Setting) -> None:
    """Raises PlanError if this field cannot have this value in any plan."""
    if value is None and setting.none is not None:
        return
    if name == "devices":
        _check_devices(value)
    elif name == "tpu":
        if not isinstance(value, str) or not value:
            raise PlanError(f"`tpu` must be a TPU's name or address, 'local', or None. Received: tpu={value!r}.")
    elif setting.values is not None:
        _check_choice(name, value, setting.values, setting)
    elif setting.bounds is not None:
        _check_count(name, value, *setting.bounds, setting)
    elif type(value) is not bool:
        words = "true or false" if setting.none is None else f"true, false, or None {setting.none}"
        raise PlanError(f"`{name}` must be {words}. Received: {name}={value!r}.")


def _check_choice(name: str, value: Any, allowed: tuple[str, ...], setting: Setting) -> None:
    refusal = (setting.refused or {}).get(value) if isinstance(value, str) else None
    if refusal is not None:
        raise PlanError(f"`{name}` cannot be {value!r}: {refusal}. Choose one of: {', '.join(allowed)}.")
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        or_none = "" if setting.none is None else ", or None"
        raise PlanError(f"`{name}` must be one of {', '.join(allowed)}{or_none}. Received: {name}={value!r}.{hint}")


def _check_count(name: str, value: Any, low: int, high: int, setting: Setting) -> None:
    or_none = "" if setting.none is None else f", or None {setting.none}"
    if type(value) is not int or value < low:
        raise PlanError(
            f"`{name}` must be a whole number of at least {low}{or_none}. Received: {name}={shortened(value)}."
        )
    if value > high:
        raise PlanError(f"`{name}` must be at most {high}{or_none}. Received: {name}={shortened(value)}.")


def _check_devices(devices: Any) -> None:
    if not isinstance(devices, tuple) or not devices:
        raise PlanError(
            f"`devices` must list at least one device, such as ('CPU:0',) or ('GPU:0', 'GPU:1'). "
            f"Received: devices={devices!r}."
        )
    kinds = sorted({parse_device(device)[0] for device in devices})
    if len(kinds) > 1:
        raise PlanError(
            f"`devices` must all be of one kind: replicas on {' and '.join(kinds)} would wait for the slowest. "
            f"Received: devices={','.join(devices)}. Use those of one kind."
        )
    twice = sorted({device for device in devices if devices.count(device) > 1})
    if twice:
        raise PlanError(
            f"`devices` must name each device once. Received: devices={','.join(devices)}. "
            f"Name {', '.join(twice)} once."
        )


def check_plan(plan: Plan) -> None:
    """Raises PlanError for the first incompatible combination of fields."""
    for check in CHECKS:
        check(plan)


def get_kind(plan: Plan) -> str:
    """The common kind of the plan's devices: "CPU", "GPU" or "TPU"."""
    return parse_device(plan.devices[0])[0]


def _check_batch(plan: Plan) -> None:
    """Raises PlanError for a global batch size that is not divisible, with the nearest sizes that are."""
    size, num_replicas, accumulation_steps = plan.global_batch_size, plan.num_replicas, plan.accumulation_steps
    divisor = num_replicas * accumulation_steps
    if size % divisor == 0:
        return
    below = size // divisor * divisor
    neighbours = f"{below} or {below + divisor}" if below else f"{divisor}"
    by, received, fewer = "the number of replicas", f"num_replicas={num_replicas}", "fewer devices"
    if accumulation_steps > 1:
        by += " times `accumulation_steps`"
        received += f", accumulation_steps={accumulation_steps}"
        fewer = "fewer devices or accumulation steps" if num_replicas > 1 else "fewer accumulation steps"
    raise PlanError(
        f"`global_batch_size` must be divisible by {by}. Received: global_batch_size={size}, {received}. "
        f"Use {neighbours}, or {fewer}."
    )


def _check_single_device(plan: Plan) -> None:
    if plan.strategy in ("none", "one_device") and plan.num_local_replicas > 1:
        raise PlanError(
            f"strategy={plan.strategy!r} runs on one device. Received: devices={','.join(plan.devices)}. "
            f"Name one device, or use strategy='mirrored'."
        )


def _check_logical_cpus(plan: Plan) -> None:
    highest = max(index for _, index in map(parse_device, plan.devices))
    if get_kind(plan) == "CPU" and highest >= plan.num_logical_cpus:
        raise PlanError(
            f"`devices` names CPU:{highest}, but there are logical CPUs up to CPU:{plan.num_logical_cpus - 1} only. "
            f"Received: devices={','.join(plan.devices)}, num_logical_cpus={plan.num_logical_cpus}. "
            f"Set num_logical_cpus={highest + 1}."
        )


def _check_workers(plan: Plan) -> None:
    several = plan.strategy == "multi_worker_mirrored"
    if several and plan.num_workers == 1:
        raise PlanError(
            "strategy='multi_worker_mirrored' needs at least two workers. Received: num_workers=1. "
            "Use strategy='mirrored' for several devices of one process, or 'none' for one device."
        )
    if not several and plan.num_workers > 1:
        raise PlanError(
            f"strategy={plan.strategy!r} trains in one process. Received: num_workers={plan.num_workers}. "
            "Use strategy='multi_worker_mirrored', or num_workers=1."
        )
    if several and get_kind(plan) == "CPU" and len(plan.devices) > 1:
        raise PlanError(
            "MultiWorkerMirroredStrategy uses one CPU device in each worker, whatever the logical CPUs. "
            f"Received: devices={','.join(plan.devices)}. Use one, and more workers instead."
        )


def _check_tpu(plan: Plan) -> None:
    if (plan.strategy == "tpu") != (get_kind(plan) == "TPU"):
        raise PlanError(
            "strategy='tpu' and TPU devices go together. "
            f"Received: strategy={plan.strategy!r}, devices={','.join(plan.devices)}. "
            + ("Use TPU devices." if plan.strategy == "tpu" else "Use strategy='tpu'.")
        )
    if (plan.strategy == "tpu") != (plan.tpu is not None):
        raise PlanError(
            f"`tpu` names the TPU under strategy='tpu', and is None under others. Received: tpu={plan.tpu!r}, "
            f"strategy={plan.strategy!r}. "
            + ("Use tpu='local' for this machine's." if plan.tpu is None else "Drop it.")
        )
    if plan.strategy == "tpu" and plan.jit_compile:
        raise PlanError(
            "TPUStrategy compiles with XLA by itself; jit_compile=True would ask for a compilation for the host's CPU. "
            "Received: jit_compile=True, strategy='tpu'. Use jit_compile=False."
        )
    if plan.strategy == "tpu" and plan.dtype_policy == "mixed_float16":
        raise PlanError(
            "TPUs compute in bfloat16, not in float16. Received: dtype_policy='mixed_float16', strategy='tpu'. "
            "Use dtype_policy='mixed_bfloat16'."
        )


def _check_graph_rewrites(plan: Plan) -> None:
    is_on_gpus = all(device.startswith("GPU") for device in plan.devices)
    if plan.fused_kernels and (plan.strategy == "tpu" or (plan.jit_compile and not is_on_gpus)):
        raise PlanError(
            "XLA fuses operations by itself, so `fused_kernels` is for training without XLA, or on GPUs. "
            f"Received: fused_kernels=True, jit_compile={plan.jit_compile}, strategy={plan.strategy!r}. "
            "Use fused_kernels=False" + (", or jit_compile=False." if plan.jit_compile else ".")
        )
    if plan.xla_auto_clustering and (plan.jit_compile or plan.strategy == "tpu"):
        raise PlanError(
            "`xla_auto_clustering` is for training without `jit_compile`, which compiles the whole pass. Received: "
            f"xla_auto_clustering=True, jit_compile={plan.jit_compile}, strategy={plan.strategy!r}. "
            "Use xla_auto_clustering=False" + (", or jit_compile=False." if plan.jit_compile else ".")
        )
    if plan.grappler_bfloat16 and (plan.dtype_policy != "float32" or plan.jit_compile or get_kind(plan) != "CPU"):
        raise PlanError(
            "`grappler_bfloat16` is for float32 models on CPUs without `jit_compile`. Received: "
            f"grappler_bfloat16=True, dtype_policy={plan.dtype_policy!r}, jit_compile={plan.jit_compile}, "
            f"devices={','.join(plan.devices)}. Use grappler_bfloat16=False, with dtype_policy='mixed_bfloat16' for "
            "bfloat16."
        )


def _check_gpu_threads(plan: Plan) -> None:
    if plan.gpu_thread_mode is not None and get_kind(plan) != "GPU":
        raise PlanError(
            f"`gpu_thread_mode` is for GPUs. Received: gpu_thread_mode={plan.gpu_thread_mode!r}, "
            f"devices={','.join(plan.devices)}. Use gpu_thread_mode=None."
        )


def _check_memory_savers(plan: Plan) -> None:
    """Stages compute logits and loss in graphs of their own; on TPUs, nobody has tried chunks."""
    if plan.rematerialization and plan.strategy == "tpu":
        raise PlanError(
            "`rematerialization` is not supported on TPUs, where XLA decides itself what to recompute. Received: "
            "rematerialization=True, strategy='tpu'. Use rematerialization=False."
        )
    if plan.logit_chunks > 1 and (plan.pipeline_stages > 1 or plan.strategy == "tpu"):
        raise PlanError(
            "`logit_chunks` is not supported with pipeline stages, nor on TPUs. Received: "
            f"logit_chunks={plan.logit_chunks}, pipeline_stages={plan.pipeline_stages}, strategy={plan.strategy!r}. "
            "Use logit_chunks=1."
        )


def _check_device_settings(plan: Plan) -> None:
    if plan.onednn is not None and get_kind(plan) != "CPU":
        raise PlanError(
            f"`onednn` is for training on CPUs. Received: onednn={plan.onednn}, devices={','.join(plan.devices)}. "
            "Use onednn=None."
        )
    given = plan.gpu_memory_growth or plan.gpu_memory_limit_bytes is not None
    if given and get_kind(plan) != "GPU":
        raise PlanError(
            "`gpu_memory_growth` and `gpu_memory_limit_bytes` are for GPUs. "
            f"Received: gpu_memory_growth={plan.gpu_memory_growth}, "
            f"gpu_memory_limit_bytes={plan.gpu_memory_limit_bytes}, devices={','.join(plan.devices)}. "
            "Use gpu_memory_growth=False and gpu_memory_limit_bytes=None."
        )
    if plan.gpu_memory_growth and plan.gpu_memory_limit_bytes is not None:
        raise PlanError(
            "TensorFlow cannot both let a GPU's memory grow and limit it. Received: gpu_memory_growth=True, "
            f"gpu_memory_limit_bytes={plan.gpu_memory_limit_bytes}. Drop one of them."
        )


def _check_communication(plan: Plan) -> None:
    way, strategy = plan.communication, plan.strategy
    received = f"Received: communication={way!r}, strategy={strategy!r}, devices={','.join(plan.devices)}."
    use_default = "Use communication='tensorflow_default'"
    if way == "tensorflow_default":
        return
    if strategy not in ("mirrored", "multi_worker_mirrored"):
        raise PlanError(
            f"`communication` is for the strategies 'mirrored' and 'multi_worker_mirrored'. {received} {use_default}."
        )
    if way in ("nccl", "hierarchical_copy") and get_kind(plan) != "GPU":
        raise PlanError(f"communication={way!r} works between GPUs only. {received} {use_default}, or GPU devices.")
    if way == "ring" and strategy == "mirrored":
        raise PlanError(
            "communication='ring' can be chosen for several workers only: MirroredStrategy takes it by itself on CPUs, "
            f"and NCCL on GPUs. {received} {use_default}."
        )
    if way == "hierarchical_copy" and strategy == "multi_worker_mirrored":
        raise PlanError(
            f"communication='hierarchical_copy' works between the GPUs of one machine. {received} "
            f"Use 'nccl', 'ring' or 'tensorflow_default'."
        )


def _check_packs(plan: Plan) -> None:
    if not plan.bytes_per_pack:
        return
    if plan.strategy not in ("mirrored", "multi_worker_mirrored"):
        raise PlanError(
            "`bytes_per_pack` is for the strategies 'mirrored' and 'multi_worker_mirrored'. "
            f"Received: bytes_per_pack={plan.bytes_per_pack}, strategy={plan.strategy!r}. Use bytes_per_pack=0."
        )
    if plan.communication == "hierarchical_copy":
        raise PlanError(
            "HierarchicalCopyAllReduce divides gradients into a number of packs, not by bytes. "
            f"Received: bytes_per_pack={plan.bytes_per_pack}, communication='hierarchical_copy'. Use bytes_per_pack=0."
        )


def _check_input(plan: Plan) -> None:
    if plan.prefetch_to_device and (get_kind(plan) != "GPU" or plan.num_replicas > 1 or not plan.prefetch_batches):
        raise PlanError(
            "`prefetch_to_device` is for one replica on a GPU, with `prefetch_batches` of at least 1: batches for "
            f"several replicas are divided on the host. Received: devices={','.join(plan.devices)}, "
            f"num_workers={plan.num_workers}, prefetch_batches={plan.prefetch_batches}. Use prefetch_to_device=False."
        )
    if plan.data_service is not None and plan.cache_data:
        raise PlanError(
            "`cache_data` keeps examples in the memory of the process that trains, and data workers are separate "
            f"processes. Received: cache_data=True, data_service={plan.data_service}. Use cache_data=False or "
            "data_service=None."
        )


def _check_embeddings(plan: Plan) -> None:
    """Row updates need whole batches and gradients by rows; tables on the host need row updates without XLA."""
    how = plan.embedding_updates
    if how != "keras" and (plan.strategy == "tpu" or plan.accumulation_steps > 1):
        why = "TPUs have dense gradients only" if plan.strategy == "tpu" else "accumulated gradients are whole tables"
        raise PlanError(
            f"embedding_updates={how!r} updates the rows of one batch, but {why}. Received: "
            f"strategy={plan.strategy!r}, accumulation_steps={plan.accumulation_steps}. Use embedding_updates='keras'"
            + (", or accumulation_steps=1." if plan.strategy != "tpu" else ".")
        )
    if plan.embeddings_on != "host":
        return
    if plan.embedding_updates == "keras":
        raise PlanError(
            "embeddings_on='host' keeps tables in main memory, where only the rows of a batch are updated. Received: "
            "embedding_updates='keras'. Use embedding_updates='rows' or 'rows_lazy', or embeddings_on='device'."
        )
    if plan.jit_compile:
        raise PlanError(
            "XLA cannot look up rows in another memory than that of its device. Received: jit_compile=True, "
            "embeddings_on='host'. Use jit_compile=False or embeddings_on='device'."
        )


def _check_optimizer_state(plan: Plan) -> None:
    """Slots elsewhere need updates of whole weights on each device."""
    how = plan.optimizer_state
    if plan.optimizer_slots_dtype != "float32" and (plan.strategy == "tpu" or plan.embedding_updates != "keras"):
        raise PlanError(
            "optimizer_slots_dtype='bfloat16' is for updates of whole weights outside of TPUs. Received: "
            f"strategy={plan.strategy!r}, embedding_updates={plan.embedding_updates!r}. Use "
            "optimizer_slots_dtype='float32'."
        )
    if how == "replicated":
        return
    if plan.strategy == "tpu":
        raise PlanError(
            "TPUs run the whole step on each core, with its own optimizer state. Received: "
            f"optimizer_state={how!r}, strategy='tpu'. Use optimizer_state='replicated'."
        )
    if plan.embedding_updates != "keras":
        raise PlanError(
            f"optimizer_state={how!r} updates whole weights where their slots are, and embedding_updates="
            f"{plan.embedding_updates!r} rows of them on every replica. Received: both. Use "
            "optimizer_state='replicated' or embedding_updates='keras'."
        )


def _check_stages(plan: Plan) -> None:
    """Stages need a device each, and exclude what is made for models on one device."""
    stages = plan.pipeline_stages
    if stages == 1:
        return
    received = f"Received: pipeline_stages={stages}, devices={','.join(plan.devices)}, strategy={plan.strategy!r}"
    if plan.strategy not in ("none", "mirrored"):
        raise PlanError(
            "`pipeline_stages` is for the devices of one process, with strategy='none', or 'mirrored' for several "
            f"replicas. {received}. Use one of these, or pipeline_stages=1."
        )
    if len(plan.devices) % stages:
        raise PlanError(
            f"Each of the {stages} stages of each replica needs a device of its own. {received}. Name {stages} devices "
            "for one replica, a multiple of that for several, or use fewer stages."
        )
    for name, value, otherwise in (
        ("jit_compile", plan.jit_compile, False),
        ("xla_auto_clustering", plan.xla_auto_clustering, False),
        ("grappler_bfloat16", plan.grappler_bfloat16, False),
        ("embedding_updates", plan.embedding_updates, "keras"),
        ("optimizer_state", plan.optimizer_state, "replicated"),
        ("optimizer_slots_dtype", plan.optimizer_slots_dtype, "float32"),
        ("prefetch_to_device", plan.prefetch_to_device, False),
    ):
        if value != otherwise:
            why = (
                "XLA compiles the operations of one device"
                if name.startswith(("jit", "xla"))
                else "it is made for models on one device"
            )
            raise PlanError(
                f"`{name}` is not supported with pipeline stages: {why}. Received: pipeline_stages={stages}, "
                f"{name}={value!r}. Use {name}={otherwise!r}, or pipeline_stages=1."
            )


CHECKS: tuple[Callable[[Plan], None], ...] = (
    _check_tpu,
    _check_workers,
    _check_stages,
    _check_single_device,
    _check_logical_cpus,
    _check_batch,
    _check_graph_rewrites,
    _check_gpu_threads,
    _check_memory_savers,
    _check_device_settings,
    _check_communication,
    _check_packs,
    _check_input,
    _check_embeddings,
    _check_optimizer_state,
)
