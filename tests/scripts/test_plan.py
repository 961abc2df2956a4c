"""`tfaccel plan`: what it prints, what it writes, and one clear line for every bad input."""

import dataclasses
import json
import subprocess
import sys

import pytest

from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.load_workload import load_workload
from tfaccel.planning.plan import SETTINGS, Plan, plan_field_names
from tfaccel.planning.plan_cache import keep_plan
from tfaccel.scripts import plan as plan_command

WORKLOAD = """
from tfaccel.planning.workload import Workload

def workload():
    return Workload("mine", object, dict, list, global_batch_size=64)

def sized(size: int = 64, optimizer: str = "adam"):
    assert optimizer == "sgd"
    return Workload("mine", object, dict, list, global_batch_size=size)
"""
FLAGS = {setting.flag for setting in SETTINGS.values() if setting.flag is not None}
OURS = "--workload=my_planned_module:workload"
EIGHT_GPUS = Hardware(
    num_physical_cores=32,
    num_usable_cores=32,
    devices=tuple(Device(kind="GPU", index=i, model="H100", compute_capability=(9, 0)) for i in range(8)),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with a workload, and a machine with eight GPUs and one without."""
    (tmp_path / "my_planned_module.py").write_text(WORKLOAD)
    (tmp_path / "gpus.json").write_text(json.dumps(EIGHT_GPUS.to_json()))
    (tmp_path / "cpu.json").write_text(json.dumps({"hardware": Hardware().to_json()}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_planned_module", None)


@pytest.fixture
def plan(folder, capsys):
    """A function that runs the command with these flags: status, standard output, standard error."""

    def run(*arguments):
        status = plan_command.run(["tfaccel plan", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_prints_candidates_chosen_plan_and_every_reason_with_its_flag(plan):
    status, out, err = plan(OURS, "--hardware=gpus.json", "--all")
    assert (status, err) == (0, "")
    assert "Candidate plans for mine, best first" in out
    assert "GPU:0 to GPU:7 (8)" in out
    assert "communication=hierarchical_copy" in out
    chosen = out[out.index("Chosen: plan 1") : out.index("Why the other")]
    assert all(name in chosen for name in plan_field_names())
    assert all(f"--{flag}" in chosen for flag in FLAGS)
    assert "--set=bytes_per_pack=VALUE" in chosen
    assert "compute capability 9.0 has fast bfloat16" in chosen
    assert "dtype_policy=float32: Full precision, for comparison" in out[out.index("Why the other") :]


def test_shows_what_was_chosen_and_leaves_out_usual_values(plan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # as on a terminal of 80 columns
    monkeypatch.setenv("TERM", "dumb")
    status, out, _ = plan(OURS, "--hardware=gpus.json", "--set=bytes_per_pack=1024")
    chosen = out[out.index("Chosen: plan 1") : out.index("other fields, most for experts; --all shows")]
    assert status == 0
    for flag in ("--strategy=mirrored", "--xla=", "--set=bytes_per_pack=1024"):
        assert flag in chosen
    assert "--set=tpu" not in chosen and "--set=cache_data" not in chosen
    assert max(map(len, chosen.splitlines())) <= 80 and len(chosen.splitlines()) < 40
    candidates = out[: out.index("Chosen: plan 1")]
    assert "…" not in candidates and max(map(len, candidates.splitlines())) <= 80


def test_says_that_a_measured_plan_is_used_instead(plan, folder, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(folder / "cache"))
    assert "does not use plan 1" not in plan(OURS)[1]
    machine, work = detect_hardware(), load_workload(OURS.partition("=")[2])
    file = keep_plan(machine, work, {}, default_plan(machine, work, jit_compile=True), speedup=2.0, report={})
    assert f"does not use plan 1, but the one that `tfaccel find-fastest` measured: {file}" in plan(OURS)[1]
    assert "does not use plan 1" not in plan(OURS, "--xla=off")[1]
    assert "does not use plan 1" not in plan(OURS, "--hardware=gpus.json")[1]


def test_json_has_the_same(plan):
    status, out, _ = plan(OURS, "--hardware=gpus.json", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["workload"] == "mine"
    assert Hardware.from_json(data["hardware"]) == EIGHT_GPUS
    candidates = [Plan.from_json(candidate) for candidate in data["candidates"]]
    assert Plan.from_json(data["chosen"]) == candidates[0]
    assert [row["field"] for row in data["reasons"]] == list(plan_field_names())
    assert all(row["reason"] and row["flag"] for row in data["reasons"])


LARGE_MODEL = """
import keras
import numpy as np
import tfaccel


def build_model():
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(8)]
    model = keras.Sequential([keras.Input((1024,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def workload():
    x = np.zeros((64, 1024), "float32")
    return tfaccel.Workload.of(build_model, x, x[:, :1], batch_size=64)
"""


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_cut_and_every_saving_is_shown(plan, folder):
    gpus = tuple(dataclasses.replace(gpu, memory_bytes=96 * 2**20) for gpu in EIGHT_GPUS.devices)
    machine = dataclasses.replace(EIGHT_GPUS, devices=gpus)
    (folder / "small.json").write_text(json.dumps(machine.to_json()))
    (folder / "my_planned_module.py").write_text(LARGE_MODEL)
    fixed = ("--dtype_policy=float32",)
    status, out, err = plan(OURS, "--hardware=small.json", "--json", *fixed)
    assert (status, err) == (0, "")
    data = json.loads(out)
    stages = data["chosen"]["pipeline_stages"]
    assert stages > 1
    ways = {way["field"]: way for way in data["memory"]}
    assert not ways["as planned"]["fits"]
    assert ways[f"pipeline_stages={stages}"]["fits"]
    weights = 8 * (1024 * 1024 + 1024) * 4 + 1025 * 4
    assert ways["as planned"]["optimizer_bytes"] == pytest.approx(2 * weights, rel=0.01)
    assert ways["optimizer_state=sharded"]["optimizer_bytes"] == pytest.approx(2 * weights / 8, rel=0.01)
    status, out, _ = plan(OURS, "--hardware=small.json", *fixed)
    assert "Memory of each GPU, and what other values of plan fields save" in out
    assert "used by plan 1" in out


def test_plans_for_this_machine(plan):
    status, out, err = plan(OURS, "--json", "--devices=CPU:0")
    assert (status, err) == (0, "")
    assert json.loads(out)["chosen"]["devices"] == ["CPU:0"]


def test_flags_fix_fields(plan):
    status, out, _ = plan(
        OURS,
        "--hardware=cpu.json",
        "--json",
        "--strategy=mirrored",
        "--devices=CPU:0, CPU:1",
        "--logical_cpus=3",
        "--dtype_policy=mixed_float16",
        "--xla=on",
        "--global_batch_size=48",
        "--accumulation_steps=2",
        "--steps_per_execution=7",
        "--num_threads=5",
        "--synchronize_batch_norm=off",
        "--set=gpu_memory_limit_bytes=none",
        "--set=sum_duplicate_indices=true",
        "--set=prefetch_batches=0",
        "--set=communication=tensorflow_default",
        "--set=tpu=none",
    )
    assert status == 0
    expected = {
        "strategy": "mirrored",
        "devices": ["CPU:0", "CPU:1"],
        "num_logical_cpus": 3,
        "dtype_policy": "mixed_float16",
        "jit_compile": True,
        "global_batch_size": 48,
        "accumulation_steps": 2,
        "steps_per_execution": 7,
        "intra_op_threads": 5,
        "inter_op_threads": 5,
        "synchronize_batch_norm": False,
        "gpu_memory_limit_bytes": None,
        "sum_duplicate_indices": True,
        "prefetch_batches": 0,
        "communication": "tensorflow_default",
        "tpu": None,
    }
    for candidate in json.loads(out)["candidates"]:
        assert expected.items() <= candidate.items()
        reasons = dict(candidate["reasons"])
        assert {name for name in reasons if reasons[name] == "Set by you."} == set(expected)


def test_flags_set_options_of_the_workload(plan):
    status, out, _ = plan("--workload=my_planned_module:sized", "--json", "--size=128", "--optimizer=sgd")
    assert status == 0
    assert json.loads(out)["chosen"]["global_batch_size"] == 128
    status, _, err = plan(OURS, "--optimizer=sgd")
    assert status == 2
    assert "cannot be called like this: got an unexpected keyword argument 'optimizer'" in err


def test_auto_fixes_nothing(plan):
    automatic = [f"--{flag}=auto" for flag in FLAGS]
    assert plan(OURS, "--hardware=gpus.json", "--json", *automatic) == plan(OURS, "--hardware=gpus.json", "--json")


def test_write_saves_the_chosen_plan(plan, folder):
    status, out, _ = plan(OURS, "--hardware=gpus.json", "--write=plan.json", "--xla=off")
    assert status == 0
    assert "Plan 1 is written to plan.json" in out
    saved = Plan.load(folder / "plan.json")
    assert (saved.strategy, saved.jit_compile, len(saved.devices)) == ("mirrored", False, 2)  # 32 examples for each
    assert dict(saved.reasons)["jit_compile"] == "Set by you."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give --recipe=NAME or --workload=package.module:function. Received: neither."),
        (["--recipe=a", OURS], "Received: both."),
        (["--recipe=no_such_recipe"], "There is no recipe 'no_such_recipe'."),
        (["--workload=mine"], "A workload is written package.module:function. Received: 'mine'."),
        ([OURS, "--hardware=none.json"], "Cannot read the hardware file 'none.json': No such file or directory."),
        ([OURS, "--hardware=my_planned_module.py"], "The hardware file 'my_planned_module.py' is not JSON"),
        ([OURS, "--strategy=miror"], "Received: strategy='miror'. Did you mean 'mirrored'?"),
        ([OURS, "--strategy=parameter_server"], "Keras 3 does not support ParameterServerStrategy"),
        ([OURS, "--devices=GPU:8"], "GPU:8 is not there. Devices here: CPU:0, GPU:0, GPU:1,"),
        ([OURS, "--devices=gpu0"], "A device is written KIND:INDEX"),
        ([OURS, "--xla=maybe"], "--xla must be on or off, or auto. Received: --xla=maybe."),
        ([OURS, "--global_batch_size=many"], "--global_batch_size must be a whole number, or auto."),
        ([OURS, "--global_batch_size=0"], "`global_batch_size` must be a whole number of at least 1."),
        ([OURS, "--global_batch_size=33", "--logical_cpus=2"], "num_replicas=2. Use 32 or 34, or fewer devices."),
        ([OURS, "--set=prefetch_batches"], "--set is written --set=FIELD=VALUE. Received: --set=prefetch_batches."),
        ([OURS, "--set=prefetch=1"], "Plan has no field 'prefetch'. Did you mean 'prefetch_batches'?"),
        ([OURS, "--set=cache_data=2"], "--set=cache_data must be on or off. Received: --set=cache_data=2."),
        ([OURS, "--set=reasons=x"], "cannot be set by --set=reasons=x: reasons are given by the rules."),
        ([OURS, "--set=strategy=none", "--strategy=tpu"], "it is set already (--strategy)."),
        ([OURS, "--set=data_threads=1", "--set=data_threads=2"], "it is set already (--set=data_threads=VALUE)."),
        ([OURS, "--write=no_folder/plan.json"], "Cannot write the plan file 'no_folder/plan.json'"),
        ([OURS, "--stratgy=none"], "Unknown command line flag 'stratgy'. Did you mean 'strategy'?"),
        ([OURS, "here"], "unexpected argument 'here'."),
    ],
)
def test_bad_input_is_one_line_and_status_2(plan, arguments, message):
    hardware = [] if any(argument.startswith("--hardware") for argument in arguments) else ["--hardware=gpus.json"]
    status, out, err = plan(*hardware, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tfaccel plan: ")
    assert message in err


def test_the_command_imports_no_tensorflow_and_explains_itself(folder):
    code = (
        "import sys; from tfaccel.scripts.main import main; status = main(['tfaccel', 'plan', *sys.argv[1:]]);"
        "sys.exit(status or len({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, OURS], capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Chosen: plan 1" in done.stdout
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0
    wanted = {*FLAGS, "set", "recipe", "workload", "hardware", "write", "json"}
    assert all(f"\n  --{flag}\n" in done.stdout for flag in wanted)
