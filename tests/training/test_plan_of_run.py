"""A run's plan, where none is given: its own when it is resumed, a measured one, that of the rules."""

import dataclasses

import pytest

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Cluster, Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan_cache import keep_plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.run_options import plan_and_origin

MACHINE = Hardware(num_usable_cores=2)
WORKLOAD = Workload("mine", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
RULES = default_plan(MACHINE, WORKLOAD)
MEASURED = dataclasses.replace(RULES, jit_compile=True)


def plan_of_run(*given, **options):
    return plan_and_origin(*given, **options)[0]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))


def measured(report=None, **fixed):
    return keep_plan(MACHINE, WORKLOAD, fixed, MEASURED, speedup=2.0, report=report or {})


def test_measured_plan_before_that_of_the_rules(tmp_path):
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="auto") == RULES
    measured()
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never") == MEASURED
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="auto") == MEASURED
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never", jit_compile=False) == RULES


def test_resumed_run_keeps_its_plan(tmp_path):
    own = dataclasses.replace(RULES, intra_op_threads=1)
    own.save(tmp_path / "plan.json")
    measured()
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="auto") == own
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="auto", intra_op_threads=2).intra_op_threads == 2
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never") == MEASURED
    dataclasses.replace(RULES, strategy="one_device").save(tmp_path / "plan.json")
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="auto") == RULES
    (tmp_path / "plan.json").write_text("{")
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="auto") == MEASURED


def test_a_resumed_run_does_not_hide_that_another_batch_size_is_asked_for(tmp_path):
    RULES.save(tmp_path / "plan.json")
    other = dataclasses.replace(WORKLOAD, global_batch_size=32)
    assert plan_of_run(MACHINE, other, tmp_path, resume="auto").global_batch_size == 32
    default_plan(MACHINE, WORKLOAD, global_batch_size=16).save(tmp_path / "plan.json")  # set by the user at first
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="auto").global_batch_size == 16


def test_fewer_workers_than_were_asked_for_keep_the_global_batch_of_all(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_LAUNCH_WORKERS", "3")
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never").global_batch_size == 63
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never", global_batch_size=32).global_batch_size == 32
    for number, size in ((2, 60), (3, 60)):
        cluster = Cluster(source="tf_config", num_workers=number, task_index=0)
        machine, work = (
            dataclasses.replace(MACHINE, cluster=cluster),
            dataclasses.replace(WORKLOAD, global_batch_size=61),
        )
        assert plan_of_run(machine, work, tmp_path, resume="never").global_batch_size == size


def test_where_a_plan_comes_from_is_said(tmp_path):
    def chosen(resume="never", **options):
        return plan_and_origin(MACHINE, WORKLOAD, tmp_path, resume=resume, **options)

    assert chosen() == (RULES, "by rules; --autotune measures")
    file = measured({"complete": True})
    assert chosen() == (MEASURED, f"measured by `tfaccel find-fastest`, {file}")
    measured({"complete": False})
    assert chosen() == (MEASURED, f"measured by a search that was interrupted (--autotune goes on with it), {file}")
    own = tmp_path / "plan.json"
    dataclasses.replace(RULES, intra_op_threads=1).save(own)
    assert chosen("auto")[1] == f"the run's own, {own}"
    plan, origin = chosen("auto", intra_op_threads=2)
    assert plan.intra_op_threads == 2
    assert origin == f"by rules; that of the run, {own}, has other devices or settings than those asked for"


def test_a_plan_that_was_measured_just_now_need_not_be_kept(tmp_path, monkeypatch):
    def chosen(resume="never"):
        return plan_and_origin(MACHINE, WORKLOAD, tmp_path, resume=resume, measured=MEASURED)

    file = measured()
    assert chosen() == (MEASURED, f"measured by `tfaccel find-fastest`, {file}")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "file"))
    assert measured() is None
    assert chosen() == (MEASURED, "measured now, but not kept")
    RULES.save(tmp_path / "plan.json")
    assert chosen("auto")[0] == RULES


def test_a_loaded_tensorflow_decides_on_onednn(tmp_path, caplog, logical_devices):
    from tfaccel.training.private.private_start import uses_onednn

    keep_plan(MACHINE, WORKLOAD, {}, dataclasses.replace(RULES, onednn=uses_onednn()), speedup=2.0, report={})
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never").onednn is uses_onednn()
    keep_plan(MACHINE, WORKLOAD, {}, dataclasses.replace(RULES, onednn=not uses_onednn()), speedup=2.0, report={})
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never") == RULES
    assert "The measured plan is used without its onednn. The plan has onednn=" in caplog.text
    plan = dataclasses.replace(RULES, memory_allocator="glibc_huge_pages")
    keep_plan(MACHINE, WORKLOAD, {}, plan, speedup=2.0, report={})
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never") == RULES
    assert "The plan has memory_allocator='glibc_huge_pages', but this process started without it." in caplog.text
    assert plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never", can_restart=True) == plan


def test_several_workers_follow_the_rules(tmp_path):
    measured()
    cluster = Cluster(source="slurm", num_workers=2, task_index=0)
    machine = dataclasses.replace(MACHINE, cluster=cluster)
    by_rules = (default_plan(machine, WORKLOAD), "by rules, as always with several workers")
    assert plan_and_origin(machine, WORKLOAD, tmp_path, resume="never", measured=MEASURED) == by_rules
    assert plan_of_run(machine, WORKLOAD, tmp_path, resume="never") == default_plan(machine, WORKLOAD)


def test_a_field_that_cannot_run_is_refused(tmp_path):
    with pytest.raises(PlanError, match="GPU"):
        plan_of_run(MACHINE, WORKLOAD, tmp_path, resume="never", devices=("GPU:0",))
