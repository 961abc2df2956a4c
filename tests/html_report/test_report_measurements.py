"""Measurements in a report: the candidates that chose the plan, and the roofline; of a file, or kept."""

import json
from dataclasses import replace

import pytest
from report_cases import (
    PLAN,
    autotune_report,
    keep,
    roofline_data,
    write_run,
)
from report_page import written

from tfaccel import report as write_report
from tfaccel.errors import ReportError
from tfaccel.planning.cache import keep_roofline
from tfaccel.planning.rules import AUGMENT_ON_UNMEASURED


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_candidates_of_a_file_and_none(tmp_path):
    run = write_run(tmp_path / "run")
    _, page = written(tmp_path, run)
    chose = "The measurements that chose the plan are not kept here: give them by --autotune_report=FILE."
    assert chose in page.text
    autotune_report("other").save(tmp_path / "autotune.json")
    report, page = written(tmp_path, run, autotune_report=tmp_path / "autotune.json")
    assert report.sections["Measured candidates"] == 1
    assert "3 plans for other were measured" in page.text
    data = autotune_report().to_json()
    for damage, error in (
        ({}, "KeyError"),
        ({**data, "chosen": 7}, "ValueError candidate 7 of 3 was chosen"),
        ({**data, "chosen": -1}, "ValueError candidate -1 of 3 was chosen"),
        ({**data, "candidates": []}, "ValueError candidate 1 of 0 was chosen"),
    ):
        (tmp_path / "autotune.json").write_text(json.dumps(damage))
        with pytest.raises(ReportError, match=f"is not a report of `tfaccel find-fastest --report=FILE`: {error}"):
            write_report(run, autotune_report=tmp_path / "autotune.json")
    with pytest.raises(ReportError, match=r"Cannot read the autotune report 'nowhere.json': No such file"):
        write_report(run, autotune_report="nowhere.json")


def test_kept_candidates_of_another_machine_or_plan_are_not_shown(tmp_path, cache):
    keep(autotune_report(), cache)
    run = write_run(tmp_path / "run")
    data = json.loads((run / "result.json").read_text())
    for change in (
        {"hardware": {**data["hardware"], "cpu_model": "B"}},
        {"plan": {**PLAN.to_json(), "data_threads": 2}},
    ):
        (run / "result.json").write_text(json.dumps({**data, **change}))
        report, _ = written(tmp_path, run)
        assert report.sections["Measured candidates"] == 0


def test_kept_candidates_are_known_by_the_reasons_of_the_plan(tmp_path, cache):
    run = write_run(tmp_path / "run")
    data = json.loads((run / "result.json").read_text())
    first, second, third = autotune_report().candidates

    def shown(kept_reasons, run_reasons, **change):
        keep(
            replace(autotune_report(), candidates=(first, replace(second, plan=with_reasons(kept_reasons)), third)),
            cache,
        )
        plan = replace(with_reasons(run_reasons), **change)
        (run / "result.json").write_text(json.dumps({**data, "plan": plan.to_json()}))
        report, page = written(tmp_path, run)
        return report.sections["Measured candidates"], page.text

    gains = {"jit_compile": "Measured on this machine: XLA, 1.20 times the speed."}
    others = {"jit_compile": "Measured on this machine: XLA, 1.30 times the speed."}
    assert shown(gains, gains)[0] == 1
    number, text = shown(gains, others)
    assert (number, "The measurements that chose the plan are not kept here" in text) == (0, True)
    number, text = shown(gains, {"jit_compile": "The model is small."})
    assert number == 0
    assert "No measured candidates are kept for digits. `tfaccel find-fastest` measures." in text
    decided = {**gains, "augment_on": "Measured here: a step takes 1 ms on the device and 2 ms on the host."}
    assert shown({**gains, "augment_on": AUGMENT_ON_UNMEASURED}, decided, augment_on="device")[0] == 1
    assert shown({**gains, "augment_on": "You set it."}, decided, augment_on="device")[0] == 0


def with_reasons(reasons):
    return replace(PLAN, reasons=tuple(reasons.items()))


