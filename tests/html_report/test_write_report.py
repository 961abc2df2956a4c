"""The report's page: what it shows of which directories, what it escapes, and what it refuses."""

import itertools
import json
import re
from dataclasses import replace

import pytest
from report_cases import (
    ATTACK,
    autotune_report,
    keep,
    write_comparison,
    write_run,
    write_search,
)
from report_page import digest, written

from tfaccel import report as write_report
from tfaccel.errors import ReportError, RunDirError
from tfaccel.training.run.result import TrainResult
from tfaccel.training.run.stragglers import WorkerTimes

PERFORMANCE = {
    "learning_rate": 0.1,
    "performance": {
        "examples_per_second": 900.0,
        "step_seconds": 0.03,
        "mfu": 0.31,
        "input_wait_share": 0.1,
        "cpu_utilization": 0.9,
        "peak_memory_bytes": 3 * 2**29,
    },
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_one_run_has_all_its_sections(tmp_path, cache):
    keep(autotune_report(), cache)
    run = write_run(tmp_path / "run", extra=PERFORMANCE)
    write_comparison(run / "compressed")
    report, page = written(tmp_path, run)
    assert report.sections == {
        "Summary": 0,
        "Learning curves": 3,
        "Compressed variants": 2,
        "Pictures": 0,
        "Speed and utilization": 4,
        "Plan": 0,
        "Measured candidates": 1,
        "Roofline": 0,
        "Options": 0,
        "Environment": 0,
    }
    assert report.problems == ()
    assert report.num_bytes == report.path.stat().st_size
    loss = next(one for one in page.figures if one["data"][0]["y"][0] == 1.6)
    assert [trace["name"] for trace in loss["data"]] == ["training", "validation"]
    utilization = next(one for one in page.figures if one["layout"]["yaxis"].get("tickformat") == ".0%")
    assert [trace["name"] for trace in utilization["data"]] == ["MFU", "input wait", "CPU"]
    for text in ("Measured on this machine: 1.3 times.", "mixed_bfloat16", "16.0 GiB", "shown.png", "out of memory"):
        assert text in page.text
    assert "3 plans for digits were measured in 12 s. Chosen: dtype_policy=mixed_bfloat16, 1.49 times" in page.text


def test_page_is_whole_accessible_and_self_contained(tmp_path):
    _, page = written(tmp_path, write_run(tmp_path / "run"), write_search(tmp_path / "search"))
    ids = [one["id"] for _, one in page.elements if "id" in one]
    assert len(ids) == len(set(ids))
    targets = [one["href"] for one in page.all("a")]
    assert len(targets) > 5
    assert {target.removeprefix("#") for target in targets} <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert max(after - before for before, after in itertools.pairwise(levels)) == 1
    charts = [one for one in page.all("div") if "data-chart" in one]
    assert len(charts) == len(page.figures) > 3
    assert all(one["role"] == "img" and len(one["aria-label"]) > 20 for one in charts)
    assert re.search(r"<th[^>]*></th>", page.html) is None
    assert [one["alt"] for one in page.all("img")] == ["shown, drawn by the recipe in run run"]
    assert str(tmp_path) not in page.html
    assert all(one["src"].startswith("data:image/png;base64,") for one in page.all("img"))
    assert page.all("html")[0]["lang"] == "en"
    loaded = [one[name] for _, one in page.elements for name in ("src", "href") if name in one]
    assert [url for url in loaded if not url.startswith(("#", "data:"))] == []
    assert all(digest(script) in page.policy for script in page.scripts[1:])
    assert "default-src 'none'" in page.policy
    assert "unsafe-inline" not in page.policy.partition("script-src")[2]


def test_texts_of_users_stay_texts(tmp_path):
    run = write_run(tmp_path / "run<i>", recipe=ATTACK, metric=ATTACK)
    (tmp_path / "search").mkdir()
    _, page = written(tmp_path, run, write_search(tmp_path / "search" / ATTACK.replace("/", "")))
    assert len(page.all("script")) == 3
    assert [one for one in page.all("img") if one["src"] == "x"] == []
    assert page.all("b") == page.all("i") == []
    assert ATTACK in page.text
    drawn = [trace["name"] for one in page.figures for trace in one["data"]]
    drawn += [
        one["layout"][axis].get("title", {}).get("text", "") for one in page.figures for axis in ("xaxis", "yaxis")
    ]
    assert [text for text in drawn if "<" in text] == []


def test_several_runs_stand_side_by_side(tmp_path):
    runs = [write_run(tmp_path / "one", epochs=3), write_run(tmp_path / "other" / "one", seed=1, extra=PERFORMANCE)]
    _, page = written(tmp_path, *runs, runs[0], tmp_path / "other" / ".." / "one")
    names = [f"{tmp_path.name}/one", "other/one"]
    loss = next(one for one in page.figures if one["data"][0]["y"][0] == 1.6)
    assert [trace["name"] for trace in loss["data"]] == [
        f"{name}, {kind}" for name in names for kind in ("training", "validation")
    ]
    assert len({trace["line"]["color"] for trace in loss["data"]}) == 2
    assert "Settings that differ" in page.text
    assert page.texts[page.texts.index("seed_of_data") + 1 :][:2] == ["0", "1"]
    assert "has the same plan as" in page.text


def test_of_two_models_only_what_differs_is_shown(tmp_path):
    def layers(units, number, kind="Dense"):
        same = {"class": "Dense", "activation": "relu", "kernel_regularizer": None}
        own = [{**same, "units": 8}] * number
        return {f"layer {place}": one for place, one in enumerate([*own, {**same, "class": kind, "units": units}], 1)}

    runs = [write_run(tmp_path / name, epochs=3) for name in ("one", "two", "three")]
    for run, built, run_id in zip(runs, (layers(8, 2), layers(16, 2), layers(8, 60, "Conv2D")), "abc", strict=True):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, "run_id": run_id, "built": built}))
    _, page = written(tmp_path, *runs[:2])
    place = page.texts.index("layer 3: units")
    assert page.texts[place - 3 : place + 3] == ["setting", "one", "two", "layer 3: units", "8", "16"]
    assert "run_id" not in page.texts and "kernel_regularizer" not in page.text
    _, page = written(tmp_path, runs[0], runs[2])
    assert "Settings that differ (the first 40; 18 more)" in page.texts
    place = page.texts.index("layer 4")
    assert page.texts[place : place + 3] == ["layer 4", "–", "Dense"]


