"""Several runs on one page: outcomes that can be compared, charts and their legends, and runs that were resumed."""

import json
import re

import pytest
from report_cases import result, write_run, write_search
from report_page import Page

from tfaccel import report as write_report
from tfaccel.html_report.figures import COLORS, Bar, Series, bar_figure, line_figure
from tfaccel.html_report.progress_sections import _MAX_EPOCHS_IN_TABLE

PERFORMANCE = {"examples_per_second": 900.0, "step_seconds": 0.03, "input_wait_share": 0.0, "peak_memory_bytes": 2**30}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))


def written(tmp_path, *run_dirs):
    return Page(write_report(*run_dirs, output=tmp_path / "report.html").path)


def table(page, caption):
    """A table's rows of (cell, whether it stands out), by the text of their first cell; "" for the headings."""
    html = re.search(rf"<caption[^>]*>{re.escape(caption)}</caption>(.*?)</table>", page.html, re.DOTALL)[1]
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    ]
    cells = [[(re.sub("<[^>]+>", "", cell), "<strong>" in cell) for cell in row] for row in rows]
    return {"": [text for text, _ in cells[0]], **{row[0][0]: row[1:] for row in cells[1:]}}


def column(page, heading, caption="Outcomes"):
    rows = table(page, caption)
    place = rows.pop("").index(heading) - 1
    return [row[place] for row in rows.values()]


def chart(page, title):
    """The figure of the chart with this title, and the labels of its legend."""
    pattern = r'<h3>([^<]*)</h3>((?:(?!<h3>).)*?)<div class="chart".*?data-chart="(\d+)"'
    found = re.findall(pattern, page.html, re.DOTALL)
    [(legend, number)] = [(legend, number) for one, legend, number in found if one == title]
    return page.figures[int(number)], re.findall(r"</svg>(.*?)</li>", legend)


def cards(page):
    html = re.search(r"<dl class=.cards.>(.*?)</dl>", page.html, re.DOTALL)[1]
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)(?:<small>(.*?)</small>)?</dd>", html)
    return {label: (value, note) for label, value, note in found}


def test_outcome_of_an_unfinished_run_is_that_on_validation_data(tmp_path):
    extra = {"learning_rate": 0.1, "performance": PERFORMANCE}
    begun = write_run(tmp_path / "begun", finished=False, epochs=5, extra=extra)
    page = written(tmp_path, begun)
    assert list(cards(page)) == ["accuracy", "loss", "epochs"]
    assert cards(page)["loss"] == ("0.42", "last epoch")
    page = written(tmp_path, begun, write_run(tmp_path / "ended", epochs=4))
    assert table(page, "Outcomes")[""][3:5] == ["accuracy", "loss"]
    assert "val_loss" not in table(page, "Outcomes")[""]
    assert column(page, "loss") == [("0.42", True), ("0.4987", False)]


def test_metrics_on_training_data_have_a_column_of_their_own(tmp_path):
    alone = write_run(tmp_path / "alone", validation=False, extra={"learning_rate": 0.1})
    page = written(tmp_path, alone, write_run(tmp_path / "held_out", epochs=4))
    assert table(page, "Outcomes")[""][3:7] == ["accuracy (training)", "loss (training)", "accuracy", "loss"]
    assert column(page, "loss") == [("–", False), ("0.4987", False)]
    page = written(tmp_path, alone, write_run(tmp_path / "other", validation=False, epochs=4))
    assert column(page, "loss") == [("0.4", True), ("0.475", False)]


def test_times_of_whole_calls_are_not_compared_and_those_of_steps_are(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("slow", "fast")]
    data = json.loads((runs[1] / "result.json").read_text())
    faster = {"wall_seconds": 5.0, "first_step_seconds": 0.5, "step_seconds": {"median": 0.02, "p95": 0.03}}
    (runs[1] / "result.json").write_text(json.dumps({**data, **faster}))
    page = written(tmp_path, *runs)
    assert column(page, "time") == [("9.0 s", False), ("5.0 s", False)]
    assert column(page, "first call") == [("1.5 s", False), ("500 ms", False)]
    assert column(page, "step") == [("26 ms", False), ("20 ms", True)]
    assert column(page, "step p95") == [("40 ms", False), ("30 ms", True)]
    assert cards(written(tmp_path, runs[0]))["examples per second"][1] == "26 ms per step, 95 % within 40 ms"


