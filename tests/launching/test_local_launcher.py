"""Workers of this machine: what they get, how a failure ends them all, and when they start again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tfaccel.errors import LaunchError, TfaccelError
from tfaccel.hardware.hardware import Hardware
from tfaccel.launching.local_launcher import launch_local
from tfaccel.launching.local_worker import LaunchOptions
from tfaccel.processes.heartbeat import Silence

PLACE = """
import json, os, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
attempt = int(os.environ["TFACCEL_LAUNCH_ATTEMPT"])
"""


def launched(code, folder, **options):
    """The exit status of two workers that run this code, and what the launcher said."""
    said = []
    options = LaunchOptions(**{"num_workers": 2, **options})
    command = [sys.executable, "-c", PLACE + code]
    status = launch_local(command, options, hardware=Hardware(), folder=folder / "logs", on_event=said.append)
    return status, said


def test_workers_know_their_cluster_and_have_cores_of_their_own(tmp_path, capfd):
    code = "print(os.environ['TF_CONFIG'], sorted(os.sched_getaffinity(0))); print('warned', file=sys.stderr)"
    status, said = launched(code, tmp_path)
    assert status == 0
    out, err = capfd.readouterr()
    lines = sorted(out.splitlines())
    assert [line[:4] for line in lines] == ["[0] ", "[1] "]
    assert sorted(err.splitlines()) == ["[0] warned", "[1] warned"]
    found = [json.JSONDecoder().raw_decode(line[4:]) for line in lines]
    addresses = found[0][0]["cluster"]["worker"]
    assert found[1][0]["cluster"]["worker"] == addresses and len(set(addresses)) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    cores = [set(json.loads(line[4:][end:])) for line, (_, end) in zip(lines, found, strict=True)]
    if len(os.sched_getaffinity(0)) > 1:
        assert not cores[0] & cores[1]
    assert "warned" in (tmp_path / "logs/worker-1.log").read_text()
    assert said[0].startswith("attempt 1: 2 workers")


def test_exception_is_shown_once_at_the_end_and_ends_all(tmp_path, capfd):
    code = "if index == 1: raise ValueError('no such label')\ntime.sleep(60)"
    started = time.monotonic()
    status, said = launched(code, tmp_path)
    assert (status, time.monotonic() - started < 30) == (1, True)
    assert said[-2] == "Worker 1 of 2 ended with status 1. Starting again would not help."
    assert said[-1].startswith("The end of the output of worker 1:\nTraceback (most recent call last):")
    assert said[-1].endswith("ValueError: no such label")


def test_killed_worker_starts_all_again(tmp_path):
    code = "if attempt == 1 and index == 0: os.kill(os.getpid(), 9)\nif attempt == 1: time.sleep(60)"
    status, said = launched(code, tmp_path)
    assert status == 0
    assert said[1] == (
        "Worker 0 of 2 was killed by SIGKILL (often: out of memory). All workers start again, from the last checkpoint "
        "(restart 1 of 3)."
    )


def test_worker_that_lost_another_is_not_blamed(tmp_path):
    code = "if attempt > 1: sys.exit(0)\nif index == 0: sys.exit(138)\ntime.sleep(1)\nos.kill(os.getpid(), 9)"
    status, said = launched(code, tmp_path)
    assert status == 0
    assert said[1].startswith("Worker 1 of 2 was killed by SIGKILL")


def test_what_a_worker_lost_is_named(tmp_path):
    text = "Worker 1 (127.0.0.1:9) is lost: worker 0 cannot continue. Check the last output there."
    lost = f"print('tfaccel.errors.ClusterError: {text}', file=sys.stderr); sys.exit(138)"
    status, said = launched(f"if attempt > 1: sys.exit(0)\nif index: time.sleep(60)\n{lost}", tmp_path)
    assert status == 0
    assert said[1].startswith(
        "Worker 0 of 2 ended with status 138: Worker 1 (127.0.0.1:9) is lost: worker 0 cannot continue. All workers "
    )


def test_one_worker_has_no_cluster(tmp_path, capfd):
    options = LaunchOptions(num_workers=1)
    command = [sys.executable, "-c", "import os; print(os.environ.get('TF_CONFIG'))"]
    assert launch_local(command, options, hardware=Hardware(), folder=tmp_path / "logs") == 0
    assert capfd.readouterr().out == "[0] None\n"


def test_scripts_keep_what_xla_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    code = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import keras, numpy as np, tfaccel
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=True)
tfaccel.fit(model, np.ones((8, 4)), np.ones((8, 1)), batch_size=4, verbose=0)
"""
    options = LaunchOptions(num_workers=1, shows_output=False)
    counts = []
    for number in range(2):
        folder = tmp_path / f"logs{number}"
        assert launch_local([sys.executable, "-c", code], options, hardware=Hardware(), folder=folder) == 0
        [file] = (tmp_path / "cache").glob("compiled/*/counts.json")
        counts.append(json.loads(file.read_text()))
    assert counts[0]["loaded"] == 0 < counts[0]["compiled"] == counts[1]["loaded"] == counts[1]["compiled"]


