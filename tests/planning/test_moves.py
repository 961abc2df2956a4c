"""The moves from a plan that are worth measuring, and those that a machine or the user rules out."""

from dataclasses import replace

import pytest

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.moves import Move, moves, tried_after_loss, tried_again
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

DIGITS = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
GPU = Hardware(devices=(Device(kind="GPU", index=0, compute_capability=(9, 0)),))


def get_values(field, hardware, **fixed):
    found = moves(hardware, DIGITS, fixed)
    changes = [dict(move.changes) for move in found if move.axis not in ("XLA", "precision") or field == "jit_compile"]
    return [change[field] for change in changes if field in change]


@pytest.mark.parametrize(
    ("features", "values"),
    [((), []), (("AVX2", "FMA"), [True]), (("AVX2", "AVX512_VNNI"), [False]), (("ASIMD",), [False])],
)
def test_the_opposite_of_tensorflows_choice_of_onednn_is_measured(features, values):
    assert get_values("onednn", Hardware(cpu_features=features, num_usable_cores=2)) == values
    assert get_values("onednn", Hardware(cpu_features=features), onednn=None) == []


def test_bfloat16_in_small_steps_is_measured_last():
    def place_of_precision(step_operations):
        machine = Hardware(cpu_features=("AVX512_BF16",))
        found = [move.axis for move in moves(machine, DIGITS, {}, step_operations=step_operations)]
        return found.index("precision") - found.index("kernels"), found[-2:]

    assert [place_of_precision(number)[0] for number in (None, 10**6)] == [1, 1]
    assert place_of_precision(10**6 - 1)[1] == ["precision", "Grappler"]


def test_models_whose_kernels_need_float32_try_threads_before_bfloat16():
    def order(hardware, **facts):
        found = [move.axis for move in moves(hardware, DIGITS, {}, **facts)]
        return [axis for axis in found if axis in ("kernels", "precision", "threads", "Grappler")], found[-1]

    machine = Hardware(cpu_features=("AVX512_BF16",), num_usable_cores=2)
    assert order(machine)[0] == ["kernels", "precision", "Grappler", "threads", "threads"]
    recurrent = order(machine, kernels_need_float32=True)
    assert recurrent == (["kernels", "threads", "threads", "Grappler", "precision"], "precision")
    assert order(GPU, kernels_need_float32=True) == order(GPU)  # they are for CPUs


@pytest.mark.parametrize("number", [4, 8])
def test_small_batches_on_several_gpus_have_moves(number):
    gpus = tuple(Device(kind="GPU", index=index, compute_capability=(9, 0)) for index in range(number))
    work = Workload("small", object, dict, lambda *args, **kwargs: None, global_batch_size=32)
    assert "devices" in {move.axis for move in moves(Hardware(devices=gpus), work, {})}


def test_onednn_is_for_cpus():
    assert get_values("onednn", GPU) == []


def test_bfloat16_by_grappler_is_measured_where_the_cpu_computes_in_it():
    def has_grappler(hardware):
        return "Grappler" in {move.axis for move in moves(hardware, DIGITS, {})}

    assert has_grappler(Hardware(cpu_features=("AVX512_BF16",)))
    assert not has_grappler(Hardware(cpu_features=("AVX2",))) and not has_grappler(GPU)


def test_installed_allocators_are_measured_on_cpus():
    def allocators(hardware, **fixed):
        found = moves(hardware, DIGITS, fixed, allocators=("jemalloc", "glibc_huge_pages"))
        return [dict(move.changes)["memory_allocator"] for move in found if move.axis == "allocator"]

    assert allocators(Hardware()) == ["jemalloc", "glibc_huge_pages"]
    assert allocators(Hardware(), memory_allocator="jemalloc") == ["jemalloc"]
    assert allocators(GPU) == []


def test_threads_of_gpus_are_measured():
    assert get_values("gpu_thread_mode", GPU) == ["gpu_private"]
    assert get_values("gpu_thread_mode", Hardware()) == []


def test_other_batches_are_measured_only_if_asked_for():
    assert get_values("global_batch_size", Hardware()) == []
    found = [move for move in moves(Hardware(), DIGITS, {}, tune_batch=True) if move.axis == "batch"]
    assert [dict(move.changes)["global_batch_size"] for move in found] == [128, 256, 512, 32]
    fixed = moves(Hardware(), DIGITS, {"global_batch_size": 64}, tune_batch=True)
    assert not [move for move in fixed if move.axis == "batch"]


def test_xla_replaces_what_it_excludes():
    best = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, fused_kernels=True)
    [move] = [move for move in moves(Hardware(), DIGITS, {}) if move.axis == "XLA"]
    changed = move.applied_to(best)
    assert (changed.jit_compile, changed.fused_kernels) == (True, False)
    assert not [move for move in moves(Hardware(), DIGITS, {"fused_kernels": True}) if move.axis == "XLA"]


