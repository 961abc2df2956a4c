"""Checks of the plan fields that save memory: row updates, places of tables and slots, and pipeline stages."""

from typing import TYPE_CHECKING

from tfaccel.errors import PlanError

if TYPE_CHECKING:
    from tfaccel.planning.plan import Plan

_ONE_DEVICE = "it is made for models on one device"


def check_embedding_updates(plan: "Plan") -> None:
    """Row updates need whole batches and gradients by rows."""
    how = plan.embedding_updates
    if how != "keras" and (plan.strategy == "tpu" or plan.accumulation_steps > 1):
        why = "TPUs have dense gradients only" if plan.strategy == "tpu" else "accumulated gradients are whole tables"
        raise PlanError(
            f"embedding_updates={how!r} updates the rows of one batch, but {why}. Received: "
            f"strategy={plan.strategy!r}, accumulation_steps={plan.accumulation_steps}. Use embedding_updates='keras'"
            + (", or accumulation_steps=1." if plan.strategy != "tpu" else ".")
        )


def check_embedding_places(plan: "Plan") -> None:
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


def check_optimizer_state(plan: "Plan") -> None:
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


def check_stages(plan: "Plan") -> None:
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
            why = "XLA compiles the operations of one device" if name.startswith(("jit", "xla")) else _ONE_DEVICE
            raise PlanError(
                f"`{name}` is not supported with pipeline stages: {why}. Received: pipeline_stages={stages}, "
                f"{name}={value!r}. Use {name}={otherwise!r}, or pipeline_stages=1."
            )
