"""Help in groups with the values that flags have when they are not set, and the folder of a run without --run_dir."""

import re
from datetime import datetime

import pytest
from absl import flags

from tfaccel.errors import TfaccelError
from tfaccel.scripts import train_flags
from tfaccel.scripts.command import own_flags_help
from tfaccel.scripts.workload_flags import define_workload_flags


@pytest.fixture
def train_help(run_python):
    return lambda *arguments: run_python("tfaccel.scripts.main", "train", *arguments, "--help", fresh=True).stdout


def group(text, title):
    """Flag -> its help, of one group."""
    section = re.search(rf"^{re.escape(title)}[^\n]*:\n((?:  .*\n?)+)", text, re.MULTILINE)
    return dict(re.findall(r"^  --(\w+)\n      (.*)$", section[1], re.MULTILINE))


def test_flags_stand_in_groups(train_help):
    text = train_help("--recipe=tabular_classification")
    assert list(group(text, "What to train")) == ["recipe", "workload", "data_dir", "on_bad_data", "max_bad_fraction"]
    own = group(text, "Options of this workload")
    assert own["width"] == "units per hidden layer (default: 64)"
    assert "target" in own
    assert "epochs" not in own
    training = group(text, "Training (auto: the recipe's choice)")
    assert training["epochs"].endswith("(default: 60)")
    assert training["remat"].endswith("(default: false)")
    plan = group(text, "Devices and speed (auto: measured by `tfaccel find-fastest`, or the rules of `tfaccel plan`)")
    assert plan["global_batch_size"].endswith("(default: 32)")
    assert "default" not in plan["strategy"]
    assert "default: 'auto'" not in text
    titles = re.findall(r"^(\w[^\n]*):$", text[text.index("usage:") :], re.MULTILINE)
    assert "Other flags" not in titles
    listed = re.findall(r"^  --(\w+)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed)) > 35


def test_every_command_that_builds_a_workload_takes_its_options(run_python):
    names = (
        "plan",
        "find-fastest",
        "estimate-memory",
        "find-batch-size",
        "find-learning-rate",
        "roofline",
        "estimate-scaling",
    )
    code = (
        "from tfaccel.scripts import main\n"
        f"for name in {names}:\n"
        "    print('#', name)\n"
        "    main.main(['tfaccel', name, '--recipe=image_classification', '--help'])\n"
    )
    texts = re.split(r"^# ", run_python(code).stdout, flags=re.MULTILINE)[1:]
    assert len(texts) == len(names)
    for text in texts:
        listed = re.findall(r"^  --(\w+)$", text, re.MULTILINE)
        assert len(listed) == len(set(listed)), text
        assert {"data_dir", "width", "optimizer", "learning_rate", "schedule", "remat", "dtype_policy"} <= {*listed}


def test_without_a_recipe_there_are_no_options_of_one(train_help):
    text = train_help()
    assert "Options of this workload" not in text
    assert "(default: 60)" not in text


def test_help_does_not_call_the_user_s_function(tmp_path, monkeypatch, capsys):
    from tfaccel.scripts import train

    code = "from pathlib import Path\n\n\ndef build(width: int = 8):\n    Path('called').touch()\n"
    (tmp_path / "slow_workload.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert train.run(["tfaccel train", "--workload=slow_workload:build", "--help"]) == 0
    assert "--width" in capsys.readouterr().out
    assert not (tmp_path / "called").exists()


def test_defaults_are_written_as_on_the_command_line(capsys):
    from tfaccel.scripts import report

    assert report.run(["tfaccel report", "--help"]) == 0
    text = capsys.readouterr().out
    assert "print nothing but errors (default: false)\n" in text
    assert "(default: report.html)\n" in text
    assert "(default: '" not in text


def test_values_that_are_not_set_have_no_default():
    values = flags.FlagValues()
    flags.DEFINE_list("sizes", [], "sizes (default: all)", flag_values=values)
    flags.DEFINE_string("name", "", "the name", flag_values=values)
    flags.DEFINE_integer("count", 0, "the number", flag_values=values)
    lines = [line for line in own_flags_help(values).splitlines() if line.startswith("      ")]
    assert lines == ["      the number (default: 0)", "      the name", "      sizes (default: all)"]


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """A function that takes flags and gives the folder of the run, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run_dir(*arguments):
        values = flags.FlagValues()
        define_workload_flags(values)
        train_flags.define_train_flags(values)
        values(["tfaccel train", *arguments])
        return train_flags.run_dir(values)

    return run_dir


def test_a_run_has_a_folder_of_its_name_and_the_date(parsed, tmp_path):
    today = f"{datetime.now():%Y-%m-%d}"
    assert parsed("--recipe=gan") == f"runs/gan-{today}"
    (tmp_path / "runs" / f"gan-{today}").mkdir(parents=True)
    (tmp_path / "runs" / f"gan-{today}-2").mkdir()
    assert parsed("--recipe=gan") == f"runs/gan-{today}-3"
    assert parsed("--workload=my_project.digits:workload") == f"runs/digits-{today}"
    assert parsed("--recipe=gan", "--run_dir=own") == "own"


def test_to_go_on_needs_the_folder(parsed):
    with pytest.raises(TfaccelError, match="Give --run_dir=DIR, the folder of the run that --resume=auto continues"):
        parsed("--recipe=gan", "--resume=auto")
    with pytest.raises(TfaccelError, match="--run_dir must name a folder"):
        parsed("--recipe=gan", "--run_dir=")
