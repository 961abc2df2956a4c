"""`tfaccel compress`: one clear line for every bad input, and a real run in a child process."""

import json

import pytest

from tfaccel.scripts import compress

MEASURES = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave_points",
    "symmetry",
    "fractal_dimension",
)
FEATURES = [form.format(name) for form in ("mean_{}", "{}_error", "worst_{}") for name in MEASURES]


def run(capsys, *arguments):
    status = compress.run(["compress", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give --run_dir=DIR, the directory of a finished run."),
        (["--run_dir=no/such/run"], "There is no run directory no/such/run."),
        (
            ["--run_dir=tests"],
            "tests is not the directory of a finished run: it has no config.json, result.json, model.ke",
        ),
        (["--run_dir=setup.cfg"], "setup.cfg is a file. Give the directory of a finished run."),
        (["--run_dir=tests", "--methods=in8"], "There is no method 'in8'. Did you mean 'int8'?"),
        (["--run_dir=tests", "--methods="], "Name at least one method."),
        (["--run_dir=tests", "--max_metric_drop=much"], "max_metric_drop"),
        (
            ["--run_dir=tests", "--latency_threads=two"],
            "--latency_threads must be a whole number. Received: --latency_threads=two",
        ),
        (["--run_dir=tests", "--num_representative=0"], "num_representative"),
        (["--run_dir=tests", "--sparsity=5"], "`sparsity` must be above 0 and below 1. Received: sparsity=5.0"),
        (["--run_dir=tests", "--train_epochs=0"], "`epochs` must be an integer of at least 1. Received: epochs=0"),
        (["--run_dir=tests", "--train_epochs=few"], "--train_epochs must be a whole number. Received: --train_epochs="),
        (["--run_dir=tests", "--metod=int8"], "Unknown command line flag 'metod'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_help_lists_the_methods(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "int16x8: weights in int8, activations in int16" in out
    assert "--max_metric_drop" in out


@pytest.mark.slow
def test_run_of_a_recipe_is_compressed(run_python, tmp_path):
    recipe = "tabular_classification"
    train = f"--run_dir={tmp_path}/run"
    run_python("tfaccel.scripts.main", "train", f"--recipe={recipe}", train, "--epochs=2", "--quiet")
    common = ["compress", f"--run_dir={tmp_path}/run", "--methods=float16,int8", "--latency_seconds=0.05"]
    kept = run_python("tfaccel.scripts.main", *common, "--max_metric_drop=0.5", "--json", "--quiet")
    report = json.loads(kept.stdout)
    assert [one["variant"]["name"] for one in report["results"]] == ["float32", "float16", "int8"]
    winner = tmp_path / "run" / "compressed" / "model.tflite"
    assert 0 < winner.stat().st_size - min(one["size_bytes"] for one in report["results"]) < 5000
    for name in ("compressed/model.tflite", "."):
        predict = ["predict", f"--model={tmp_path}/run/{name}", f"--input={tmp_path}/rows.csv", "--json"]
        (tmp_path / "rows.csv").write_text(",".join(FEATURES) + "\n" + ",".join(["10"] * 30) + "\n")
        done = json.loads(run_python("tfaccel.scripts.main", *predict, f"--output={tmp_path}/out.csv").stdout)
        assert done["num_rows"] == 1
    shown = run_python("tfaccel.scripts.main", *common, "--max_metric_drop=-0.9", check=False)
    assert shown.returncode == 1
    assert "Do not compress: no variant is within the limit (accuracy better by 0.9 at least)" in shown.stdout
    assert "compress: int8: metric on held-out data" in shown.stderr
    assert not (tmp_path / "run" / "compressed" / "model.tflite").exists()