def test_slow_worker_and_batches_left_out_are_named(tmp_path):
    times = [{"input": 0.0, "compute": 0.05, "reduce": 0.04}, {"input": 0.04, "compute": 0.05, "reduce": 0.0}]
    run = write_run(tmp_path / "run", extra={"left_out": 3, "workers": times})
    kept = TrainResult.from_json(json.loads((run / "result.json").read_text()))
    workers = tuple(WorkerTimes.from_json(one) for one in times)
    (run / "result.json").write_text(json.dumps(replace(kept, workers=workers, left_out_batches=15).to_json()))
    report, page = written(tmp_path, run)
    assert "Speed: worker 1 takes 1.8 times as long as the others, which wait for it: it spends 40.0 ms" in page.text
    assert "15 batches were left out: their loss or gradients were not finite." in page.text
    assert report.sections["Learning curves"] == 3  # with the batches left out in each epoch
    assert report.problems == ()


def test_run_that_has_not_finished(tmp_path, caplog):
    report, page = written(tmp_path, write_run(tmp_path / "new", epochs=0, finished=False))
    assert "No epoch has finished yet." in page.text
    assert "Learning curves" not in report.sections
    report, page = written(tmp_path, write_run(tmp_path / "begun", epochs=2, finished=False))
    assert "The run has not finished: 2 epochs." in page.text
    assert report.sections["Learning curves"] == 2
    assert report.problems == ()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("metrics.jsonl", b'{"epoch": 0, "loss": 1.0}\n{"epo', "metrics.jsonl: line 2 is damaged and left out"),
        ("metrics.jsonl", b'{"epoch": "x", "loss": "y"}\n[1]\n', "metrics.jsonl: line 2 is damaged and left out"),
        ("metrics.jsonl", b"\xff\xfe", "metrics.jsonl cannot be read: 'utf-8' codec can't decode"),
        ("result.json", b"{", "result.json cannot be read: Expecting property name"),
        ("result.json", b"[1]", "result.json cannot be read: it is not a JSON object"),
        ("result.json", b'{"plan": 3}', "result.json is not a result of `tfaccel train`"),
        ("result.json", b"[" * 100_000, "result.json cannot be read: "),
        ("plan.json", b"[]", "plan.json cannot be read: it is not a JSON object"),
        ("config.json", b"\x00", "config.json cannot be read: "),
        ("shown.png", b"GIF89a", "The picture shown.png is left out: cannot identify image file"),
    ],
)
def test_damaged_file_is_named_and_left_out(name, content, problem, tmp_path, caplog):
    run = write_run(tmp_path / "run")
    if name == "plan.json":
        (run / "result.json").unlink()
    (run / name).write_bytes(content)
    report, page = written(tmp_path, run)
    assert [one for one in report.problems if one.startswith(f"run: {problem}")], report.problems
    assert problem in page.text
    assert problem in caplog.text


