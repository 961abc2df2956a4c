"""`tfaccel inspect-data`: text and JSON, exit status, progress, and flags that leave other commands' alone."""

import json

import pytest
from absl import flags

from tfaccel.extras.inspection.findings import InspectionReport
from tfaccel.scripts import inspect_data as command
from tfaccel.scripts import train as train_command  # which has flags of the same names  # noqa: F401
from tfaccel.scripts.main import main


@pytest.fixture
def inspect(capsys, monkeypatch):
    """A function that runs the command with these flags: status, standard output, standard error.

    No progress is shown, however long a slow machine takes.
    """
    monkeypatch.setattr(command, "_QUIET_SECONDS", 600.0)

    def run(*arguments):
        status = main(["tfaccel", "inspect-data", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "pets.csv"
    rows = [f"{number % 5},{number % 2},4,{'cat' if number % 4 else 'dog'}" for number in range(40)]
    path.write_text("\n".join(["weight,age,legs,kind", *rows, "1,,4,cat"]))
    return path


def test_text(inspect, table):
    status, out, err = inspect(f"--data_dir={table}", "--target=kind")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{table}: table, 41 to train; each 3 columns and the target kind."
    assert lines[1].startswith("In memory: 0.0 MiB; it fits (free: ")
    assert any(line.split() == ["age", "numeric", "1", "2", "0", "0.5", "1"] for line in lines)
    assert any(line.split() == ["dog", "10", "2.05"] for line in lines)
    assert "  constant column: legs: all values are 4. Drop the column: it says nothing." in lines
    assert "  missing values: age: 1 of 41 values are missing. They are replaced by the median." in lines


def test_text_is_short_and_json_is_whole(inspect, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,b", *[f"{row},{row % 3}" for row in range(40)] * 2, *["7,8"] * 400]))
    lines = inspect(f"--data_dir={path}")[1].splitlines()
    duplicates = [line for line in lines if line.startswith("  duplicate: ")]
    assert len(duplicates) == 11
    assert duplicates[-1] == "  duplicate: and 31 more; --json lists all"
    found = json.loads(inspect(f"--data_dir={path}", "--json")[1])["findings"]
    wheres = [finding["where"] for finding in found if finding["kind"] == "duplicate"]
    assert len(wheres) == 41
    assert max(len(where.split(", ")) for where in wheres) == 400


def test_json(inspect, table):
    status, out, err = inspect(f"--data_dir={table}", "--target=kind", "--json")
    data = json.loads(out)
    assert (status, err) == (0, "")
    assert data["fits_in_memory"] is True
    assert data["class_counts"] == {"cat": 31, "dog": 10}
    assert {"kind", "where", "text", "advice"} == data["findings"][0].keys()
    data.pop("fits_in_memory")
    assert InspectionReport(**data).num_examples == {"train": 41}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give --data_dir=PATH, the file or folder to inspect."),
        (("--data_dir=nowhere",), "There is no file or folder nowhere."),
        (("--data_dir={table}", "--target=kid"), "pets.csv has no column 'kid'. Did you mean 'kind'?"),
        (("--data_dir={table}", "--encoding=utf9"), "There is no encoding 'utf9'."),
        (("--data_dir={table}", "--column_kinds=age"), "Kinds of columns are written NAME=KIND,NAME=KIND."),
    ],
)
def test_bad_input_is_one_line_and_status_2(inspect, table, arguments, message):
    status, out, err = inspect(*(argument.format(table=table) for argument in arguments))
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"tfaccel inspect-data: {message}")


def test_progress_shows_on_standard_error(inspect, table, monkeypatch):
    monkeypatch.setattr(command, "_QUIET_SECONDS", 0.0)
    status, out, err = inspect(f"--data_dir={table}", "--target=kind", "--json")
    assert (status, json.loads(out)["kind"]) == (0, "table")
    assert "\rColumns: 2 of 4" in err
    assert "Labels, by cross-validation ..." in err
    assert err.endswith("\r")


def test_flags_are_the_command_s_own(inspect, table):
    before = set(flags.FLAGS)
    inspect(f"--data_dir={table}", "--json")
    inspect("--no_such_flag")
    assert set(flags.FLAGS) == before
    assert "text_column" not in before


def test_help_tells_the_flags(inspect):
    status, out, _ = inspect("--help")
    assert status == 0
    assert out.startswith(command.__doc__.strip())
    for name in ("data_dir", "target", "text_column", "column_kinds", "encoding", "json"):
        assert f"--{name}\n" in out
