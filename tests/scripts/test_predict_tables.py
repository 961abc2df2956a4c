"""`tfaccel predict` of tables: encoded as in training; rows and tables that do not fit are named."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas
import pytest
from predict_runs import STRICT, get_rows, in_empty_folder, write_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory, logical_devices):
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def predict(tmp_path, monkeypatch, capsys):
    return in_empty_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def strict_run(runs):
    """A run of the table's model, of whose training no row missed a value or had a rare category."""
    folder = runs / "strict"
    if not folder.exists():
        shutil.copytree(runs / "table", folder)
        (folder / "raw_input.json").write_text(json.dumps(STRICT.to_json()))
    return f"--run_dir={folder}"


def test_tables_are_encoded_as_in_training(predict, runs, tmp_path):
    (tmp_path / "rows.csv").write_text("kind;age;more\ncat;9;x\ndog;0.5;y\ncat;;z\n")
    assert predict(f"--run_dir={runs}/table", "--input=rows.csv", "--output=out.csv")[0] == 0
    assert [row["class"] for row in get_rows(tmp_path / "out.csv")] == ["no", "yes", "yes"]


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_the_output_has_the_mode_that_the_umask_says(predict, runs, tmp_path, name):
    (tmp_path / "rows.csv").write_text("kind;age\ncat;9\n")
    before = os.umask(0o077)
    try:
        assert predict(f"--run_dir={runs}/table", "--input=rows.csv", f"--output={name}")[0] == 0
    finally:
        os.umask(before)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_rows_with_what_training_did_not_have_are_named_and_left_out(predict, strict_run, tmp_path):
    (tmp_path / "rows.csv").write_text("extra,kind,age\nx,cat,9\nx,cat,\nx,,\nx,dog,0.5\nx,dog,\nx,,3\n")
    status, out, err = predict(strict_run, "--input=rows.csv", "--output=out.csv")
    assert (status, out) == (1, "1 rows in out.csv (no: 1)\n")
    assert err.splitlines() == [
        "predict: 'age' is missing in 2 of 6 rows, but in no training row; these rows are not predicted",
        "predict: 'kind' is missing in 1 of 6 rows, but in no training row; these rows are not predicted",
        "predict: 'kind' has an unseen category in 2 of 6 rows; these rows are not predicted",
        "predict: cannot predict 1: it lacks 'age' (no training row does)",
        "predict: cannot predict 2: it has no value in any column that the model takes",
        "predict: cannot predict 3: it has an unseen 'kind'",
        "predict: cannot predict 4: it lacks 'age' (no training row does) and has an unseen 'kind'",
        "predict: cannot predict 5: it lacks 'kind' (no training row does)",
    ]
    assert [row["input"] for row in get_rows(tmp_path / "out.csv")] == ["0"]
    status, out, err = predict(strict_run, "--input=rows.csv", "--output=out.csv", "--unknown_values=fill", "--json")
    assert (status, json.loads(out)["num_rows"]) == (1, 5)  # The empty row has no class in any case.
    assert json.loads(out)["unreadable"] == {"2": "it has no value in any column that the model takes"}
    assert json.loads(out)["notes"][0] == (
        "'age' is missing in 2 of 6 rows, but in no training row; the median, 4, replaces it"
    )
    (tmp_path / "rows.jsonl").write_text('{"kind": "cat", "age": 9}\n{"kind": "cat", "age": null}\n')
    assert predict(strict_run, "--input=rows.jsonl", "--output=out.csv")[0] == 1
    (tmp_path / "none.csv").write_text("kind,age\n,\n")
    status, out, err = predict(strict_run, "--input=none.csv", "--output=none_out.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "Nothing could be predicted. First: 0: it has no value in any column" in err
    assert not (tmp_path / "none_out.csv").exists()


def test_unknown_categories_of_a_model_that_knows_rare_ones_are_counted(predict, runs, tmp_path):
    (tmp_path / "rows.csv").write_text("kind,age\ncat,1\ndog,\n,2\n,\n")
    status, _, err = predict(f"--run_dir={runs}/table", "--input=rows.csv", "--output=out.csv")
    assert (status, len(get_rows(tmp_path / "out.csv"))) == (1, 3)
    assert err.splitlines() == [
        "predict: 'kind' has an unseen category in 1 of 4 rows; it counts as rare",
        "predict: cannot predict 3: it has no value in any column that the model takes",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "kind,age\ncat,old\n",
            "'age' of rows.csv holds numbers, but row 1 below the header has 'old'. Fix the row; "
            "the model was trained on numbers there.",
        ),
        ("kind,age\ncat,inf\n", "row 1 below the header has 'inf'. Fix the row"),
        ("kind,age\ncat,1\ncat,1e60\n", "has 1e+60 in row 2 below the header, which float32 cannot hold."),
        ("kind,ago\ncat,1\n", "rows.csv has no column 'age'. Did you mean 'ago'?"),
        ("a,b\n1,2\n", "has no column 'age'. The model takes these too, which are not there: 'kind'. Columns: a, b."),
        (
            b"kind,age\nch\xe2t,1\n",
            "cannot be read. It is in line 2. Say how it is encoded, for example --encoding=latin-1.",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused_in_terms_of_flags(predict, strict_run, tmp_path, content, message):
    (tmp_path / "rows.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = predict(strict_run, "--input=rows.csv", "--output=out.csv")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert "column_kinds" not in err and "encoding=" not in err.replace("--encoding=", "")
    if isinstance(content, bytes):
        assert (
            predict(strict_run, "--input=rows.csv", "--output=out.csv", "--encoding=latin-1", "--unknown_values=fill")[
                0
            ]
            == 0
        )


def test_order_of_columns_and_more_of_them_do_not_matter(predict, strict_run, tmp_path):
    (tmp_path / "a.csv").write_text("kind,age\ncat,9\ncat,1\n")
    (tmp_path / "b.csv").write_text("stays;age;id;kind\n;9;7;cat\n;1;7;cat\n")
    for name in "ab":
        assert predict(strict_run, f"--input={name}.csv", f"--output={name}_out.csv")[0] == 0
    assert (tmp_path / "a_out.csv").read_text() == (tmp_path / "b_out.csv").read_text()


@pytest.mark.slow
def test_columns_of_any_name_are_trained_exported_and_predicted(tmp_path):
    numbers = ["class", "% change", "self", "_id", "größe", "a.b", "x/y", "inputs", "training"]
    random = np.random.default_rng(0)
    table = pandas.DataFrame(random.normal(size=(240, len(numbers))), columns=numbers)
    table["for"] = random.choice(["a", "b"], 240)
    table["target"] = np.where(table["class"] > table["% change"], "yes", "no")
    table.to_csv(tmp_path / "rows.csv", index=False)

    def tfaccel(*arguments):
        command = [sys.executable, "-m", "tfaccel", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    tfaccel("train", "--recipe=tabular_classification", "--data_dir=rows.csv", "--target=target", "--epochs=2",
            "--run_dir=run", "--quiet")  # fmt: skip
    tfaccel("export", "--run_dir=run", "--formats=saved_model,litert", "--out=files")
    places = {"run": "--run_dir=run", "saved": "--model=files/saved_model", "litert": "--model=files/model.tflite"}
    for name, place in places.items():
        assert "240 rows in" in tfaccel("predict", place, "--input=rows.csv", f"--output={name}.csv")
    wanted = [float(row["p(yes)"]) for row in get_rows(tmp_path / "run.csv")]
    assert np.ptp(wanted) > 0.01
    for name in ("saved", "litert"):
        found = [float(row["p(yes)"]) for row in get_rows(tmp_path / f"{name}.csv")]
        np.testing.assert_allclose(found, wanted, atol=2e-6)
