"""Broken models, one a fault, and a sound recipe: what `tfaccel doctor --tpu_ready` says of them."""

import json
from pathlib import Path

import pytest

from tfaccel.extras.tpu.readiness import STEP_PROGRAM, compiler_refusal, step_checks
from tfaccel.hardware.doctor import ProbeProcess
from tfaccel.hardware.machine import Machine
from tfaccel.planning.load_workload import list_recipes

FOLDER = str(Path(__file__).parent)
REPLICA_BATCH_SIZE = 16

# Workload -> the checks that are not "ok", each with a word of its detail and of its fix.
FAULTS = {
    "sound": {},
    "custom_step": {},
    "unknown_operation": {"operations": ("fail", "CropAndResize in layer 'faulty'", "train_data")},
    "host_call": {"host calls": ("fail", "EagerPyFunc in layer 'faulty'", "train_data")},
    "printing": {"host calls": ("fail", "PrintV2 in layer 'faulty'", "callback")},
    "strings_inside": {"strings": ("fail", "AsString in layer 'faulty'", "TextVectorization")},
    "ragged_inside": {"ragged tensors": ("fail", "RaggedTensorToTensor in layer 'faulty'", "padded_batch")},
    "dynamic_dimension": {"dynamic dimensions": ("warn", "Where in layer 'faulty'", "mask")},
    "complex128": {
        "complex128": ("fail", "layer 'faulty'", "complex64"),
        "float64": ("warn", "Cast in layer 'faulty'", "float32"),  # the real part
    },
    "float64": {"float64": ("warn", "Mul in layer 'faulty'", "float32")},
    "float16": {"float16": ("warn", "layer 'faulty'", "mixed_float16")},
    "loss_scale": {"float16": ("warn", "LossScaleOptimizer in model.optimizer", "LossScaleOptimizer")},
    "last_batch_is_shorter": {"batch shapes": ("warn", "2 shapes in 3 batches", "drop_remainder=True")},
    "string_batches": {"batch types": ("fail", "string 16x16", "TextVectorization")},
    "ragged_batches": {"batch types": ("fail", "RaggedTensor", "padded_batch")},
    "numbers_from_tensors": {"train step": ("fail", "no attribute 'numpy'", ".numpy()")},
    "crashing": {"model and batches": ("fail", "OSError: no weights here", "tfaccel train")},
}


@pytest.fixture(scope="module")
def step_process():
    with ProbeProcess(Machine.here(), program=STEP_PROGRAM) as process:
        yield process


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_told_with_its_fix_and_nothing_else(step_process, name):
    def probe(words, probe_name, *arguments):
        source = ["workload", f"broken_workloads:{name}", FOLDER, REPLICA_BATCH_SIZE]
        return step_process.run([probe_name, *arguments, *source], time_limit_seconds=200)

    faults = {check.name: check for check in step_checks(name, probe) if check.status != "ok"}
    assert faults.keys() == FAULTS[name].keys()
    for check_name, (status, detail, remedy) in FAULTS[name].items():
        check = faults[check_name]
        assert (check.status, detail in check.detail, remedy in check.remedy) == (status, True, True), check


def run_doctor(run_python, *flags, **options):
    code = "import sys; from tfaccel.scripts.main import main; sys.exit(main(['tfaccel', 'doctor', *sys.argv[1:]]))"
    return run_python(code, "--tpu_ready", *flags, check=False, **options)


@pytest.mark.slow
def test_a_sound_recipe_is_ready(run_python):
    flags = ["--recipe=image_classification", "--tpu=v5e-8", "--global_batch_size=128", "--json"]
    done = run_doctor(run_python, *flags, timeout_seconds=500)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert {check["status"] for check in checks.values()} <= {"ok", "skip"}
    assert checks["replica batch"]["detail"] == "128 rows on 8 cores; whole tiles of 8 rows on up to 16 cores"
    assert checks["batch shapes"]["detail"] == "float32 16x8x8x1, float32 16x10"
    assert "trying the train step of image_classification ..." in done.stderr
    if compiler_refusal(Machine.here()):
        assert "pip install 'tfaccel[tpu-aot]'" in checks["TPU compiler"]["detail"]
    else:
        assert " of 15.75 GiB; a step computes " in checks["v5e memory"]["detail"]


@pytest.mark.slow
def test_a_step_that_cannot_run_gives_status_1_and_is_not_compiled(run_python):
    done = run_doctor(run_python, "--workload=broken_workloads:host_call", cwd=FOLDER, env={"COLUMNS": "400"})
    assert done.returncode == 1
    assert "host calls: take it out of the step" in done.stdout
    assert "not run, since a check above failed" in done.stdout
    assert done.stdout.rstrip().endswith("1 failed, 0 warnings")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--recipe=image_classification", "--tpu=v9"], "A TPU is written as a generation"),
        ([], "Give --recipe=NAME or --workload=package.module:function"),
        (["--recipe=image_clasification"], "Did you mean 'image_classification'"),
        (
            ["--recipe=image_classification", "--global_batch_size=many"],
            "must be a whole number of at least 1, or auto",
        ),
        (
            ["--recipe=image_classification", "--global_batch_size=2000"],
            "larger than the number of training examples, 1437",
        ),
    ],
)
def test_wrong_flags_give_one_line_and_status_2(run_python, flags, message):
    done = run_doctor(run_python, *flags)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert message in done.stderr


def test_flags_of_tpu_ready_are_not_ignored_without_it(run_python):
    done = run_doctor(run_python, "--notpu_ready", "--tpu=v5e")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--tpu is for --tpu_ready. Add --tpu_ready, or drop --tpu." in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [entry.name for entry in list_recipes()])
def test_every_recipe_is_ready(run_python, recipe):
    done = run_doctor(run_python, f"--recipe={recipe}", timeout_seconds=500)
    assert done.returncode == 0, done.stdout
