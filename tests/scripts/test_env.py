import json
import os
import subprocess
import sys

from made_up_machine import add_command

from tfaccel.hardware.hardware import Hardware

CHILD = """
import sys
from tfaccel.scripts.main import main
status = main(["tfaccel", "env", *sys.argv[1:]])
heavy = {"tensorflow", "keras", "numpy", "rich"} & set(sys.modules)
sys.exit(status or (f"imported {heavy}" if heavy else 0))
"""


def run_env(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, *flags]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ})


def test_text_begins_with_what_to_do_and_tells_versions_and_hardware(tmp_path):
    path = add_command(tmp_path, "nvidia-smi", 'echo "GPU-aaaa, NVIDIA L4, 23034, 580.65.06, 8.9"')
    environ = {"PATH": f"{path}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0", "TPU_NAME": "grpc://secret"}
    done = run_env(**environ, KERAS_BACKEND="jax")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "Please copy this text into your report."
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in lines[2:]}
    assert {"tfaccel", "Python", "platform", "tensorflow", "keras", "numpy", "CPU", "memory"} <= rows.keys()
    assert rows["Keras backend"] == "jax (from KERAS_BACKEND)"
    assert rows["GPU:0"] == "NVIDIA L4, 22.5 GiB, compute capability 8.9, driver 580.65.06"
    assert rows["CUDA_VISIBLE_DEVICES"] == "0"
    assert rows["TPU_NAME"] == "(set)"
    assert "secret" not in done.stdout


def test_json_can_be_read_as_hardware(tmp_path):
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    done = run_env("--json", TF_CONFIG=json.dumps(config))
    assert (done.returncode, done.stderr) == (0, "")
    path = tmp_path / "machine.json"
    path.write_text(done.stdout)
    assert Hardware.load(path).cluster.task_index == 1


def test_an_unknown_flag_is_one_line_and_status_2():
    done = run_env("--jason")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tfaccel env: Unknown command line flag 'jason'")
