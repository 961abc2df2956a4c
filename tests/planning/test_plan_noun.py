"""The noun Plan: its batch sizes, its JSON, and every value and combination that it refuses."""

import json
import re

import pytest

from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan, plan_field_names

CPU = {"strategy": "none", "devices": ("CPU:0",), "global_batch_size": 32}
GPUS = {"strategy": "mirrored", "devices": ("GPU:0", "GPU:1"), "global_batch_size": 32}
WORKERS = {"strategy": "multi_worker_mirrored", "devices": ("CPU:0",), "num_workers": 2, "global_batch_size": 32}
GPU_WORKERS = {**WORKERS, "devices": ("GPU:0", "GPU:1")}
TPU = {"strategy": "tpu", "devices": ("TPU:0", "TPU:1"), "tpu": "local", "global_batch_size": 32}


def refused(message, **fields):
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan(**fields)


def test_batch_sizes():
    plan = Plan(**{**GPU_WORKERS, "global_batch_size": 64}, accumulation_steps=4)
    sizes = (plan.num_local_replicas, plan.num_replicas, plan.replica_batch_size, plan.micro_batch_size)
    assert sizes == (2, 4, 16, 4)


@pytest.mark.parametrize("fields", [CPU, GPUS, WORKERS, GPU_WORKERS, TPU], ids=lambda fields: fields["strategy"])
def test_json_round_trip(fields, tmp_path):
    plan = Plan(**fields, reasons=[["strategy", "because"]])
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.reasons == plan.reasons == (("strategy", "because"),)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_every_field_survives_json():
    plan = Plan(
        **{**GPUS, "devices": ("GPU:1", "GPU:0")},
        num_logical_cpus=2,
        dtype_policy="mixed_float16",
        jit_compile=True,
        accumulation_steps=2,
        steps_per_execution=7,
        intra_op_threads=3,
        inter_op_threads=4,
        gpu_memory_limit_bytes=2**30,
        communication="nccl",
        bytes_per_pack=10**6,
        sum_duplicate_indices=True,
        synchronize_batch_norm=False,
        data_threads=5,
        prefetch_batches=0,
        cache_data=True,
        augment_on="device",
        memory_allocator="jemalloc",
        gpu_thread_mode="gpu_private",
        rematerialization=True,
        logit_chunks=16,
        optimizer_state="sharded",
        optimizer_slots_dtype="bfloat16",
    )
    default = Plan(**GPUS)
    same = {name for name in plan_field_names() if getattr(plan, name) == getattr(default, name)}
    placement = {"strategy", "num_workers", "tpu"}
    not_of_gpus_with_xla = {"fused_kernels", "onednn", "xla_auto_clustering", "grappler_bfloat16"}
    not_with_others = {"gpu_memory_growth", "prefetch_to_device", "data_service", "pipeline_stages"}
    of_embeddings = {"embedding_updates", "embeddings_on"}
    assert same == {*placement, *not_of_gpus_with_xla, *not_with_others, *of_embeddings, "global_batch_size"}
    rows = {"data_service": 2, "embedding_updates": "rows", "embeddings_on": "host"}
    for one in (plan, Plan(**GPUS, **rows), Plan(**GPUS, pipeline_stages=2)):
        assert Plan.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_reasons_do_not_tell_plans_apart():
    plan, other = Plan(**CPU), Plan(**CPU, reasons={"strategy": "another reason"})
    assert plan == other
    assert len({plan, other}) == 1
    assert other.reasons == (("strategy", "another reason"),)


def test_no_field_says_auto():
    assert "auto" not in Plan(**GPUS).to_json().values()