def test_restarts_are_limited(tmp_path):
    status, said = launched("sys.exit(138 if index else 0)", tmp_path, max_restarts=1)
    assert status == 138
    assert said[-1].endswith("All 1 restarts are spent (--max_restarts).")


BEATS = """
from tfaccel.processes import heartbeat
heartbeat.begin_if_asked()
heartbeat.note("training", {})
time.sleep(1.3)
"""


def test_same_step_failing_again_and_again_is_final(tmp_path):
    code = BEATS.format(7) + "os.kill(os.getpid(), 9)"
    status, said = launched(code, tmp_path, max_restarts=9)
    assert status == 1
    assert "That was failure 3 in a row at or before step 7: it is not repeated." in "".join(said)


@pytest.mark.parametrize("stops", ["os.kill(os.getpid(), 19)", "__import__('ctypes').PyDLL(None).sleep(60)"])
def test_silent_worker_is_named(tmp_path, stops):
    stops = f"if attempt == 1 and index == 1: {stops}\nif attempt == 1: time.sleep(60)"
    status, said = launched(BEATS.format(7) + stops, tmp_path, silence_seconds=2.0)
    assert status == 0
    assert said[1].startswith("Worker 1 of 2 has given no sign of life for ")
    assert "seconds, while training. All workers start again" in said[1]


def test_script_goes_on_after_its_program_has_ended(tmp_path):
    options = LaunchOptions(num_workers=1, silence_seconds=1.5, max_restarts=0, shows_output=False)
    script = '"$0" -c "$1"; sleep 4; true'
    command = ["sh", "-c", script, sys.executable, "import time\n" + BEATS]
    said = []
    assert launch_local(command, options, hardware=Hardware(), folder=tmp_path / "l", on_event=said.append) == 0, said


def test_silence_is_counted_without_the_clock_of_the_files(tmp_path):
    silence, file = Silence(tmp_path / "beat", os.getsid(0)), tmp_path / "beat"
    assert silence.seconds() == 0.0
    file.write_text(json.dumps({"step": 7, "phase": "training", "pid": os.getpid()}))
    os.utime(file, (1.0, 1.0))  # the clock was set, or the machine slept
    assert silence.seconds() == 0.0
    time.sleep(0.3)
    assert 0.2 < silence.seconds() < 2.0
    os.utime(file)
    assert silence.seconds() == 0.0


STARVED = """
import subprocess
if index == 1:
    for thread in map(int, os.listdir("/proc/self/task")):  # all run on one core, when nothing else would
        os.sched_setaffinity(thread, {max(os.sched_getaffinity(0))})
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    loop = "import os; os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\\nwhile True: pass"
    longest, rounds = 0.0, 0
    while longest <= 2.0 and rounds < 6:  # how long it has to wait is the system's affair
        busy = [subprocess.Popen(["timeout", "8", sys.executable, "-c", loop]) for _ in range(3)]
        beats, rounds = [], rounds + 1
        while busy[0].poll() is None:
            beats.append(os.stat(os.environ["TFACCEL_HEARTBEAT"]).st_mtime)
        longest = max(after - before for before, after in zip(beats, beats[1:]))
    print("longest", longest)
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system cannot starve a process")
def test_worker_that_waits_for_a_processor_is_not_silent(tmp_path):
    status, said = launched(BEATS + STARVED, tmp_path, silence_seconds=2.0, max_restarts=0)
    assert status == 0, said
    log = (tmp_path / "logs/worker-1.log").read_text()
    assert float(log.split()[-1]) > 2.0, log


def test_exception_of_a_worker_that_does_not_end_is_shown_and_final(tmp_path):
    code = "from tfaccel.processes.launched import serve_launcher\nserve_launcher()\n"
    code += "import atexit\natexit.register(time.sleep, 60)\n"  # as TensorFlow does, which waits for the other workers
    code += "if index == 1: raise ValueError('no such label')\ntime.sleep(60)"
    status, said = launched(code, tmp_path)
    assert status == 1
    assert said[-2].startswith("Worker 1 of 2 raised an exception, and did not end within ")
    assert said[-1].endswith("ValueError: no such label")


LAUNCHER = """
import sys
from pathlib import Path
from tfaccel.hardware.hardware import Hardware
from tfaccel.launching.local_worker import LaunchOptions
from tfaccel.launching.local_launcher import launch_local
code, folder, grace_seconds = sys.argv[1:]
options = LaunchOptions(num_workers=2, grace_seconds=float(grace_seconds))
sys.exit(launch_local([sys.executable, "-c", code], options, hardware=Hardware(), folder=Path(folder), on_event=print))
"""
WAITS = """
import os, signal, sys, time
def stop(number, frame):
    print("told", number, flush=True)
    sys.exit({status})
