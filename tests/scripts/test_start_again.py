"""A command starts itself again, once, for settings that it can take only when it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfaccel.planning.plan import Plan

CASES = Path(__file__).parent.parent / "measuring"
# As a command does whose workload's module has loaded TensorFlow without the plan's variables.
PROGRAM = """
import json, os, sys, types
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
from tfaccel.planning.plan import Plan
from tfaccel.scripts.start_again import can_start_again, carried_plan, has_started_again, start_again_if_needed
from tfaccel.training.runtime import unavailable_settings

plan = Plan.load(sys.argv[1])
for name in sys.argv[2:]:
    os.environ.pop(name, None)
measured = carried_plan()
first = {"missing": list(unavailable_settings(plan)), "may": can_start_again(), "again": has_started_again()}
print(json.dumps({**first, "carried": measured and measured.to_json()}), flush=True)
start_again_if_needed(plan, None if has_started_again() else plan)
"""


@pytest.fixture
def plan(tmp_path):
    fields = {"xla_auto_clustering": True, "memory_allocator": "glibc_huge_pages"}
    made = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, reasons=(("devices", "Why."),), **fields)
    made.save(tmp_path / "plan.json")
    on_gpu = Plan(strategy="one_device", devices=("GPU:0",), global_batch_size=8, gpu_thread_mode="gpu_private")
    on_gpu.save(tmp_path / "gpu.json")
    return made


@pytest.fixture
def start(plan, tmp_path):
    """A function that runs the program: what it printed at each start, and its standard error."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*names, file="plan.json", **environment):
        command = [sys.executable, "program.py", file, *names]
        variables = {**os.environ, **environment}
        child = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in child.stdout.splitlines()], child.stderr

    return run


def test_the_second_start_has_every_variable_and_the_measured_plan(start, plan):
    (first, second), errors = start()
    missing = ["xla_auto_clustering", "memory_allocator"]
    assert first == {"missing": missing, "may": True, "again": False, "carried": None}
    assert second == {"missing": [], "may": False, "again": True, "carried": plan.to_json()}
    variables = "TF_XLA_FLAGS=--tf_xla_cpu_global_jit GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
    assert errors == f"Starting again with {variables}.\n"


def test_the_threads_of_a_gpu_need_a_second_start(start):
    (first, second), errors = start(file="gpu.json")
    assert (first["missing"], second["missing"]) == (["gpu_thread_mode"], [])
    assert errors == "Starting again with TF_GPU_THREAD_MODE=gpu_private.\n"


def test_there_is_no_third_start(start):
    (_, second), errors = start("TF_XLA_FLAGS")
    assert second["missing"] == ["xla_auto_clustering"]
    assert errors.count("Starting again") == 1


@pytest.mark.parametrize("left", ["1", "no JSON", '{"arguments": ["another"]}', "[]"])
def test_what_another_command_has_left_does_not_matter(start, left):
    (first, _), _ = start(TFACCEL_STARTED_AGAIN=left)
    assert first["may"] and not first["again"]


@pytest.mark.slow
def test_what_autotune_measures_is_trained_where_it_cannot_be_kept(tmp_path):
    """The module of this workload imports Keras, so auto-clustering needs a second start, which measures nothing."""
    fields = {
        "jit_compile": "off",
        "xla_auto_clustering": "on",
        "dtype_policy": "float32",
        "fused_kernels": "off",
        "memory_allocator": "none",
        "intra_op_threads": 1,
        "inter_op_threads": 1,
    }
    flags = [f"--set={name}={value}" for name, value in fields.items()]
    words = ["train", "--workload=fastest_cases:workload", "--epochs=1", "--run_dir=run", "--autotune", *flags]
    environment = {**os.environ, "TFACCEL_CACHE": "/proc/nowhere", "PYTHONPATH": str(CASES)}
    command = [sys.executable, "-m", "tfaccel.scripts.main", *words]
    child = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    before, _, after = child.stderr.partition("Starting again with TF_XLA_FLAGS=--tf_xla_cpu_global_jit")
    assert "measuring plan 1 " in before and "measuring" not in after
    assert "The measured plan was not kept: " in before
    assert "Plan for fastest_cases (measured now, but not kept): " in child.stdout
    trained = Plan.load(tmp_path / "run" / "plan.json")
    assert trained.xla_auto_clustering
