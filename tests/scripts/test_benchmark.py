"""`tfaccel benchmark`: a very short run of every kind of figure, and one clear line for every bad input."""

import json
import os

import pytest

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.scripts import benchmark, benchmark_table


def run(capsys, *arguments):
    status = benchmark.run(["benchmark", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a suite first. Suites: engine, recipes"),
        (["--json"], "Name a suite first."),
        (["engin"], "Unknown suite 'engin'. Did you mean 'engine'? Suites: engine, recipes"),
        (["recipes", "--figures=gann"], "--figures: unknown figure 'gann'. Did you mean 'gan'? Figures: "),
        (["engine", "more"], "unexpected argument 'more'"),
        (["engine", "--figures=cnnn"], "--figures: unknown figure 'cnnn'. Did you mean 'cnn'? Figures: mlp_loop,"),
        (["engine", "--figures="], "--figures: unknown figure ''."),
        (["engine", "--repetitions=0"], "repetitions"),
        (["engine", "--scale=0"], "scale"),
        (["engine", "--out=no/such/folder/report.json"], "--out: cannot write no/such/folder/report.json."),
        (
            ["engine", "--seeds=3"],
            "--seeds is not for the suite 'engine', which takes --figures, --repetitions",
        ),
        (
            ["settings", "--figures=gan"],
            "--figures is not for the suite 'settings', which takes --recipes, --seeds",
        ),
        (["settings", "--recipes=gann"], "--recipes: no settings of 'gann'. Did you mean 'gan'? Recipes: autoencoder,"),
        (["choice", "--figures=mpl"], "--figures: unknown figure 'mpl'. Did you mean 'mlp'? Figures: mlp, cnn,"),
        (["peers", "--figures=cnn"], "--figures: unknown figure 'cnn'. Did you mean 'cnn_"),
        (["choice", "--recipes=gan"], "--recipes is not for the suite 'choice', which takes --figures, --repetitions"),
        (["engine", "--speed=9"], "Unknown command line flag 'speed'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


NOT_ITS_REPORT = "is not a report of the suite 'choice'. Name another file."
OF_ANOTHER_MACHINE = "was measured with another value of cpu_model, num_usable_cores, repetitions, scale, versions"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", NOT_ITS_REPORT),
        ("{}", NOT_ITS_REPORT),
        ("[]", NOT_ITS_REPORT),
        ('{"suite": "peers", "machine": {}, "raw": {}}', NOT_ITS_REPORT),
        ('{"suite": "choice"}', NOT_ITS_REPORT),
        ('{"suite": "choice", "machine": {}, "raw": {}}', OF_ANOTHER_MACHINE),
    ],
)
def test_only_a_report_of_the_same_suite_and_machine_is_continued(capsys, tmp_path, text, message):
    out = tmp_path / "report.json"
    out.write_text(text)
    status, _, err = run(capsys, "choice", "--figures=mlp", f"--out={out}")
    assert status == 2
    assert f"--out: {out} {message}" in err
    assert out.read_text() == text


def test_help_names_the_suites_and_flags(capsys):
    for arguments in (["--help"], ["engine", "--help"]):
        status, out, _ = run(capsys, *arguments)
        assert status == 0
        assert "Suites: `engine`" in out
        assert "--figures" in out


def test_row_of_a_figure():
    figure = Figure(name="f", quantity="q", values=(1.0, 3.0), cpu_values=(2.0,), at_least=2.5, loss_difference=0.0)
    assert benchmark_table.make_row(figure) == ["f", "q", "2.000", "1.000", "3.000", "2.000", "0.0e+00", ">= 2.5", "NO"]
    bare = Figure(name="f", quantity="q", values=(1.0,), at_most=1.05)
    assert benchmark_table.make_row(bare)[5:] == ["", "", "<= 1.05", "yes"]


@pytest.mark.slow
def test_short_run(run_python, tmp_path):
    out = tmp_path / "report.json"
    figures = "mlp_loop,epoch_end,one_replica_xla"
    done = run_python(
        "tfaccel.scripts.benchmark",
        "engine",
        "--json",
        "--repetitions=2",
        "--scale=0.002",
        f"--figures={figures}",
        f"--out={out}",
        check=False,
    )
    data = json.loads(done.stdout)
    assert json.loads(out.read_text()) == data
    assert done.returncode == (0 if data["met"] else 1)
    assert os.listdir(tmp_path) == ["report.json"]
    report = Report.from_json(data)
    assert {figure.name for figure in report.figures} == set(figures.split(","))
    assert [len(figure.values) for figure in report.figures] == [2] * len(report.figures)
    assert all(figure.losses_agree for figure in report.figures)
    assert report.machine["num_usable_cores"] >= 1
    assert "benchmark: mlp_loop: tfaccel.fit(numpy), 2 of 2" in done.stderr


@pytest.mark.slow
def test_short_run_of_a_recipe(run_python):
    options = ["--json", "--repetitions=1", "--scale=0.05", "--figures=image_classification"]
    done = run_python("tfaccel.scripts.benchmark", "recipes", *options, check=False)
    report = Report.from_json(json.loads(done.stdout))
    found = {figure.quantity: figure for figure in report.figures}
    for program in ("tfaccel.train", "Model.fit, defaults", "Model.fit, same settings"):
        assert found[f"accuracy, {program}"].median > 0.3
        assert found[f"fraction of the runs that reached accuracy >= 0.993, {program}"].values == (0.0,)
    assert 0 <= found["wait for the input / step"].median < 1
    for other in ("defaults", "same settings"):
        ratio = found[f"time tfaccel.train / Model.fit, {other}"].values
        assert found[f"time tfaccel.train / Model.fit, {other}, geometric mean"].values == pytest.approx(ratio)