def test_failed_save_leaves_nothing(tmp_path):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(PlanError, match=r"Cannot write the plan file '.*plan.json': Is a directory"):
        Plan(**CPU).save(tmp_path / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "Cannot read the plan file '.*plan.json': No such file"),
        ("{", "The plan file '.*plan.json' is not JSON: .*--write=FILE"),
        ("[1]", r"In the plan file '.*plan.json': A plan must be a JSON object. Received: \[1\]"),
        ('{"strategy": "none"}', "A plan needs devices, global_batch_size. Received only: strategy"),
        (json.dumps({**CPU, "jit_complie": True}), "Plan has no field 'jit_complie'. Did you mean 'jit_compile'"),
        (json.dumps({**CPU, "reasons": {"strategy": 3}}), "reasons must be pairs of a field's name and a text"),
    ],
)
def test_bad_plan_file(text, message, tmp_path):
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=message):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("strategy", "miror", "`strategy` must be one of none, one_device, mirrored"),
        ("strategy", "miror", "Received: strategy='miror'. Did you mean 'mirrored'?"),
        ("strategy", "auto", "Received: strategy='auto'."),
        ("strategy", None, "Received: strategy=None."),
        ("strategy", "parameter_server", "Keras 3 does not support ParameterServerStrategy"),
        ("strategy", "central_storage", "CentralStorageStrategy with Keras 3 reports wrong losses and metrics, clips"),
        ("dtype_policy", "mixed_bfloat61", "Did you mean 'mixed_bfloat16'?"),
        ("dtype_policy", "float16", "use mixed_float16"),
        ("dtype_policy", "bfloat16", "use mixed_bfloat16"),
        ("dtype_policy", "float64", "use float32"),
        ("communication", "auto", "`communication` must be one of tensorflow_default, nccl, ring, hierarchical_copy"),
        ("augment_on", "gpu", "`augment_on` must be one of host, device. Received: augment_on='gpu'."),
        ("devices", (), "`devices` must list at least one device"),
        ("devices", "CPU:0", "Received: devices='CPU:0'"),
        ("devices", ("cpu:0",), "A device is written KIND:INDEX"),
        ("devices", ("GPU:01",), "Received: 'GPU:01'"),
        ("devices", ("GPU:0", "CPU:0"), "`devices` must all be of one kind: replicas on CPU and GPU"),
        ("devices", ("GPU:0", "GPU:0"), "Name GPU:0 once."),
        ("global_batch_size", 0, "`global_batch_size` must be a whole number of at least 1. Received: "),
        ("global_batch_size", True, "Received: global_batch_size=True."),
        ("global_batch_size", 32.0, "Received: global_batch_size=32.0."),
        ("steps_per_execution", 0, "`steps_per_execution` must be a whole number of at least 1"),
        ("bytes_per_pack", -1, "`bytes_per_pack` must be a whole number of at least 0"),
        ("intra_op_threads", 0, "at least 1, or None to leave it to TensorFlow. Received: intra_op_threads=0."),
        ("jit_compile", "auto", "`jit_compile` must be true or false. Received: jit_compile='auto'."),
        ("cache_data", 1, "`cache_data` must be true or false. Received: cache_data=1."),
        ("memory_allocator", "jmalloc", "one of jemalloc, tcmalloc, mimalloc, glibc_huge_pages, or None. Received: "),
        ("memory_allocator", "jmalloc", "Did you mean 'jemalloc'?"),
        ("gpu_thread_mode", True, "`gpu_thread_mode` must be one of global, gpu_private, gpu_shared, or None."),
        ("tpu", "", "`tpu` must be a TPU's name or address, 'local', or None. Received: tpu=''."),
    ],
)
def test_value_refused(field, value, message):
    refused(message, **{**CPU, field: value})


def test_batches_are_prefetched_to_one_gpu_only():
    one = {**GPUS, "strategy": "none", "devices": ("GPU:0",), "prefetch_to_device": True}
    assert Plan.from_json(Plan(**one).to_json()) == Plan(**one)
    message = "`prefetch_to_device` is for one replica on a GPU, with `prefetch_batches` of at least 1"
    refused(message, **{**one, "prefetch_batches": 0})
    refused(message, **{**GPUS, "prefetch_to_device": True})
    refused("Received: devices=CPU:0, num_workers=1", **CPU, prefetch_to_device=True)