@pytest.mark.parametrize("damage", [{"chosen": 7}, {"candidates": []}])
def test_damaged_kept_candidates_are_ignored(damage, tmp_path, cache):
    keep(autotune_report(), cache)
    file = next((cache / "plans").iterdir())
    entry = json.loads(file.read_text())
    file.write_text(json.dumps({**entry, "report": {**entry["report"], **damage}}))
    report, _ = written(tmp_path, write_run(tmp_path / "run"))
    assert report.sections["Measured candidates"] == 0


def test_roofline(tmp_path):
    run = write_run(tmp_path / "run")
    _, page = written(tmp_path, run)
    assert "None is kept for the workload and plan of the run on that machine. `tfaccel roofline`" in page.text
    file = tmp_path / "roofline.json"
    file.write_text(json.dumps(roofline_data()))
    report, page = written(tmp_path, run, roofline=file)
    assert report.sections["Roofline"] == 1
    *limits, layers, step = page.figures[-1]["data"]
    assert [trace["y"] for trace in limits] == [[2.0, 100.0, 100.0], [2.0, 200.0, 200.0]]
    assert (layers["x"], layers["y"]) == ([200.0], [100.0])
    assert step["y"] == [40.0]
    assert page.figures[-1]["layout"]["xaxis"]["type"] == page.figures[-1]["layout"]["yaxis"]["type"] == "log"
    assert page.texts.count("bias") == 1
    table = page.texts.index("Limits of the machine, and the step as measured")
    assert page.texts[table + 3 :][:8] == [
        *("float32 matrix products", "100 GFLOP/s", "bfloat16 matrix products", "200 GFLOP/s"),
        *("memory", "20 GB/s", "the step", "40 GFLOP/s"),
    ]
    for damage in ({"layers": [{}]}, {"step_seconds": 0}, {"mfu": None}, {"plan": {"devices": []}}, {"ceilings": 1}):
        file.write_text(json.dumps({**roofline_data(), **damage}))
        with pytest.raises(ReportError, match=r"is not a report of `tfaccel roofline --report=FILE`: \w+Error"):
            write_report(run, roofline=file)
    with pytest.raises(ReportError, match=r"Cannot read the roofline 'nowhere.json': No such file"):
        write_report(run, roofline="nowhere.json")


def with_key(run, key):
    data = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**data, "workload_key": key}))
    return run


def test_kept_roofline_of_the_same_workload_machine_and_plan(tmp_path):
    run = with_key(write_run(tmp_path / "run"), "ours")
    keep_roofline("ours", PLAN, roofline_data())
    report, page = written(tmp_path, run)
    assert report.sections["Roofline"] == 1
    assert "Bound by arithmetic: MFU 0.40." in page.text
    file = tmp_path / "roofline.json"
    file.write_text(json.dumps({**roofline_data(), "text": "Bound by memory."}))
    _, page = written(tmp_path, run, roofline=file)
    assert "Bound by memory." in page.text
    assert "Bound by arithmetic: MFU 0.40." not in page.text
    other = with_key(write_run(tmp_path / "other", seed=1), "theirs")
    keep_roofline("theirs", PLAN, {**roofline_data(), "text": "Bound by the host."})
    report, page = written(tmp_path, run, other)
    assert report.sections["Roofline"] == 2
    assert "Speed over arithmetic intensity, run other" in page.text


def test_other_and_damaged_rooflines_are_not_shown(tmp_path, cache, caplog):
    run = write_run(tmp_path / "run")
    slower = replace(PLAN, data_threads=2)
    keep_roofline("ours", slower, {**roofline_data(), "plan": slower.to_json()})
    keep_roofline("", PLAN, roofline_data())
    for key in ("", "ours", "theirs"):  # a run of an earlier version; another plan; another workload
        report, _ = written(tmp_path, with_key(run, key))
        assert report.sections["Roofline"] == 0
    file = keep_roofline("ours", PLAN, {**roofline_data(), "step_seconds": 0})
    report, _ = written(tmp_path, with_key(run, "ours"))
    assert report.sections["Roofline"] == 0
    file.write_text("{}")
    report, _ = written(tmp_path, run)
    assert report.sections["Roofline"] == 0
    assert f"The measured roofline in {file} is ignored: KeyError" in caplog.text
