"""`tfaccel search`: one clear line for every bad input, and what a small search prints and leaves."""

import dataclasses
import inspect
import json
import subprocess
import sys

import pytest
from absl import flags

import tfaccel
from tfaccel.scripts import search as search_command
from tfaccel.scripts.search_flags import define_tune_flags
from tfaccel.tuning.options import SearchOptions

RECIPE = "--recipe=tabular_classification"
OWN = (
    "recipe",
    "workload",
    "run_dir",
    "plan",
    "space",
    "objective",
    "max_trials",
    "parallel",
    "trial_seconds",
    "tuner",
    "num_initial_points",
    "algorithm_options",
    "pruning_options",
    "executions_per_trial",
)
ONLY_IN_PYTHON = ("hyperparameters", "tune_new_entries", "allow_new_entries")
BY_OTHER_FLAGS = ("workload_options", "plan_fields", "epochs", "early_stopping")


def test_each_option_is_an_argument_with_the_same_default_and_a_flag():
    values = flags.FlagValues()
    define_tune_flags(values)
    arguments = inspect.signature(tfaccel.search).parameters
    for option in dataclasses.fields(SearchOptions):
        default = None if option.default is dataclasses.MISSING else option.default
        assert arguments[option.name].default == default
        if option.name in ONLY_IN_PYTHON:
            assert option.name not in values
        elif option.name not in BY_OTHER_FLAGS:
            assert values[option.name].default in (default, None)
    assert values["seed"].default == SearchOptions.seed


