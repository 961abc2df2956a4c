"""Measured plans are kept for what they depend on; what is stale or damaged is ignored with one line."""

import json
import sys

import pytest

from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning import plan_cache
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan_cache import PlanKey, cached_plan, chosen_plan, keep_plan, plan_key

SOURCE = """
import functools
from tfaccel import Workload

def build(width):
    return width

def workload(width=8, size=64):
    data = lambda size, *, seed, epoch: None
    model = functools.partial(build, width)
    return Workload("mine", model, dict, data, global_batch_size=size, options={"width": width})
"""
MACHINE = Hardware(cpu_model="EPYC", num_usable_cores=2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A function that imports a module of this source anew and makes its workload."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(source=SOURCE, **options):
        (tmp_path / "my_cached_module.py").write_text(source)
        sys.modules.pop("my_cached_module", None)
        import my_cached_module

        return my_cached_module.workload(**options)

    yield make
    sys.modules.pop("my_cached_module", None)


def keep(workload, **fixed):
    plan = default_plan(MACHINE, workload, **{**fixed, "jit_compile": True})
    return plan, keep_plan(MACHINE, workload, fixed, plan, speedup=1.5, report={"seconds": 3.0})


def test_a_kept_plan_is_found_with_what_was_measured(imported, cache):
    workload = imported()
    assert cached_plan(MACHINE, workload, {}) is None
    plan, file = keep(workload)
    found = cached_plan(MACHINE, imported(), {})
    assert (found.plan, found.file, found.speedup, found.report) == (plan, file, 1.5, {"seconds": 3.0})
    assert chosen_plan(MACHINE, workload).jit_compile
    assert not chosen_plan(MACHINE, workload, jit_compile=False).jit_compile
    assert [path.parent for path in (file, *cache.glob("*"))] == [cache, cache]


def test_a_plan_holds_only_for_what_it_was_measured_with(imported, monkeypatch):
    keys = {plan_key(MACHINE, imported(), {})}
    others = [
        plan_key(MACHINE, imported(width=9), {}),
        plan_key(MACHINE, imported(size=32), {}),
        plan_key(MACHINE, imported(SOURCE.replace("return width", "return 2 * width")), {}),
        plan_key(Hardware(cpu_model="EPYC", num_usable_cores=4), imported(), {}),
        plan_key(Hardware(num_usable_cores=2, devices=(Device(kind="GPU", index=0, model="H100"),)), imported(), {}),
        plan_key(MACHINE, imported(), {"jit_compile": False}),
        plan_key(MACHINE, imported(), {"jit_compile": True}),
    ]
    keys.update(others)
    assert len(keys) == len(others) + 1
    assert plan_key(MACHINE, imported(), {}) in keys
    monkeypatch.setattr(plan_cache, "_version", lambda package: "9.9")
    assert plan_key(MACHINE, imported(), {}) not in keys


STALE = {
    "the code or the shapes of the model changed": lambda imported: (
        MACHINE,
        imported(SOURCE.replace("return width", "return 2 * width")),
    ),
    "the machine is another one": lambda imported: (Hardware(num_usable_cores=4), imported()),
    "tensorflow was 9.9, now 2.": lambda imported: (MACHINE, imported()),
}


@pytest.mark.parametrize("reason", STALE)
def test_a_stale_plan_is_ignored_with_one_line(imported, caplog, monkeypatch, reason):
    with monkeypatch.context() as patched:
        if reason.startswith("tensorflow"):
            version = plan_cache._version
            patched.setattr(plan_cache, "_version", lambda name: {"tensorflow": "9.9"}.get(name) or version(name))
        _, file = keep(imported())
    assert cached_plan(MACHINE, imported(width=9), {}) is None  # another task
    assert cached_plan(MACHINE, imported(), {"jit_compile": False}) is None
    assert not caplog.records
    for _ in range(2):
        assert cached_plan(*STALE[reason](imported), {}) is None
    (record,) = caplog.records
    assert record.message.startswith(f"The plan in {file} is stale, and is not used; measured on 2")
    assert reason in record.message
    assert record.message.endswith(". `tfaccel find-fastest` measures again.")


def test_an_entry_for_something_else_is_ignored(imported, cache, caplog):
    _, file = keep(imported())
    key = plan_key(MACHINE, imported(width=9), {})
    other = cache / f"{PlanKey.of(MACHINE, imported(width=9), {}).task_digest}-{key}.json"
    other.write_bytes(file.read_bytes())
    assert cached_plan(MACHINE, imported(width=9), {}) is None
    assert "an entry for something else" in caplog.text


def test_memory_left_to_a_container_does_not_matter(imported):
    one, other = (Hardware(memory_bytes=size) for size in (2**30, 2**31))
    assert plan_key(one, imported(), {}) == plan_key(other, imported(), {})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda entry: "not JSON", "JSONDecodeError"),
        (lambda entry: json.dumps([entry]), "TypeError"),
        (lambda entry: json.dumps({**entry, "key": {}}), "an entry for something else"),
        (lambda entry: json.dumps({**entry, "plan": {**entry["plan"], "strategy": "odd"}}), "PlanError"),
        (lambda entry: json.dumps({**entry, "speedup": None}), "TypeError"),
        (lambda entry: "", "JSONDecodeError"),
        (lambda entry: "[" * 100_000, "RecursionError"),
        (lambda entry: b"\xff", "UnicodeDecodeError"),
        (lambda entry: json.dumps({**entry, "plan": {**entry["plan"], "memory_allocator": "mimalloc"}}), "PlanError"),
    ],
)
def test_a_damaged_file_is_ignored_with_one_line(imported, caplog, damage, reason):
    workload = imported()
    _, file = keep(workload)
    damaged = damage(json.loads(file.read_text()))
    file.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    assert cached_plan(MACHINE, workload, {}) is None
    (record,) = caplog.records
    assert len(record.message) < 500
    assert record.message.startswith(f"The measured plan in {file} is ignored: ")
    assert reason in record.message
    assert "\n" not in record.message