def test_damaged_values_of_a_result(tmp_path):
    run = write_run(tmp_path / "run")
    data = json.loads((run / "result.json").read_text())
    for change in ({"final": [1]}, {"wall_seconds": "long"}, {"history": {"loss": ["x"]}}, {"hardware": 3}):
        (run / "result.json").write_text(json.dumps({**data, **change}))
        report, _ = written(tmp_path, run)
        assert [one for one in report.problems if "result.json is not a result" in one], change


def test_search(tmp_path):
    report, page = written(tmp_path, write_search(tmp_path / "search"))
    assert report.sections == {"Summary": 0, "Search": 3}
    scores, rate, optimizer = page.figures
    assert [trace["name"] for trace in scores["data"]] == ["best so far", "completed", "pruned"]
    assert rate["layout"]["xaxis"]["type"] == "log"
    assert set(optimizer["data"][0]["x"]) == {"adam", "sgd"}
    assert "the loss became NaN" in page.text
    for name in ("search.json", "trials.jsonl"):
        (tmp_path / "search" / name).write_text('{"rows": 3}')
        report, page = written(tmp_path, tmp_path / "search")
        assert [one for one in report.problems if name in one]
    assert "0 trials by tpe. The search has not ended." in page.text


def test_search_that_has_not_ended_and_several_objectives(tmp_path):
    report, page = written(tmp_path, write_search(tmp_path / "open", finished=False))
    assert report.sections["Search"] == 3
    assert (
        "6 trials by tpe, 1 failed, 1 pruned. The search has not ended. Best: trial 00, val_accuracy 0.9." in page.text
    )
    parts = (("val_accuracy", "max"), ("model_bytes", "min"))
    report, page = written(tmp_path, write_search(tmp_path / "pareto", objective=parts))
    front = next(one for one in page.figures if one["data"][0]["name"] == "Pareto front")
    assert front["data"][0]["y"] == [0.9]


@pytest.mark.parametrize(
    "change", [{"status": ["x"]}, {"score": {}}, {"seconds": None}, {"metrics": 3}, {"trial_id": 1}]
)
def test_damaged_trial_is_left_out(change, tmp_path):
    search = write_search(tmp_path / "search", finished=False)
    lines = [json.loads(line) for line in (search / "trials.jsonl").read_text().splitlines()]
    lines[0] |= change
    (search / "trials.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report, page = written(tmp_path, search)
    assert report.problems == ("search: trials.jsonl: a line that is not a trial is left out",)
    assert "5 trials by tpe, 1 failed, 1 pruned." in page.text


def test_compressed_variants_alone(tmp_path):
    report, page = written(tmp_path, write_comparison(tmp_path / "compressed"))
    assert report.sections == {"Summary": 0, "Compressed variants": 2}
    assert page.figures[0]["data"][0]["x"] == [300.0, 80.0, 80.5]
    assert "failed: the layer has no kernel" in page.text
    (tmp_path / "compressed" / "report.json").write_text('{"results": [1]}')
    report, page = written(tmp_path, tmp_path / "compressed")
    assert "report.json is not the result of `tfaccel compress`" in report.problems[0]


def test_what_is_no_run_directory(tmp_path):
    with pytest.raises(RunDirError, match=r"Give at least one run directory: tfaccel report RUN_DIR"):
        write_report()
    with pytest.raises(RunDirError, match=r"There is no run directory 'nowhere'. One holds config.json and metrics"):
        write_report("nowhere")
    write_run(tmp_path / "runs" / "one")
    with pytest.raises(
        RunDirError, match=r"is not a run directory\. One holds .* It has run directories: .*runs/one\."
    ):
        write_report(tmp_path / "runs")
    with pytest.raises(RunDirError, match="is a file, not a run directory"):
        write_report(tmp_path / "runs" / "one" / "plan.json")


def test_output_that_cannot_be_written(tmp_path):
    run = write_run(tmp_path / "run")
    for output, message in (
        ("run/model.keras", "The report is an HTML file: its name must end in .html"),
        ("nowhere/report.html", "there is no folder .*nowhere. Create it first."),
        (f"{'a' * 300}.html", "cannot be written: File name too long"),
        ("/proc/report.html", "The report /proc/report.html cannot be written: "),
    ):
        with pytest.raises(ReportError, match=message):
            write_report(run, output=tmp_path / output)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ReportError, match="it is a directory"):
        write_report(run, output=tmp_path / "folder.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "run"]
