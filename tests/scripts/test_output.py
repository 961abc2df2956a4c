"""What all commands print: numbers with bounds, errors on one line, and nothing wrapped where there is no terminal."""

import errno
import importlib
import inspect
import io
import os
import signal
import subprocess
import sys

import pytest
from rich.table import Table

from tfaccel.errors import ClusterError, TfaccelError, WorkloadError
from tfaccel.scripts import command, main
from tfaccel.scripts.command_flags import command_flags
from tfaccel.scripts.train_flags import COUNT, NUMBER, TEXT, get_value

NUMBERS = {"steps": (3, "steps"), "wait_seconds": (1.0, "how long"), "rate": (0.5, "a rate")}


def status_and_error(capsys, main, *arguments):
    status = command.run_command(main, ["made_up", *arguments], command_flags(NUMBERS), description="")
    captured = capsys.readouterr()
    return status, captured.err


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--steps=2147483648", "--steps must be at most 2147483647. Received: --steps=2147483648."),
        ("--wait_seconds=1e300", "--wait_seconds must be at most 100000000. Received: --wait_seconds=1e+300."),
        ("--wait_seconds=nan", "--wait_seconds must be a number. Received: --wait_seconds=nan."),
        ("--rate=inf", "--rate must be a number. Received: --rate=inf."),
        ("--rate=-1e999", "--rate must be a number. Received: --rate=-inf."),
    ],
)
def test_every_number_of_every_command_is_finite_and_bounded(capsys, argument, message):
    assert status_and_error(capsys, lambda: 0, argument) == (2, f"made_up: {message}\n")
    assert status_and_error(capsys, lambda: 0, "--rate=1e30", "--steps=2147483647") == (0, "")


def raising(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "run/a.png"), 2, "run/a.png: No space left on device."),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device."),
        (MemoryError("17 GiB"), 2, "There is not enough memory (17 GiB). Use a smaller model or smaller batches, or"),
        (WorkloadError("one\ntwo"), 2, "one two"),
        (ClusterError("Worker 1 is gone."), 138, "Worker 1 is gone."),
    ],
)
def test_errors_take_one_line(capsys, error, status, message):
    found = status_and_error(capsys, raising(error))
    assert found[0] == status
    assert found[1].startswith(f"made_up: {message}") and found[1].count("\n") == 1


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_runs_as_a_module(name):
    module = importlib.import_module(f"tfaccel.scripts.{name.replace('-', '_')}")
    assert 'if __name__ == "__main__":\n    sys.exit(run(' in inspect.getsource(module)


def test_ctrl_c_takes_one_line(capsys):
    assert status_and_error(capsys, lambda: signal.raise_signal(signal.SIGINT)) == (130, "made_up: Interrupted.\n")
    told = raising(KeyboardInterrupt("The same command continues."))
    assert status_and_error(capsys, told) == (130, "made_up: Interrupted. The same command continues.\n")


def test_ctrl_c_while_a_workload_is_loaded_takes_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main.main(["tfaccel", "plan", "--workload=slow_to_import:workload"]) == 130
    assert capsys.readouterr() == ("", "tfaccel plan: Interrupted.\n")


def test_errors_of_tensorflow_for_memory_and_disk_take_one_line(capsys, logical_devices):
    import tensorflow as tf

    full = tf.errors.ResourceExhaustedError(None, None, "run/variables; No space left on device")
    short = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9,9]")
    assert status_and_error(capsys, raising(full)) == (2, "made_up: run/variables; No space left on device.\n")
    status, text = status_and_error(capsys, raising(short))
    assert status == 2 and text.startswith("made_up: There is not enough memory: OOM when allocating tensor")
    with pytest.raises(tf.errors.InvalidArgumentError):
        status_and_error(capsys, raising(tf.errors.InvalidArgumentError(None, None, "a fault")))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("nan", NUMBER, "must be a number, or auto"),
        ("1e400", NUMBER, "must be a number, or auto"),
        ("2147483648", COUNT, "must be at most 2147483647, or auto"),
        ("9" * 5000, COUNT, "must be a whole number of at least 1, or auto"),
    ],
)
def test_values_of_a_workload_are_bounded(text, kind, message):
    with pytest.raises(TfaccelError, match=message):
        get_value("epochs", text, kind)
    assert [get_value("epochs", "7", COUNT), get_value("rate", "1e-3", NUMBER)] == [7, 1e-3]
    assert get_value("text", "nan", TEXT) == "nan"


def test_nothing_is_wrapped_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    names = {f"val_a_rather_long_name_of_a_metric_{number}": 0.12345 for number in range(30)}
    table = Table(box=None, show_header=False)
    for name, value in names.items():
        table.add_row(name, f"{value:.4f}", "why " * 60)
    command.table_console().print(table)
    lines = sys.stdout.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [[name, "0.1235"] for name in names]

    from tfaccel.training.run.train_callbacks import TrainingProgress

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = TrainingProgress(epochs=3, first_epoch=0, steps_of_epoch=2, examples_per_step=8)
    progress.on_train_begin()
    progress.on_epoch_end(0, names)
    progress.close()
    (line,) = [line for line in sys.stderr.getvalue().splitlines() if line]
    assert line == "epoch 1/3  " + "  ".join(f"{name} {value:.4f}" for name, value in names.items())


def test_errors_hold_no_escape_sequences():
    from tfaccel.errors import ExportError
    from tfaccel.scripts.command import one_line

    error = ExportError("There is no class 'a\x1b[2J\x07\u202eb'.\nSecond line.")
    assert str(error) == r"There is no class 'a\x1b[2J\x07\u202eb'." + "\nSecond line."
    assert one_line(error) == r"There is no class 'a\x1b[2J\x07\u202eb'. Second line."
    assert one_line(OSError(2, "No such file", "a\x1b[31m")) == r"a\x1b[31m: No such file."


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["recipes"], ["plan", "--recipe=gan"]])
def test_output_whose_reader_has_gone_is_dropped(arguments):
    reads, writes = os.pipe()
    os.close(reads)
    command_line = [sys.executable, "-m", "tfaccel.scripts.main", *arguments]
    child = subprocess.run(command_line, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writes)
    assert (child.returncode, child.stderr) == (0 if arguments else 2, "")