@pytest.mark.parametrize(
    ("clock", "performance", "resumed"),
    [
        ([2.0, 3.0, 4.0], {}, False),
        ([5.0, 6.0, 2.0], {}, True),
        ([2.0, 2.7, 3.4], {"step_seconds": 0.03}, False),
        ([2.0, 3.0, 3.1], {"step_seconds": 0.03}, True),  # 20 steps of 30 ms take longer than 0.1 s
    ],
)
def test_time_of_a_resumed_run_is_that_since_it_was_resumed(clock, performance, resumed, tmp_path):
    run = write_run(tmp_path / "run", epochs=3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [
        {**line, "seconds": seconds, "performance": performance} for line, seconds in zip(lines, clock, strict=True)
    ]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert ("time since resumed" in cards(written(tmp_path, run))) == resumed
    times = column(written(tmp_path, run, write_run(tmp_path / "other")), "time")
    assert times[0] == ("9.0 s since resumed" if resumed else "9.0 s", False)


def test_scaled_learning_rate_is_shown(tmp_path):
    run = write_run(tmp_path / "run")
    data = result(run, "digits", {"loss": [1.0]}).to_json()
    scaled = {
        "rule": "square_root", "recommended_batch_size": 8, "global_batch_size": 32, "warm_up": 0.05, "factor": 2.0,
    }  # fmt: skip
    rates = {"warm_up_steps": 4, "learning_rate": 0.1, "scaled_learning_rate": 0.2}
    said = "Peak learning rate: 0.1, scaled to 0.2 for the batch size 32 instead of the recommended 8 (square root rule"
    for found, is_said in (
        ({**scaled, **rates}, True),
        (scaled, False),
        (["x"], False),
        ({**rates, "rule": 3}, False),
    ):
        (run / "result.json").write_text(json.dumps({**data, "learning_rate_scaling": found}))
        assert (said in written(tmp_path, run).text) == is_said


def test_field_of_one_of_several_runs_is_named_and_others_get_a_derived_throughput(tmp_path):
    runs = [write_run(tmp_path / "old"), write_run(tmp_path / "new", extra={"performance": PERFORMANCE})]
    page = written(tmp_path, *runs)
    assert chart(page, "Examples per second")[1] == ["new"]
    derived, legend = chart(page, "Examples per second of whole epochs")
    assert legend == ["old"]
    assert derived["data"][0]["y"] == [320.0] + 4 * [640.0]
    assert column(page, "examples/s of the whole epoch", "Values of old after each epoch")[0][0] == "320"
    assert "examples/s of the whole epoch" not in table(page, "Values of new after each epoch")[""]


def test_axes_from_zero_begin_there_where_all_values_are_equal(tmp_path):
    page = written(tmp_path, write_run(tmp_path / "run", extra={"performance": PERFORMANCE}))
    ranges = {
        title: chart(page, title)[0]["layout"]["yaxis"].get("range") for title in ("Examples per second", "Input wait")
    }
    assert ranges == {"Examples per second": [0, pytest.approx(990)], "Input wait": [0, 1]}
    flat = line_figure([Series(name="loss", x=[1, 2], y=[0.5, 0.5], color=COLORS[0])], x_title="epoch")
    assert flat["layout"]["yaxis"]["range"] == [0.45, 0.55]


def test_workloads_share_no_chart(tmp_path):
    performance = {"performance": PERFORMANCE}
    runs = [
        write_run(tmp_path / "one", extra=performance),
        write_run(tmp_path / "two", extra=performance),
        write_run(tmp_path / "prices", recipe="prices", metric="error", extra=performance),
    ]
    page = written(tmp_path, *runs)
    loss, legend = chart(page, "loss: digits")
    assert {trace["name"].partition(",")[0] for trace in loss["data"]} == {"one", "two"}
    assert legend == ["one", "two", "validation", "training"]
    loss, legend = chart(page, "loss: prices")
    assert legend == ["prices", "validation", "training"]
    assert {trace["line"]["color"] for trace in loss["data"]} == {COLORS[2]}
    titles = re.findall(r"<h3>(.*?)</h3>", page.html)
    assert {"accuracy: digits", "error: prices", "Examples per second: prices"} <= {*titles}
    assert {"accuracy: prices", "error: digits", "loss"}.isdisjoint(titles)


def test_runs_of_the_same_color_have_different_lines(tmp_path):
    page = written(tmp_path, *(write_run(tmp_path / f"run{number}", epochs=2) for number in range(11)))
    loss, legend = chart(page, "loss")
    looks = [(trace["line"]["color"], trace["line"]["dash"]) for trace in loss["data"]]
    assert len(set(looks)) == len(looks) == 22
    assert legend[-3:] == ["run10", "validation: without dots", "training: with dots"]
    dashed = re.findall(r'stroke-dasharray="6 3"/></svg>(.*?)</li>', page.html)
    assert set(dashed) == {"run9", "run10"}


def test_trials_stand_at_their_ids_and_failures_are_counted(tmp_path):
    search = write_search(tmp_path / "search", finished=False)
    lines = [json.loads(line) for line in (search / "trials.jsonl").read_text().splitlines()]
    lines[1] |= {"status": "failed", "score": None}
    (search / "trials.jsonl").write_text("\n".join(map(json.dumps, reversed(lines))))  # in the order of their end
    page = written(tmp_path, search)
    assert "6 trials by tpe, 2 failed, 1 pruned. The search has not ended." in page.text
    scores, *_ = page.figures
    assert scores["layout"]["xaxis"]["title"]["text"] == "trial"
    assert scores["data"][0]["x"] == [0, 2, 3, 4]
    assert scores["data"][0]["y"] == [0.9] * 4
    lines[0] |= {"trial_id": "a"}
    (search / "trials.jsonl").write_text("\n".join(map(json.dumps, lines)))
    scores, *_ = written(tmp_path, search).figures
    assert scores["layout"]["xaxis"]["title"]["text"] == "scored trials"
    assert scores["data"][0]["x"] == [1, 2, 3, 4]


@pytest.mark.parametrize("finished", [True, False])
def test_pictures_of_a_search_are_in_its_section(finished, tmp_path):
    search = write_search(tmp_path / "search", finished=finished)
    source = write_run(tmp_path / "run") / "shown.png"
    (search / "importance.png").write_bytes(source.read_bytes())
    (search / "parallel_coordinates.png").write_bytes(b"GIF89a")
    page = written(tmp_path, search)
    assert [one["alt"] for one in page.all("img")] == ["importance, drawn by `tfaccel search` in search"]
    assert page.html.index('<section id="search"') < page.html.index("<img ")
    assert "search: The picture parallel_coordinates.png is left out: cannot identify image file" in page.text


def test_long_runs_have_their_last_epochs_in_a_table(tmp_path):
    page = written(tmp_path, write_run(tmp_path / "run", epochs=_MAX_EPOCHS_IN_TABLE + 1))
    assert f"All figures are in the tables, of long runs those of the last {_MAX_EPOCHS_IN_TABLE} epochs." in page.text
    assert f"Values of run after each epoch (the last {_MAX_EPOCHS_IN_TABLE} epochs)" in page.text


def test_long_labels_of_bars_are_cut():
    labels = [f"{name}={'x' * 60}" for name in ("a", "b")]
    figure = bar_figure([Bar(label=label, value=1.0, color=COLORS[0]) for label in labels], x_title="x")
    assert [len(one["text"]) for one in figure["layout"]["annotations"]] == [38, 38]
    assert figure["data"][0]["customdata"][0][0] == labels[0]