def test_a_cache_that_cannot_be_written_or_read_is_one_line(imported, cache, caplog, monkeypatch):
    workload = imported()
    _, file = keep(workload)
    monkeypatch.setenv("TFACCEL_CACHE", str(file))
    assert keep(workload)[1] is None
    assert cached_plan(MACHINE, workload, {}) is None
    assert caplog.records[0].message.startswith("The measured plan was not kept: ")
    assert "Set TFACCEL_CACHE to a directory to write to" in caplog.records[0].message
    assert [path.name for path in cache.iterdir()] == [file.name]


NO_HOME = """
import os
os.getuid = lambda: 2**31 - 7  # a user that no list of users has
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.machine_ceilings import MachineCeilings, cached_ceilings, keep_ceilings
from tfaccel.planning.plan_cache import cached_plan, chosen_plan, keep_plan
from tfaccel.planning.workload import Workload

machine = Hardware(num_usable_cores=2)
workload = Workload("mine", object, dict, list, global_batch_size=64)
plan = default_plan(machine, workload)
ceilings = MachineCeilings(device="CPU", matrix_flops_per_second={"float32": 1.0}, bytes_per_second=1.0)
for _ in range(2):
    print(cached_plan(machine, workload, {}), keep_plan(machine, workload, {}, plan, speedup=1.0, report={}))
    print(cached_ceilings(machine, plan), keep_ceilings(machine, plan, ceilings))
print(chosen_plan(machine, workload) == plan)
"""


def test_a_user_without_a_home_directory_has_no_cache(run_python, tmp_path):
    environment = dict.fromkeys(("HOME", "TFACCEL_CACHE"))
    child = run_python(NO_HOME, env=environment, cwd=tmp_path, fresh=True)
    assert child.stdout.split() == ["None"] * 8 + ["True"]
    (line,) = child.stderr.splitlines()
    assert line.startswith("There is no home directory (HOME is not set), so nothing that is measured is kept.")
    assert line.endswith("Set TFACCEL_CACHE to a directory to write to.")
    assert list(tmp_path.iterdir()) == []
