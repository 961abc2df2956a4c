"""TensorFlow's log while it starts: notes are hidden, other messages are shown, and the user's setting wins."""

import pytest

STARTED = """
import os, sys
from tfaccel import Plan, Runtime

with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)) as runtime:
    import tensorflow as tf
    level = os.environ["TF_CPP_MIN_LOG_LEVEL"]
    sum = tf.constant(1.0) + 1.0
print(level, "TF_CPP_MIN_LOG_LEVEL" in os.environ)
"""
IMPORTED_BEFORE = """
import sys
import tensorflow as tf
print("imported", file=sys.stderr, flush=True)
from tfaccel import Plan, Runtime

for _ in range(2):
    with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)):
        tf.constant(1.0) + 1.0
"""
TRAINED = """
import sys
from tfaccel.scripts.main import main

arguments = ["--recipe=tabular_regression", "--epochs=1", "--run_dir=run", "--quiet", "--callbacks=mine:callbacks"]
print(main(["tfaccel", "train", *arguments]))
"""
CALLBACKS = """
import os
import keras

def callbacks():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"  # which the runtime sets before TensorFlow is imported
    return [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print("called"))]
"""
INSPECTED = """
import sys
from pathlib import Path
from PIL import Image
from tfaccel.scripts.main import main

for name in ("a", "b"):
    Path("images", name).mkdir(parents=True)
    Image.new("L", (8, 8)).save(f"images/{name}/1.png")
print(main(["tfaccel", "inspect-data", "--data_dir=images"]))
"""
PASSED = r"""
import os
from tfaccel.processes.quiet_start import without_notes

with without_notes(wants_gpus=False):
    os.write(2, b"E0000 cuda_platform.cc] failed call to cuInit: UNKNOWN ERROR\nreal error\n")
    os.write(2, b"I0000 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.\n")
with without_notes(wants_gpus=True):
    os.write(2, b"E0000 cuda_platform.cc] failed call to cuInit: UNKNOWN ERROR\n")
    os.write(2, b"last words")
    os.abort()
"""


@pytest.mark.slow
def test_tensorflow_starts_without_a_word(run_python):
    child = run_python(STARTED, env={"TF_CPP_MIN_LOG_LEVEL": None}, fresh=True)
    assert (child.stdout.split(), child.stderr) == (["2", "False"], "")


def test_tensorflow_that_the_script_has_imported_starts_without_a_word(run_python):
    child = run_python(IMPORTED_BEFORE, env={"TF_CPP_MIN_LOG_LEVEL": None}, fresh=True)
    assert child.stderr.partition("imported\n")[2] == ""


def test_train_imports_tensorflow_only_with_the_plans_environment(run_python, tmp_path):
    (tmp_path / "mine.py").write_text(CALLBACKS)
    environment = {"TF_CPP_MIN_LOG_LEVEL": None, "CUDA_VISIBLE_DEVICES": None, "PYTHONPATH": str(tmp_path)}
    child = run_python(TRAINED, env=environment, fresh=True, cwd=tmp_path)
    assert "called" in child.stdout and child.stdout.endswith("\n0\n")
    assert child.stderr == ""


@pytest.mark.slow
def test_images_are_inspected_without_a_word_of_tensorflow(run_python, tmp_path):
    child = run_python(INSPECTED, env={"TF_CPP_MIN_LOG_LEVEL": None}, fresh=True, cwd=tmp_path)
    assert child.stdout.endswith("\n0\n") and "TensorFlow" not in child.stderr and "cuda" not in child.stderr.lower()


@pytest.mark.slow
def test_log_level_of_the_user_wins(run_python):
    child = run_python(STARTED, env={"TF_CPP_MIN_LOG_LEVEL": "0"}, fresh=True)
    assert child.stdout.split() == ["0", "True"]
    assert "cpu_feature_guard" in child.stderr


def test_other_lines_pass_even_if_the_process_crashes(run_python):
    child = run_python(PASSED, check=False, fresh=True)
    lines = child.stderr.splitlines()
    assert child.returncode == -6
    assert lines[0].startswith("real ") and "cuInit" in lines[1] and "last words" in lines
    assert not any("cuda drivers" in line for line in lines) and sum("cuInit" in line for line in lines) == 1
