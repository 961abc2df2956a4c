"""Child processes: what they get, what they say, and that they end with all that they started."""

import os
import signal
import sys

import pytest
from process_cases import python, wait_until_ended

from tfaccel.errors import TfaccelError
from tfaccel.processes.child import Child, ProcessError, how_it_ended, last_words, run_program

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
"""


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with status 0"),
        (-signal.SIGSEGV, "was killed by SIGSEGV (invalid memory access)"),
        (-signal.SIGHUP, "was killed by SIGHUP"),
        (-(signal.SIGRTMIN + 5), f"was killed by signal {signal.SIGRTMIN + 5}"),
    ],
)
def test_every_status_has_words(status, words):
    assert how_it_ended(status) == words


def test_last_words():
    assert last_words("one\n two \n\nthree\n \n", 2) == "two | three"


def test_environment_is_added_removed_or_replaced(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REMOVED", "1")
    code = "import os; print([os.environ.get(name) for name in ('KEPT', 'REMOVED', 'ADDED')])"
    assert run_program(python(code), environment={"REMOVED": None, "ADDED": "2"}) == "['1', None, '2']\n"
    with Child(python(code), base={"ADDED": "3"}) as child:
        assert child.how_it_ended() == "ended with status 0"
        assert child.output() == "[None, None, '3']\n"


def test_a_program_that_fails_is_told_with_its_last_words():
    code = "import sys; print('lost'); sys.exit('no such thing')"
    with pytest.raises(
        ProcessError, match=r"^python\S* ended with status 1\. Its last words: no such thing$"
    ) as caught:
        run_program(python(code))
    assert (caught.value.how, caught.value.output) == ("ended with status 1", "no such thing\n")
    assert isinstance(caught.value, TfaccelError)
    with pytest.raises(ProcessError, match=r"was killed by SIGKILL \(often: out of memory\)\. Its last words: none"):
        run_program(python("import os; os.kill(os.getpid(), 9)"))


def test_a_program_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    code = f"{PARENT}open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    with pytest.raises(ProcessError, match=r"was ended after 2 seconds"):
        run_program(python(code), time_limit_seconds=2)
    assert all(wait_until_ended(int(pid)) for pid in pids.read_text().split())


def test_what_a_program_leaves_behind_is_ended_too():
    with Child(python(PARENT), pipes=("stdout",)) as child:
        pid = int(child.process.stdout.readline())
        assert child.how_it_ended() == "ended with status 0"
    assert wait_until_ended(pid)


def test_output_goes_to_a_log_where_there_is_one(tmp_path):
    log = tmp_path / "child.log"
    log.write_text("before\n")
    with Child(python("print('from it')"), log=log) as child:
        child.how_it_ended()
        assert child.output() == log.read_text() == "before\nfrom it\n"


def test_a_program_that_is_not_there_leaves_nothing_open():
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        Child([f"{sys.executable}-no-such-program"])
    assert os.listdir("/proc/self/fd") == before
