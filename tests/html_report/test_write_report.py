"""The report's page: what it shows of which directories, what it escapes, and what it refuses."""

import itertools
import json
import re
from dataclasses import replace

import pytest
from report_cases import (
    ATTACK,
    PLAN,
    autotune_report,
    keep,
    roofline_data,
    write_comparison,
    write_run,
    write_search,
)
from report_page import Page, digest

from tfaccel import write_report
from tfaccel.errors import ReportError, RunDirError
from tfaccel.html_report import figures, texts
from tfaccel.html_report.page import _own_file
from tfaccel.planning.process_rules import AUGMENT_ON_UNMEASURED

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


def written(tmp_path, *run_dirs, **options):
    report = write_report(*run_dirs, output=tmp_path / "report.html", **options)
    return report, Page(report.path)


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
        with pytest.raises(ReportError, match=f"is not a report of `tfaccel autotune --report=FILE`: {error}"):
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
    assert "No measured candidates are kept for digits. `tfaccel autotune` measures." in text
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
    assert "`tfaccel roofline --report=FILE` measures one and writes it to a file, which is not kept" in page.text
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


def test_colors_can_be_seen_on_both_backgrounds():
    style = _own_file("page.css")
    themes = [
        dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]
    assert len(themes) == 3  # light, dark, paper
    for theme in themes:
        for background in (theme["page"], theme["panel"]):
            assert [color for color in figures.COLORS if contrast(color, background) < 3] == []
            inks = ("ink", "soft", "link", "good", "warning")
            assert [name for name in inks if contrast(theme[name], background) < 4.5] == []


def test_texts_beside_the_pointer_can_be_read():
    figure = figures.line_figure([figures.Series(name="a", x=[1], y=[1.0], color=figures.COLORS[0])], x_title="x")
    bars = figures.bar_figure([figures.Bar(label="a", value=1.0, color=figures.COLORS[1])], x_title="x")
    style = _own_file("page.css")
    assert ".hovertext text { fill: #ffffff !important; }" in style
    assert f".hovertext rect {{ fill: {figures._HOVER} !important; fill-opacity: 1 !important; }}" in style
    for one, color in ((figure, figures.COLORS[0]), (bars, [figures.COLORS[1]])):
        background = one["layout"]["hoverlabel"]["bgcolor"]
        assert contrast("#ffffff", background) >= 4.5
        assert one["data"][0]["hoverlabel"]["bordercolor"] == color
    assert [color for color in figures.COLORS if contrast(color, background) < 3] == []


def contrast(one, other):
    """The contrast ratio of WCAG 2.2."""

    def luminance(color):
        parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_that_are_none():
    assert texts.value_text("loss", float("inf")) == texts.value_text("loss", "x") == "–"