def test_batch_that_does_not_divide():
    eight = {**GPUS, "devices": tuple(f"GPU:{i}" for i in range(8))}
    refused(
        "`global_batch_size` must be divisible by the number of replicas. Received: global_batch_size=100, "
        "num_replicas=8. Use 96 or 104, or fewer devices.",
        **{**eight, "global_batch_size": 100},
    )
    refused("Received: global_batch_size=5, num_replicas=8. Use 8, or fewer", **{**eight, "global_batch_size": 5})
    refused(
        "by the number of replicas times `accumulation_steps`. Received: global_batch_size=40, num_replicas=2, "
        "accumulation_steps=16. Use 32 or 64, or fewer devices or accumulation steps.",
        **{**GPUS, "global_batch_size": 40, "accumulation_steps": 16},
    )
    refused("accumulation_steps=3. Use 30 or 33, or fewer accumulation steps.", **CPU, accumulation_steps=3)
    refused("global_batch_size=33, num_replicas=2. Use 32 or 34", **{**WORKERS, "global_batch_size": 33})


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (CPU, {"devices": ("GPU:0", "GPU:1")}, "strategy='none' runs on one device. Received: devices=GPU:0,GPU:1."),
        (GPUS, {"strategy": "one_device"}, "Name one device, or use strategy='mirrored'."),
        (CPU, {"strategy": "one_device", "devices": ("CPU:1",)}, "num_logical_cpus=1. Set num_logical_cpus=2."),
        (CPU, {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1")}, "there are logical CPUs up to CPU:0 only"),
        (WORKERS, {"num_workers": 1}, "needs at least two workers. Received: num_workers=1."),
        (GPUS, {"num_workers": 2}, "strategy='mirrored' trains in one process. Received: num_workers=2."),
        (WORKERS, {"devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2}, "uses one CPU device in each worker"),
        (TPU, {"devices": ("GPU:0",)}, "strategy='tpu', devices=GPU:0. Use TPU devices."),
        (TPU, {"strategy": "mirrored"}, "strategy='tpu' and TPU devices go together."),
        (TPU, {"tpu": None}, "Received: tpu=None, strategy='tpu'. Use tpu='local' for this machine's."),
        (CPU, {"tpu": "local"}, "Received: tpu='local', strategy='none'. Drop it."),
        (TPU, {"jit_compile": True}, "TPUStrategy compiles with XLA by itself"),
        (TPU, {"dtype_policy": "mixed_float16"}, "Use dtype_policy='mixed_bfloat16'."),
        (
            CPU,
            {"xla_auto_clustering": True, "jit_compile": True},
            "Use xla_auto_clustering=False, or jit_compile=False.",
        ),
        (TPU, {"xla_auto_clustering": True}, "jit_compile=False, strategy='tpu'. Use xla_auto_clustering=False."),
        (CPU, {"grappler_bfloat16": True, "dtype_policy": "mixed_bfloat16"}, "dtype_policy='mixed_bfloat16', jit_co"),
        (CPU, {"grappler_bfloat16": True, "jit_compile": True}, "is for float32 models on CPUs without `jit_compile`."),
        (GPUS, {"grappler_bfloat16": True}, "devices=GPU:0,GPU:1. Use grappler_bfloat16=False, with dtype_policy="),
        (
            CPU,
            {"gpu_thread_mode": "gpu_private"},
            "gpu_thread_mode='gpu_private', devices=CPU:0. Use gpu_thread_mode=None",
        ),
        (CPU, {"gpu_memory_growth": True}, "`gpu_memory_growth` and `gpu_memory_limit_bytes` are for GPUs."),
        (CPU, {"gpu_memory_limit_bytes": 1}, "gpu_memory_limit_bytes=1, devices=CPU:0."),
        (GPUS, {"gpu_memory_growth": True, "gpu_memory_limit_bytes": 1}, "cannot both let a GPU's memory grow and"),
        (CPU, {"communication": "nccl"}, "is for the strategies 'mirrored' and 'multi_worker_mirrored'."),
        (TPU, {"communication": "ring"}, "is for the strategies 'mirrored' and 'multi_worker_mirrored'."),
        (WORKERS, {"communication": "nccl"}, "communication='nccl' works between GPUs only."),
        (
            {**GPUS, "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2},
            {"communication": "hierarchical_copy"},
            "communication='hierarchical_copy' works between GPUs only.",
        ),
        (GPUS, {"communication": "ring"}, "communication='ring' can be chosen for several workers only"),
        (GPU_WORKERS, {"communication": "hierarchical_copy"}, "Use 'nccl', 'ring' or 'tensorflow_default'."),
        (CPU, {"bytes_per_pack": 1}, "Received: bytes_per_pack=1, strategy='none'. Use bytes_per_pack=0."),
        (GPUS, {"bytes_per_pack": 1, "communication": "hierarchical_copy"}, "into a number of packs, not by bytes"),
    ],
)
def test_combination_refused(base, changes, message):
    Plan(**base)
    refused(message, **{**base, **changes})


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (CPU, {"dtype_policy": "mixed_float16", "jit_compile": True}),
        (CPU, {"strategy": "one_device", "devices": ("GPU:1",), "gpu_memory_limit_bytes": 2**30}),
        (GPUS, {"devices": ("GPU:3",), "communication": "nccl"}),
        (GPUS, {"communication": "hierarchical_copy", "gpu_memory_growth": True}),
        (GPUS, {"devices": ["CPU:0", "CPU:2"], "num_logical_cpus": 3, "bytes_per_pack": 1, "jit_compile": True}),
        (WORKERS, {"communication": "ring"}),
        (GPU_WORKERS, {"communication": "nccl", "bytes_per_pack": 50 * 2**20}),
        (TPU, {"dtype_policy": "mixed_bfloat16", "tpu": "grpc://10.0.0.2:8470"}),
    ],
)
def test_combination_allowed(base, changes):
    plan = Plan(**{**base, **changes})
    assert all(getattr(plan, name) == (tuple(v) if isinstance(v, list) else v) for name, v in changes.items())