def test_bfloat16_comes_from_the_dtype_policy_or_from_grappler():
    machine = Hardware(cpu_features=("AVX512_BF16",), num_usable_cores=2)
    found = {move.axis: move for move in moves(machine, DIGITS, {"dtype_policy": "float32"})}
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, dtype_policy="mixed_bfloat16")
    changed = found["Grappler"].applied_to(plan)
    assert (changed.dtype_policy, changed.grappler_bfloat16) == ("float32", True)
    assert "precision" not in found and "Grappler" not in {
        one.axis for one in moves(machine, DIGITS, {"dtype_policy": "mixed_bfloat16"})
    }
    [back] = [move for move in moves(machine, DIGITS, {}) if move.axis == "precision"]
    assert back.applied_to(changed).grappler_bfloat16 is False


def test_turning_a_default_off_comes_last():
    machine = Hardware(cpu_features=("AVX512_VNNI", "AVX2"), num_usable_cores=2)
    assert [move.axis for move in moves(machine, DIGITS, {})][-1] == "oneDNN"
    assert next(move.axis for move in moves(Hardware(cpu_features=("AVX2",)), DIGITS, {})) == "oneDNN"


def test_moves_that_contradict_the_best_plan_are_left_out():
    best = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, jit_compile=True)
    found = {move.axis: move for move in moves(Hardware(cpu_features=("AVX512_BF16",)), DIGITS, {})}
    assert found["clustering"].applied_to(best) is None
    assert found["Grappler"].applied_to(best) is None
    assert found["micro-batches"].applied_to(best).accumulation_steps == 2


@pytest.mark.parametrize("hardware", [Hardware(), GPU])
def test_fused_kernels_are_measured_in_place_of_xla(hardware):
    found = [move for move in moves(hardware, DIGITS, {}) if move.axis == "kernels"]
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, jit_compile=True)
    changed = found[0].applied_to(plan)
    assert (changed.fused_kernels, changed.jit_compile) == (True, False)
    on_gpu = hardware is GPU
    assert get_values("fused_kernels", hardware, jit_compile=False) == [True]
    assert get_values("fused_kernels", hardware, jit_compile=True) == [False] * on_gpu
    assert get_values("fused_kernels", hardware, fused_kernels=False) == []


def test_attention_in_one_kernel_and_xla_can_both_be_left_out_on_a_gpu():
    first = default_plan(GPU, DIGITS)
    assert (first.fused_kernels, first.jit_compile, first.dtype_policy) == (True, True, "mixed_bfloat16")
    precision = [move.applied_to(first) for move in moves(GPU, DIGITS, {}) if move.axis == "precision"]
    assert [(plan.dtype_policy, plan.fused_kernels) for plan in precision] == [
        ("mixed_float16", True),
        ("float32", False),
    ]
    two = Hardware(devices=(*GPU.devices, Device(kind="GPU", index=1, compute_capability=(9, 0))))
    assert not default_plan(two, DIGITS).fused_kernels
    found = [move.applied_to(first) for move in moves(GPU, DIGITS, {}) if move.axis in ("kernels", "XLA")]
    assert sorted((plan.fused_kernels, plan.jit_compile) for plan in found) == [
        (False, False),
        (False, True),
        (True, False),
    ]
    assert not default_plan(GPU, DIGITS, dtype_policy="float32").fused_kernels
    with pytest.raises(PlanError, match="or on GPUs"):
        Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, jit_compile=True, fused_kernels=True)


def test_kernels_are_tried_in_float32_where_precision_gained_little():
    first = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
    (kernels,) = tried_after_loss(Move("kernels", (("fused_kernels", True),)), {"precision": 1.04}, first)
    rounded = replace(first, dtype_policy="mixed_bfloat16")
    assert kernels.applied_to(rounded) == replace(first, fused_kernels=True)
    assert tried_after_loss(kernels, {"precision": 1.5}, first) == []
    assert tried_after_loss(kernels, {}, first) == []
    together = replace(rounded, fused_kernels=True)
    again = tried_again("precision and kernels", [], {"precision and kernels": 1.1}, first)
    assert [move.applied_to(together) for move in again] == [replace(first, fused_kernels=True), rounded]
    assert tried_again("precision and kernels", [], {"precision and kernels": 1.7}, first) == []


def test_each_of_two_moves_is_tried_alone_after_both_lost():
    first = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
    both = Move("precision and kernels", (("dtype_policy", "mixed_bfloat16"), ("fused_kernels", True)))
    alone = [move.applied_to(first) for move in tried_after_loss(both, {}, first)]
    assert alone == [replace(first, fused_kernels=True), replace(first, dtype_policy="mixed_bfloat16")]
