"""Settings that are read when a process starts: found out, and given to a new process by `tfaccel train`."""

import json

import pytest

from tfaccel.planning.plan_environment import installed_allocators

STATE = """
import json
from tfaccel import Plan
from tfaccel.training.runtime import unavailable_settings, variables_at_start
plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, memory_allocator="glibc_huge_pages")
print(json.dumps([variables_at_start(plan), list(unavailable_settings(plan))]))
"""


def test_what_a_process_started_with(run_python):
    needed = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    without = run_python(STATE, fresh=True)
    assert json.loads(without.stdout) == [needed, ["memory_allocator"]]
    assert json.loads(run_python(STATE, fresh=True, env=needed).stdout) == [{}, []]


@pytest.mark.slow
@pytest.mark.parametrize("allocator", installed_allocators())
def test_train_starts_again_with_another_allocator(run_python, tmp_path, allocator):
    command = ("train", "--recipe=image_classification", "--epochs=1", "--quiet", "--json")
    trained = run_python(
        "tfaccel.scripts.main", *command, f"--set=memory_allocator={allocator}", cwd=tmp_path, fresh=True
    )
    assert trained.stderr.count("Starting again with ") == 1
    plain = run_python("tfaccel.scripts.main", *command, cwd=tmp_path, fresh=True)
    results = [json.loads(child.stdout) for child in (trained, plain)]
    assert results[0]["plan"]["memory_allocator"] == allocator
    assert results[0]["final"] == results[1]["final"]
