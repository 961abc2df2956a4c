"""`tfaccel train`: what it trains, prints and leaves, and one clear line for every bad input."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tfaccel.errors import TfaccelError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.plan import SETTINGS, Plan
from tfaccel.planning.plan_cache import keep_plan
from tfaccel.scripts import train as train_command

RECIPE = "--recipe=image_classification"
FLAGS = (
    "accumulation_steps address autotune callbacks checkpoint_interval clipnorm data_dir data_service devices "
    "distill_alpha distill_temperature dtype_policy early_stopping ema engine epochs extend_schedule "
    "global_batch_size global_clipnorm json keep_checkpoints learning_rate learning_rate_scaling log_to logical_cpus "
    "max_bad_fraction max_minutes num_threads num_workers on_bad_data on_nonfinite optimizer plan precision profile "
    "quiet recipe remat resume run_dir scaling_warm_up schedule seed set steps_per_execution strategy "
    "synchronize_batch_norm teacher validate_on warm_up weight_decay workload xla"
)
LINES = """
import dataclasses
from tfaccel import Workload

def data(batch_size):
    import tensorflow as tf
    x = tf.reshape(tf.range(40.0) / 40.0, (40, 1))
    return tf.data.Dataset.from_tensor_slices((x, 2.0 * x + 1.0)).batch(batch_size)

def workload():
    def build_model():
        import keras
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    compile_args = lambda: {"optimizer": "sgd", "loss": "mse"}
    train_data = lambda batch_size, *, seed, epoch: data(batch_size)
    return Workload("lines", build_model, compile_args, train_data, data, global_batch_size=8, epochs=3)

def endless():
    return dataclasses.replace(workload(), epochs=None)

def old(*, epochs=3):
    return workload()
