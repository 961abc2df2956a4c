"""Checks of the combinations of fields in a `Plan`, each naming the fix."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tfaccel.errors import PlanError
from tfaccel.planning.plan_settings import parse_device

if TYPE_CHECKING:
    from tfaccel.planning.plan import Plan


def check_plan(plan: "Plan") -> None:
    """Raises PlanError for the first incompatible combination of fields."""
    for check in CHECKS:
        check(plan)


def get_kind(plan: "Plan") -> str:
    """The common kind of the plan's devices: "CPU", "GPU" or "TPU"."""
    return parse_device(plan.devices[0])[0]


def batch_size_error(global_batch_size: int, num_replicas: int, accumulation_steps: int = 1) -> PlanError:
    """The error for a global batch size that is not divisible, with the nearest sizes that are."""
    divisor = num_replicas * accumulation_steps
    below = global_batch_size // divisor * divisor
    neighbours = f"{below} or {below + divisor}" if below else f"{divisor}"
    by, received, fewer = "the number of replicas", f"num_replicas={num_replicas}", "fewer devices"
    if accumulation_steps > 1:
        by += " times `accumulation_steps`"
        received += f", accumulation_steps={accumulation_steps}"
        fewer = "fewer devices or accumulation steps" if num_replicas > 1 else "fewer accumulation steps"
    return PlanError(
        f"`global_batch_size` must be divisible by {by}. Received: global_batch_size={global_batch_size}, {received}. "
        f"Use {neighbours}, or {fewer}."
    )


def _check_batch(plan: "Plan") -> None:
    if plan.global_batch_size % (plan.num_replicas * plan.accumulation_steps):
        raise batch_size_error(plan.global_batch_size, plan.num_replicas, plan.accumulation_steps)


def _check_single_device(plan: "Plan") -> None:
    if plan.strategy in ("none", "one_device") and plan.num_local_replicas > 1:
        raise PlanError(
            f"strategy={plan.strategy!r} runs on one device. Received: devices={','.join(plan.devices)}. "
            f"Name one device, or use strategy='mirrored'."
        )


def _check_logical_cpus(plan: "Plan") -> None:
    highest = max(index for _, index in map(parse_device, plan.devices))
    if get_kind(plan) == "CPU" and highest >= plan.num_logical_cpus:
        raise PlanError(
            f"`devices` names CPU:{highest}, but there are logical CPUs up to CPU:{plan.num_logical_cpus - 1} only. "
            f"Received: devices={','.join(plan.devices)}, num_logical_cpus={plan.num_logical_cpus}. "
            f"Set num_logical_cpus={highest + 1}."
        )


def _check_workers(plan: "Plan") -> None:
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


def _check_tpu(plan: "Plan") -> None:
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


def _check_kernels(plan: "Plan") -> None:
    is_on_gpus = all(device.startswith("GPU") for device in plan.devices)
    if plan.fused_kernels and (plan.strategy == "tpu" or (plan.jit_compile and not is_on_gpus)):
        raise PlanError(
            "XLA fuses operations by itself, so `fused_kernels` is for training without XLA, or on GPUs. "
            f"Received: fused_kernels=True, jit_compile={plan.jit_compile}, strategy={plan.strategy!r}. "
            "Use fused_kernels=False" + (", or jit_compile=False." if plan.jit_compile else ".")
        )


def _check_graph_rewrites(plan: "Plan") -> None:
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


def _check_gpu_threads(plan: "Plan") -> None:
    if plan.gpu_thread_mode is not None and get_kind(plan) != "GPU":
        raise PlanError(
            f"`gpu_thread_mode` is for GPUs. Received: gpu_thread_mode={plan.gpu_thread_mode!r}, "
            f"devices={','.join(plan.devices)}. Use gpu_thread_mode=None."
        )


def _check_rematerialization(plan: "Plan") -> None:
    if plan.rematerialization and plan.strategy == "tpu":
        raise PlanError(
            "`rematerialization` is not supported on TPUs, where XLA decides itself what to recompute. Received: "
            "rematerialization=True, strategy='tpu'. Use rematerialization=False."
        )


def _check_onednn(plan: "Plan") -> None:
    if plan.onednn is not None and get_kind(plan) != "CPU":
        raise PlanError(
            f"`onednn` is for training on CPUs. Received: onednn={plan.onednn}, devices={','.join(plan.devices)}. "
            "Use onednn=None."
        )


def _check_gpu_memory(plan: "Plan") -> None:
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


def _check_communication(plan: "Plan") -> None:
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


def _check_packs(plan: "Plan") -> None:
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


def _check_prefetch(plan: "Plan") -> None:
    if plan.prefetch_to_device and (get_kind(plan) != "GPU" or plan.num_replicas > 1 or not plan.prefetch_batches):
        raise PlanError(
            "`prefetch_to_device` is for one replica on a GPU, with `prefetch_batches` of at least 1: batches for "
            f"several replicas are divided on the host. Received: devices={','.join(plan.devices)}, "
            f"num_workers={plan.num_workers}, prefetch_batches={plan.prefetch_batches}. Use prefetch_to_device=False."
        )


def _check_data_service(plan: "Plan") -> None:
    if plan.data_service is not None and plan.cache_data:
        raise PlanError(
            "`cache_data` keeps examples in the memory of the process that trains, and data workers are separate "
            f"processes. Received: cache_data=True, data_service={plan.data_service}. Use cache_data=False or "
            "data_service=None."
        )


def _check_embedding_updates(plan: "Plan") -> None:
    """Row updates need whole batches and gradients by rows."""
    how = plan.embedding_updates
    if how != "keras" and (plan.strategy == "tpu" or plan.accumulation_steps > 1):
        why = "TPUs have dense gradients only" if plan.strategy == "tpu" else "accumulated gradients are whole tables"
        raise PlanError(
            f"embedding_updates={how!r} updates the rows of one batch, but {why}. Received: "
            f"strategy={plan.strategy!r}, accumulation_steps={plan.accumulation_steps}. Use embedding_updates='keras'"
            + (", or accumulation_steps=1." if plan.strategy != "tpu" else ".")
        )


def _check_embedding_places(plan: "Plan") -> None:
    """Tables on the host need row updates without XLA."""
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


def _check_optimizer_state(plan: "Plan") -> None:
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


def _check_stages(plan: "Plan") -> None:
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


CHECKS: tuple[Callable[["Plan"], None], ...] = (
    _check_tpu,
    _check_workers,
    _check_stages,
    _check_single_device,
    _check_logical_cpus,
    _check_batch,
    _check_kernels,
    _check_graph_rewrites,
    _check_gpu_threads,
    _check_rematerialization,
    _check_onednn,
    _check_gpu_memory,
    _check_communication,
    _check_packs,
    _check_prefetch,
    _check_data_service,
    _check_embedding_updates,
    _check_embedding_places,
    _check_optimizer_state,
)
