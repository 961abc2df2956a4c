import json
import os

import pytest
from made_up_machine import add_command

from tfaccel.hardware.doctor import COMPUTATIONS
from tfaccel.hardware.machine import Machine


def run_doctor(run_python, *flags, **environ):
    code = "import sys; from tfaccel.scripts.main import main; sys.exit(main(['tfaccel', 'doctor', *sys.argv[1:]]))"
    return run_python(code, *flags, env=environ, check=False, fresh=True)


@pytest.mark.slow
def test_a_sound_installation_passes_every_check(run_python):
    done = run_doctor(run_python, "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0
    assert not [check for check in checks.values() if check["status"] in ("fail", "warn")]
    assert all(check.keys() == {"name", "status", "detail", "remedy"} for check in checks.values())
    names = {"python", "tensorflow version", "keras version", "keras backend", "legacy keras", "import tensorflow"}
    names |= {"import keras", "import tensorboard", "import keras-tuner", "import ai-edge-litert"}
    names |= {f"CPU:0 {name}" for name in COMPUTATIONS}
    assert {name for name, check in checks.items() if check["status"] == "ok"} >= names
    assert "trying CPU:0 XLA step ..." in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(bool(Machine.here().glob("/proc/driver/nvidia/version")), reason="the driver here is a real one")
def test_every_fault_has_its_line_and_the_rest_is_still_tried(run_python, tmp_path):
    driver = 'for i in 0 1; do echo "GPU-$i, NVIDIA H100, 81559, 580.65.06, 9.0"; done'
    done = run_doctor(
        run_python,
        PATH=f"{add_command(tmp_path, 'nvidia-smi', driver)}:{os.environ['PATH']}",
        CUDA_VISIBLE_DEVICES=None,
        KERAS_BACKEND="jax",
        TF_USE_LEGACY_KERAS="1",
        TF_CONFIG="{'cluster'",
        COLUMNS="1000",
    )
    assert done.returncode == 1
    rows = {line[:22].strip(): line for line in done.stdout.partition("remedies:")[0].splitlines()}
    failed = {name for name, line in rows.items() if " fail " in line}
    assert failed == {"keras backend", "legacy keras", "cluster", "gpus"}
    assert "TensorFlow sees 0 of 2 GPUs (2 x NVIDIA H100): failed to load: libcuda.so.1" in rows["gpus"]
    assert "built for CUDA 12." in rows["gpus"]
    assert " ok " in rows["import keras"]
    assert all(" ok " in rows[f"CPU:0 {name}"] for name in COMPUTATIONS)
    remedies = done.stdout.partition("remedies:")[2]
    assert "keras backend: export KERAS_BACKEND=tensorflow" in remedies
    assert "pip install 'tensorflow[and-cuda]==" in remedies
    assert remedies.rstrip().endswith("4 failed, 0 warnings")


def test_a_time_limit_of_nothing_is_refused(run_python):
    done = run_doctor(run_python, "--time_limit_seconds=0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "time_limit_seconds" in done.stderr