"""


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """A function that runs the command with these flags in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        status = train_command.run(["tfaccel train", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def command(tmp_path):
    """A function that runs the installed command in a folder with a workload and small images, in a child process."""
    (tmp_path / "lines.py").write_text(LINES)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (24, 8, 8), dtype=np.uint8), np.tile([0, 1, 2], 8)
    np.savez(tmp_path / "small.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])

    def run(*arguments):
        code = "import sys; from tfaccel.scripts.main import main; sys.exit(main(['tfaccel', 'train', *sys.argv[1:]]))"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_help_names_every_flag_without_tensorflow(run_python):
    child = run_python(
        """
import sys
from tfaccel.scripts.main import main
status = main(["tfaccel", "train", "--help"])
sys.exit(", ".join({"tensorflow", "keras", "sklearn"} & set(sys.modules)) or status)
""",
        fresh=True,
    )
    assert sorted(re.findall(r"^  --(\w+)$", child.stdout, re.MULTILINE)) == FLAGS.split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([RECIPE, "--run_dir="], "--run_dir must name a folder."),
        ([RECIPE, "--resume=auto"], "Give --run_dir=DIR, the folder of the run that --resume=auto continues."),
        (["--run_dir=run"], "Give --recipe=NAME or --workload=package.module:function. Received: neither."),
        (["--run_dir=run", "--recipe=image_clasification"], "Did you mean 'image_classification'?"),
        ([RECIPE, "--run_dir=run", "--optimizer=adamv"], "Keras has no optimizer 'adamv'. Did you mean 'adam"),
        ([RECIPE, "--run_dir=run", "--data_dir=nowhere"], "There is no folder or file nowhere (`data_dir`)."),
        ([RECIPE, "--run_dir=run", "--data_dir=one_class"], "at least two. Received: one, 'cat'."),
        ([RECIPE, "--run_dir=run", "--data_dir=broken"], "Cannot read the image broken/dog/1.png: it is not an image."),
        ([RECIPE, "--run_dir=run", "--data_dir=empty_class"], "The class folder empty_class/dog holds no image"),
        (
            [RECIPE, "--run_dir=run", "--logical_cpus=2", "--devices=CPU:0,CPU:1", "--global_batch_size=63"],
            "`global_batch_size` must be divisible by the number of replicas. Received: global_batch_size=63",
        ),
        ([RECIPE, "--run_dir=run", "--devices=GPU:7"], "GPU:7 is not there. Devices here: CPU:0."),
        ([RECIPE, "--run_dir=run", "--learning_rate=fast"], "--learning_rate must be a number, or auto."),
        ([RECIPE, "--run_dir=run", "--epochs=0"], "--epochs must be a whole number of at least 1, or auto. Received:"),
        ([RECIPE, "--run_dir=run", "--checkpoint_interval=1.5"], "--checkpoint_interval must be a whole number of"),
        ([RECIPE, "--run_dir=run", "--clipnorm=1", "--global_clipnorm=1"], "not by both."),
        ([RECIPE, "--run_dir=run", "--image_size=9000"], "`image_size` must be a whole number from 8 to 512 pixels."),
        (
            [RECIPE, "--run_dir=run", "--resume=always"],
            "flag --resume=always: value should be one of <never|auto|must|extend>",
        ),
        ([RECIPE, "--run_dir=run", "--plan=nowhere.json"], "Cannot read the plan file 'nowhere.json'"),
        ([RECIPE, "--run_dir=run", "--seed=-1"], "--seed=-1"),
        ([RECIPE, "--run_dir=taken"], "taken is not empty and holds no run of tfaccel. Choose a new directory."),
        (
            [RECIPE, "--run_dir=run", "--optimiser=sgd"],
            "Unknown command line flag 'optimiser'. Did you mean 'optimizer'?",
        ),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(train, tmp_path, arguments, message):
    for name in ("one_class/cat", "broken/cat", "broken/dog", "empty_class/cat", "empty_class/dog"):
        (tmp_path / name).mkdir(parents=True)
    from PIL import Image

    for name in ("one_class/cat", "broken/cat", "broken/dog", "empty_class/cat"):
        Image.new("L", (8, 8)).save(tmp_path / name / "0.png")
    (tmp_path / "broken/dog/1.png").write_text("no image")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.txt").write_text("mine")
    before = files_in(tmp_path)
    status, out, err = train(*arguments, "--quiet")
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("tfaccel train: ") and err.count("\n") == 1
    assert files_in(tmp_path) == before
    assert files_in(tmp_path / "taken") == ["thesis.txt"]


@pytest.mark.parametrize("flag", ["data_dir=x", "optimizer=sgd", "weight_decay=0.1", "ema", "remat"])
def test_flag_that_a_workload_does_not_take_is_refused(train, tmp_path, flag):
    (tmp_path / "my_trained_module.py").write_text("def workload(): pass\n")
    status, _, err = train("--workload=my_trained_module:workload", "--run_dir=run", f"--{flag}")
    sys.modules.pop("my_trained_module", None)
    assert status == 2
    assert f"cannot be called like this: got an unexpected keyword argument '{flag.partition('=')[0]}'" in err


@pytest.mark.slow
def test_recipe_trains_shows_its_plan_and_says_where_things_are(command, tmp_path):
    arguments = [RECIPE, "--data_dir=small.npz", "--epochs=2", "--global_batch_size=8", "--optimizer=sgd", "--ema"]
    plan_flags = {setting.flag for setting in SETTINGS.values() if setting.flag is not None}
    automatic = [f"--{flag}=auto" for flag in plan_flags if flag != "global_batch_size"]
    ended = command(*arguments, "--run_dir=runs/first", "--weight_decay=auto", *automatic)
    assert ended.returncode == 0, ended.stderr
    plan = Plan.load(tmp_path / "runs/first/plan.json")
    assert plan.global_batch_size == 8
    rows = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert "--global_batch_size=8 Set by you." in rows
    assert f"--xla={'on' if plan.jit_compile else 'off'} {dict(plan.reasons)['jit_compile']}" in rows
    assert any(row.startswith("--devices=CPU:0 ") for row in rows)
    table = dict(
        line.split(maxsplit=1) for line in ended.stdout.partition("Trained image_classification")[2].splitlines()[1:]
    )
    result = json.loads((tmp_path / "runs/first/result.json").read_text())
    assert float(table["accuracy"]) == pytest.approx(result["final"]["accuracy"], abs=1e-4)
    for name in ("model", "predictions", "result", "tensorboard"):
        assert (tmp_path / table[name].strip()).exists()
    assert "epoch 2/2" in ended.stderr
    again = command(*arguments, "--run_dir=runs/first")
    assert (again.returncode, "already holds a run" in again.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("def workload(): pass", "mine:workload must return a tfaccel.Workload, or (model, x, y)"),
        ("def workload(labels): pass", "mine:workload(labels) cannot be called like this"),
    ],
)
def test_workload_that_the_workers_refuse_is_bad_input(command, tmp_path, function, said):
    (tmp_path / "mine.py").write_text(f"{function}\n")
    ended = command("--workload=mine:workload", "--run_dir=run", "--num_workers=2")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"tfaccel train: {said}")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_json_is_all_that_stands_on_standard_output(command, tmp_path):
    plan = Plan(strategy="mirrored", devices=("CPU:0", "CPU:1"), num_logical_cpus=2, global_batch_size=12)
    plan.save(tmp_path / "plan.json")
    ended = command(
        RECIPE,
        "--data_dir=small.npz",
        "--epochs=1",
        "--run_dir=run",
        "--plan=plan.json",
        "--json",
        "--remat",
        "--set=prefetch_batches=1",
        "--seed=5",
        "--checkpoint_interval=1",
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["plan"]["global_batch_size"] == 12
    assert (result["plan"]["strategy"], result["plan"]["prefetch_batches"]) == ("mirrored", 1)
    assert "--set=prefetch_batches=1 Set by you." in " ".join(ended.stderr.split())
    kept = json.loads((tmp_path / "run/result.json").read_text())
    assert "model.keras" in kept.pop("files")  # the digests of the run directory's files
    assert result == kept


@pytest.mark.slow
def test_loss_that_is_no_number_names_its_step_and_leaves_no_model(command, tmp_path):
    ended = command(
        RECIPE,
        "--data_dir=small.npz",
        "--epochs=30",
        "--global_batch_size=8",
        "--run_dir=run",
        "--quiet",
        "--optimizer=sgd",
        "--learning_rate=1e30",
        "--steps_per_execution=1",
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.search(r"^tfaccel train: .*step \d+", ended.stderr, re.MULTILINE), ended.stderr
    assert not (tmp_path / "run/model.keras").exists()
    assert not (tmp_path / "run/result.json").exists()


@pytest.mark.slow
def test_workload_of_your_own_trains_for_your_epochs(command, tmp_path):
    ended = command("--workload=lines:workload", "--run_dir=two", "--quiet", "--epochs=2")
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads((tmp_path / "two/result.json").read_text())["history"]["loss"]) == 2
    assert "Trained lines" in ended.stdout
    assert "Plan" not in ended.stdout and "epoch 1" not in ended.stderr


@pytest.mark.parametrize("can_keep", [True, False])
def test_the_plan_that_autotune_measures_is_trained(train, tmp_path, monkeypatch, can_keep):
    """Whether or not it could be kept; what measures and what trains are left out here."""
    cache = tmp_path / "cache"
    if not can_keep:
        cache.write_text("a file")
    monkeypatch.setenv("TFACCEL_CACHE", str(cache))
    (tmp_path / "lines_to_measure.py").write_text(LINES)
    trained = []

    def measure(reference, options, *, quiet):
        machine, workload = detect_hardware(), as_workload(reference)
        plan = replace(default_plan(machine, workload), jit_compile=True, reasons=())
        keep_plan(machine, workload, {}, plan, speedup=2.0, report={})
        return SimpleNamespace(plan=plan)

    def stop(workload, plan, directory, values):
        trained.append(plan)
        raise TfaccelError("This is all.")

    monkeypatch.setattr(train_command, "measured_plans", measure)
    monkeypatch.setattr(train_command, "_train", stop)
    status, out, _ = train("--workload=lines_to_measure:workload", "--autotune", "--run_dir=run")
    sys.modules.pop("lines_to_measure", None)
    assert (status, [plan.jit_compile for plan in trained]) == (2, [True])
    assert f"({'measured by `tfaccel find-fastest`, ' if can_keep else 'measured now, but not kept'}" in out


def test_workload_without_epochs_of_its_own_needs_them(train, tmp_path):
    (tmp_path / "lines_without_epochs.py").write_text(LINES)
    status, _, err = train("--workload=lines_without_epochs:endless", "--run_dir=run")
    sys.modules.pop("lines_without_epochs", None)
    assert (status, files_in(tmp_path)) == (2, ["lines_without_epochs.py"])
    assert "Workload 'lines' does not say how many epochs it needs. Give epochs (--epochs=NUMBER)." in err


def test_workload_that_takes_what_the_run_decides_is_refused(train, tmp_path):
    (tmp_path / "lines_with_epochs.py").write_text(LINES)
    status, _, err = train("--workload=lines_with_epochs:old", "--run_dir=run", "--epochs=5")
    sys.modules.pop("lines_with_epochs", None)
    assert (status, files_in(tmp_path)) == (2, ["lines_with_epochs.py"])
    assert "lines_with_epochs:old has a parameter `epochs`, which the run decides. Leave it out: recommend" in err
