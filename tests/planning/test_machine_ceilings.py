"""Ceilings are kept for what they depend on; what is damaged is ignored with one line."""

import json
from dataclasses import replace

import pytest

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.machine_ceilings import (
    MachineCeilings,
    cached_ceilings,
    ceilings_file,
    compute_dtype,
    keep_ceilings,
)
from tfaccel.planning.plan import Plan

MACHINE = Hardware(cpu_model="EPYC", num_usable_cores=2)
PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
CEILINGS = MachineCeilings(
    device="CPU", matrix_flops_per_second={"float32": 1e11, "bfloat16": 4e11}, bytes_per_second=1e10, measured="today"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_kept_for_the_machine_and_the_settings_of_the_process():
    assert cached_ceilings(MACHINE, PLAN) is None
    file = keep_ceilings(MACHINE, PLAN, CEILINGS)
    assert cached_ceilings(MACHINE, PLAN) == CEILINGS
    assert ceilings_file(MACHINE, replace(PLAN, dtype_policy="mixed_bfloat16", global_batch_size=64)) == file
    assert ceilings_file(replace(MACHINE, memory_bytes=5), PLAN) == file
    on_two_logical_cpus = {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2}
    assert ceilings_file(MACHINE, replace(PLAN, **on_two_logical_cpus, intra_op_threads=1)) == file
    assert cached_ceilings(MACHINE, replace(PLAN, onednn=False)) is None
    assert cached_ceilings(replace(MACHINE, num_usable_cores=4), PLAN) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: text.replace("100000000000.0", "0"),
        lambda text: text.replace("100000000000.0", "Infinity"),
        lambda text: text.replace('"CPU"', '"GPU"'),
        lambda text: text.replace("float32", "float8"),
    ],
)
def test_damaged_file_is_ignored_with_one_line(cache, caplog, change):
    file = keep_ceilings(MACHINE, PLAN, CEILINGS)
    file.write_text(change(file.read_text()))
    assert [cached_ceilings(MACHINE, PLAN) for _ in range(2)] == [None, None]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"The measured ceilings in {file} are ignored: ")


def test_cache_that_cannot_be_written(cache, caplog):
    cache.write_text("a file")
    assert keep_ceilings(MACHINE, PLAN, CEILINGS) is None
    assert "The ceilings were not kept: " in caplog.text


def test_ceilings_of_dtypes():
    assert CEILINGS.matrix_flops("bfloat16") == 4e11
    assert CEILINGS.matrix_flops("float64") == 1e11
    gpu = MachineCeilings(
        device="GPU", matrix_flops_per_second={"float32": 1.0, "tensorfloat32": 8.0}, bytes_per_second=1.0
    )
    assert gpu.matrix_flops("float32") == 8.0
    assert MachineCeilings.from_json(json.loads(json.dumps(gpu.to_json()))) == gpu
    disturbed = replace(CEILINGS, disturbed=("bfloat16",))
    assert MachineCeilings.from_json(json.loads(json.dumps(disturbed.to_json()))) == disturbed
    assert (CEILINGS.doubt, disturbed.doubt[:23]) == ("", "The limits (bfloat16) w")
    with pytest.raises(PlanError, match=r"disturbed=\('float64',\)"):
        replace(CEILINGS, disturbed=("float64",))
    with pytest.raises(PlanError, match=r"A ceiling must be a positive number\. Received: memory=0"):
        replace(CEILINGS, bytes_per_second=0)
    with pytest.raises(PlanError, match="The ceilings lack float32"):
        replace(CEILINGS, matrix_flops_per_second={"bfloat16": 1.0})


def test_products_under_a_plan():
    assert compute_dtype(PLAN) == "float32"
    assert compute_dtype(replace(PLAN, dtype_policy="mixed_bfloat16")) == "bfloat16"
    assert compute_dtype(replace(PLAN, grappler_bfloat16=True)) == "bfloat16"
