"""The moves from a plan that are worth measuring, and those that a machine or the user rules out."""

import pytest

from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.moves import moves
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

DIGITS = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
GPU = Hardware(devices=(Device(kind="GPU", index=0, compute_capability=(9, 0)),))


def values_of(field, hardware, **fixed):
    changes = [dict(move.changes) for move in moves(hardware, DIGITS, fixed)]
    return [change[field] for change in changes if field in change]


@pytest.mark.parametrize(
    ("features", "values"),
    [((), []), (("AVX2", "FMA"), [True]), (("AVX2", "AVX512_VNNI"), [False]), (("ASIMD",), [False])],
)
def test_the_opposite_of_tensorflows_choice_of_onednn_is_measured(features, values):
    assert values_of("onednn", Hardware(cpu_features=features, num_usable_cores=2)) == values
    assert values_of("onednn", Hardware(cpu_features=features), onednn=None) == []


def test_onednn_is_for_cpus():
    assert values_of("onednn", GPU) == []


@pytest.mark.parametrize("hardware", [Hardware(), GPU])
def test_fused_kernels_are_measured_in_place_of_xla(hardware):
    [move] = [move for move in moves(hardware, DIGITS, {}) if move.axis == "kernels"]
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, jit_compile=True)
    changed = move.applied_to(plan)
    assert (changed.fused_kernels, changed.jit_compile) == (True, False)
    assert values_of("fused_kernels", hardware, jit_compile=False) == [True]
    assert values_of("fused_kernels", hardware, jit_compile=True) == []
    assert values_of("fused_kernels", hardware, fused_kernels=False) == []