@pytest.fixture
def search(tmp_path, monkeypatch, capsys):
    """A function that runs the command with these flags in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        status = search_command.run(["tfaccel search", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([RECIPE, "--resume=auto"], "Give --run_dir=DIR"),
        (["--run_dir=a"], "Give --recipe=NAME or --workload=package.module:function. Received: neither."),
        (["--recipe=tabular_clasification", "--run_dir=a"], "Did you mean 'tabular_classification'?"),
        (["--workload=mine", "--run_dir=a"], "A workload is written package.module:function. Received: 'mine'."),
        ([RECIPE, "--run_dir=a", "--space=mine"], "A space is written package.module:name. Received: 'mine'."),
        ([RECIPE, "--run_dir=a", "--algorithm=randm"], "algorithm"),
        ([RECIPE, "--run_dir=a", "--max_trials=0"], "max_trials"),
        ([RECIPE, "--run_dir=a", "--parallel=0"], "flag --parallel=0: 0 is not an integer in the range [1, 1024]"),
        ([RECIPE, "--run_dir=a", "--width=0"], "--width must be a whole number of at least 1"),
        ([RECIPE, "--run_dir=a", "--resume=always"], "flag --resume=always"),
        ([RECIPE, "--run_dir=a", "--seed=0"], "`seed` must be a whole number of at least 1"),
        ([RECIPE, "--run_dir=a", "--trial_seconds=0"], "`trial_seconds` must be a number of seconds above 0"),
        ([RECIPE, "--run_dir=a", "--dropout=2"], "`dropout` must be a number from 0 to below 1"),
        (
            [RECIPE, "--run_dir=a", "--plan=p.json"],
            "--plan is not a flag of `tfaccel search`. Fix fields of the plan",
        ),
        (
            [RECIPE, "--run_dir=a", "--teacher=runs/b"],
            "--teacher is not a flag of `tfaccel search`. Distill the best model afterwards",
        ),
        ([RECIPE, "--run_dir=a", "--dtype_policy=float61"], "Did you mean"),
        ([RECIPE, "--run_dir=a", "--algorithm=hyperband", "--pruning=median"], "Hyperband stops trials itself."),
        ([RECIPE, "--run_dir=a", "--pruning=percentile"], "pruning='percentile' needs one of Optuna's algorithms"),
        ([RECIPE, "--run_dir=a", "--num_initial_points=3"], "algorithm='random' does not use num_initial_points"),
        ([RECIPE, "--run_dir=a", "--num_initial_points=0"], "flag --num_initial_points=0"),
        ([RECIPE, "--run_dir=a", "--executions_per_trial=0"], "flag --executions_per_trial=0"),
        ([RECIPE, "--run_dir=a", "--algorithm_options={"], "--algorithm_options must be a JSON object"),
        ([RECIPE, "--run_dir=a", "--pruning_options=[1]"], "--pruning_options must be a JSON object. Received: '[1]'"),
        ([RECIPE, "--run_dir=a", "--algorithm=cmaes", "--objective=a:min,b:min"], "CMA-ES optimizes a single"),
        (["--run_dir=a", "--tuner=mine"], "A tuner is written package.module:name. Received: 'mine'."),
        ([RECIPE, "--run_dir=a", "--trials=9"], "Unknown command line flag 'trials'"),
        ([RECIPE, "--run_dir=other"], "The run directory other is not empty and holds no run of tfaccel."),
        (
            [RECIPE, "--run_dir=other", "--resume=auto"],
            "The run directory other is not empty and holds no run of tfaccel.",
        ),
        ([RECIPE, "--run_dir=other/file"], "The run directory is a file: other/file."),
        ([RECIPE, "--run_dir=training", "--resume=auto"], "holds another run"),
    ],
)
def test_bad_input_is_one_line_and_status_2(search, tmp_path, arguments, message):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "config.json").write_text('{"recipe": "tabular_classification", "epochs": 3}')
    status, out, err = search(*arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert message in err
    assert not (tmp_path / "a").exists()


def test_help_names_the_flags(search):
    status, out, _ = search("--help")
    assert status == 0
    for name in ("algorithm", "max_trials", "parallel", "resume", "pruning", "objective", "search_seconds", "retrain"):
        assert f"--{name}\n" in out


@pytest.mark.slow
def test_a_recipe_is_searched_and_its_best_model_kept(tmp_path):
    def run(*more):
        flag = [RECIPE, f"--run_dir={tmp_path}/run", "--epochs=2", "--parallel=2", "--retrain", "--optimizer=adamw"]
        return subprocess.run(
            [sys.executable, "-m", "tfaccel.scripts.main", "search", *flag, *more],
            timeout=300,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run("--max_trials=3")
    assert done.returncode == 0, done.stderr
    assert "3 trials, random; highest val_accuracy" in done.stdout
    assert done.stderr.count(" completed, score ") == 3
    best = json.loads((tmp_path / "run" / "search.json").read_text())["best"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("Best hyperparameters: "))
    assert line.split(": ")[1].split() == [f"{name}={value}" for name, value in best["hyperparameters"].items()]
    for name in ("search.json", "trials.jsonl", "parallel_coordinates.png", "best/model.keras", "best/result.json"):
        assert (tmp_path / "run" / name).exists(), name
    before = (tmp_path / "run" / "trials.jsonl").read_text()
    again = run("--max_trials=4", "--resume=auto", "--json")
    assert again.returncode == 0, again.stderr
    data = json.loads(again.stdout)
    assert len(data["rows"]) == 4
    assert (tmp_path / "run" / "trials.jsonl").read_text().startswith(before)
    assert all("optimizer" not in row["hyperparameters"] for row in data["rows"])
    assert set(data["best_final"]) == {"accuracy", "loss"}
    other = run("--max_trials=4", "--resume=auto", "--algorithm=bayesian")
    assert other.returncode == 2
    assert "holds another run: algorithm is 'random' there and 'bayesian' here" in other.stderr
    wrong = run("--max_trials=4", "--objective=val_acuracy", "--run_dir=none")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "No trial has the metric 'val_acuracy'. Did you mean 'val_accuracy'?" in wrong.stderr


@pytest.mark.slow
def test_trials_are_those_of_plain_keras_tuner(tmp_path):
    task = {
        "recipe": "tabular_classification",
        "max_trials": 4,
        "epochs": 3,
        "seed": 5,
        "objective": "val_accuracy",
        "direction": "max",
    }
    command = [sys.executable, "-m", "tfaccel.benchmarks.plain_program", json.dumps(task)]
    plain = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    flag = [
        RECIPE,
        f"--run_dir={tmp_path}/run",
        "--epochs=3",
        "--parallel=2",
        "--max_trials=4",
        "--seed=5",
        "--json",
        "--dtype_policy=float32",
    ]
    command = [sys.executable, "-m", "tfaccel.scripts.main", "search", *flag]
    data = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    assert {row["trial_id"]: row["hyperparameters"] for row in data["rows"]} == plain["trials"]
    assert data["best"]["score"] == pytest.approx(plain["best"], abs=0.02)