signal.signal({number}, stop)
print("ready", os.getpid(), flush=True)
time.sleep(60)
"""


def signalled(code, folder, send, grace_seconds=60.0):
    """Exit status and output of a launcher to which `send` does something once its two workers are ready."""
    command = [sys.executable, "-c", LAUNCHER, code, str(folder / "logs"), str(grace_seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines = []
    while sum("ready" in line for line in lines) < 2:
        lines.append(process.stdout.readline())
    send(process)
    rest, _ = process.communicate(timeout=60)
    return process.returncode, "".join(lines) + rest


@pytest.mark.parametrize(("number", "status", "ends"), [(signal.SIGTERM, 138, 138), (signal.SIGINT, 130, 130)])
def test_signals_are_passed_on(tmp_path, number, status, ends):
    code = WAITS.format(status=status, number=int(number))
    ended, output = signalled(code, tmp_path, lambda process: process.send_signal(number))
    assert ended == ends
    assert f"[0] told {int(number)}" in output and f"[1] told {int(number)}" in output


def test_workers_that_do_not_stop_are_ended_after_the_grace_time(tmp_path):
    code = WAITS.format(status=0, number=int(signal.SIGUSR2)) + "\n"
    code = code.replace('print("ready"', 'signal.signal(15, signal.SIG_IGN)\nprint("ready"')
    started = time.monotonic()
    ended, _ = signalled(code, tmp_path, lambda process: process.send_signal(signal.SIGTERM), grace_seconds=2.0)
    assert (ended, time.monotonic() - started < 30) == (138, True)


def test_workers_end_with_their_launcher(tmp_path):
    code = WAITS.format(status=0, number=int(signal.SIGUSR2))
    pids = []

    def kill(process):
        process.kill()

    _, output = signalled(code, tmp_path, kill)
    pids = [int(line.split()[-1]) for line in output.splitlines() if "ready" in line]
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(map(_runs, pids))


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1. Received: num_workers=0."),
        ({"num_workers": 2, "max_restarts": -1}, "max_restarts must be a whole number of at least 0."),
        ({"num_workers": 2, "grace_seconds": 0.0}, "grace_seconds must be a number of seconds above 0."),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(LaunchError, match=message):
        LaunchOptions(**options)


def test_command_that_does_not_exist_is_refused(tmp_path):
    options = LaunchOptions(num_workers=2)
    for command, text in (
        (["no-such-program"], r"The command to launch was not found: .no-such-program.\. Give it after"),
        (["python3", "no_such.py"], r"The script to launch was not found: .no_such\.py.\. Give it after"),
    ):
        with pytest.raises(LaunchError, match=text):
            launch_local(command, options, hardware=Hardware(), folder=tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_command_that_a_node_does_not_have_is_named_in_one_line():
    child = subprocess.run(
        [sys.executable, "-m", "tfaccel.launching.worker_program", "", "no-such-program"],
        capture_output=True,
        text=True,
        check=False,
    )
    text = "The command to launch cannot be run on this machine: 'no-such-program': No such file or directory.\n"
    assert (child.returncode, child.stderr) == (1, text)


def test_launcher_in_a_thread_leaves_signals_alone(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(launched("", tmp_path)[0]))
    thread.start()
    thread.join()
    assert found == [0]


def test_nothing_is_written_through_a_symbolic_link(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-1.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        TfaccelError, match=r"The log .*worker-1\.log is a symbolic link, and nothing is written through it"
    ):
        launched("print('x')", tmp_path)
    assert not (tmp_path / "elsewhere").exists()
