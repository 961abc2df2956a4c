"""Processes made by forks: what they get and say, how they end, and that none outlives its search."""

import os
import subprocess
import sys
import time

import psutil
import pytest
from process_cases import python, wait_until_ended

from tfaccel.processes.fork_server import ForkServer

CASES = """
import os, subprocess, sys, time

LOADED = os.getpid()

def main(parent, arguments):
    parent.send({"loaded": LOADED, "pid": os.getpid(), "given": [*arguments, os.environ.get("GIVEN")]})
    while True:
        order = parent.recv()
        if order == "exit":
            print("its last words")
            sys.exit(3)
        if order == "raise":
            raise ValueError("odd")
        if order == "leave":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            parent.send(child.pid)
            os.abort()
        if order == "input":
            order = sys.stdin.read()
        parent.send(order)
"""

TALKING = """
import os, struct, time

def main(parent, arguments):
    os.write(parent.fileno(), struct.pack("!i", 1000) + b"the beginning of it")
    time.sleep(0.2)
    os.kill(os.getpid(), 9)
"""

FORGETFUL = """
import os

def main(parent, arguments):
    number = parent.fileno()
    del parent
    os.fstat(number)  # still open
    return 5
"""


OPTIONAL = """
try:
    import colorsys
except ImportError:
    colorsys = None

def main(parent, arguments):
    import colorsys as later
    parent.send((colorsys is None, later.__name__))
    return 0
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forked_cases.py").write_text(CASES)
    monkeypatch.setenv("REMOVED", "1")
    before = psutil.Process().children(recursive=True)
    server = ForkServer(["forked_cases"], folder=tmp_path, environment={"REMOVED": None})
    yield server
    server.close()
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def messages_of(server, *children, count):
    """The next messages of several children, each in order; others fail the test."""
    found = {child.name: [] for child in children}
    deadline = time.monotonic() + 60
    while sum(map(len, found.values())) < count:
        child, message = server.next_message(0.2)
        if child is not None:
            found[child.name].append(message)
        assert time.monotonic() < deadline
    return [found[child.name] for child in children]


def test_process_that_lets_its_connection_go_ends_by_itself(server, tmp_path):
    (tmp_path / "forked_forgetful.py").write_text(FORGETFUL)
    child = server.start("forgetful", "forked_forgetful", [], {})
    assert messages_of(server, child, count=1) == [[None]]
    assert child.status == 5


def test_modules_are_left_out_while_others_are_loaded_and_can_be_imported_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forked_optional.py").write_text(OPTIONAL)
    server = ForkServer(["forked_optional"], folder=tmp_path, left_out=["colorsys", "json"])  # json is there already
    try:
        child = server.start("optional", "forked_optional", [], {})
        assert messages_of(server, child, count=2) == [[(True, "colorsys"), None]]
        assert child.status == 0
    finally:
        server.close()


def test_processes_are_forks_of_one_that_has_loaded_its_modules(server, tmp_path):
    one = server.start("one", "forked_cases", ["a"], {"GIVEN": "1"})
    other = server.start("other", "forked_cases", ["b"], {})
    for child in (one, other):
        for message in ("first", {"second": (1, None)}, "input", "exit"):
            child.send(message)
    for child, given, found in zip(
        (one, other), (["a", "1"], ["b", None]), messages_of(server, one, other, count=10), strict=True
    ):
        assert found[0]["given"] == given
        assert found[0]["loaded"] not in (found[0]["pid"], os.getpid())
        assert found[1:] == ["first", {"second": (1, None)}, "", None]
        child.send("heard by nobody")
        assert (child.status, child.how_it_ended()) == (3, "ended with status 3")
    assert server.end_of_log(one) == "its last words"
    assert (tmp_path / "other.log").read_text() == "its last words\n"
    assert server.next_message(0.0) == (None, None)


def test_every_end_is_told_after_all_messages(server):
    raises, leaves, hangs = (server.start(kind, "forked_cases", [], {}) for kind in ("raises", "leaves", "hangs"))
    raises.send("raise")
    leaves.send("leave")
    first, second, third = messages_of(server, raises, leaves, hangs, count=6)
    assert (first[1:], raises.how_it_ended()) == ([None], "ended with status 1")
    assert server.end_of_log(raises).endswith("ValueError: odd")
    assert (second[2:], leaves.how_it_ended()) == ([None], "was killed by SIGABRT (the program aborted itself)")
    assert wait_until_ended(second[1])  # what it had started
    assert hangs.status is None
    server.kill(hangs)
    server.kill(raises)  # which has ended: ignored
    assert messages_of(server, hangs, count=1) == [[None]]
    assert hangs.how_it_ended() == "was killed by SIGKILL (often: out of memory)"
    assert len(third) == 1


def test_when_the_server_dies_its_processes_end_and_are_told(server):
    child = server.start("one", "forked_cases", [], {})
    ((told,),) = messages_of(server, child, count=1)
    psutil.Process(told["loaded"]).kill()
    assert messages_of(server, child, count=1) == [[None]]
    assert child.how_it_ended().startswith("was killed by SIGKILL")
    assert wait_until_ended(told["pid"])
    late = server.start("late", "forked_cases", [], {})
    late.send("heard by nobody")
    assert messages_of(server, late, count=1) == [[None]]


def test_a_server_that_cannot_load_is_told_with_its_last_words(tmp_path):
    server = ForkServer(["no_such_module"], folder=tmp_path)
    try:
        child = server.start("one", "no_such_module", [], {})
        assert messages_of(server, child, count=1) == [[None]]
        assert server.end_of_log(child).endswith("ModuleNotFoundError: No module named 'no_such_module'")
    finally:
        server.close()


def test_all_end_with_their_owner(tmp_path):
    (tmp_path / "forked_cases.py").write_text(CASES)
    owner = """
import time
from pathlib import Path
from tfaccel.processes.fork_server import ForkServer
server = ForkServer(["forked_cases"], folder=Path.cwd())
child = server.start("one", "forked_cases", [], {})
message = None
while message is None:
    _, message = server.next_message(1.0)
print(message["pid"], message["loaded"], flush=True)
time.sleep(600)
"""
    with subprocess.Popen(python(owner), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    assert all(wait_until_ended(pid) for pid in pids)


def test_no_tensorflow():
    modules = "tfaccel.processes.child, tfaccel.processes.fork_server, tfaccel.processes.local_cluster"
    code = f"import sys, {modules}; sys.exit(len({{'tensorflow', 'keras', 'numpy'}} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_end_where_the_owner_goes_without_reading_all(server):
    first, second = (server.start("worker", "forked_cases", [], {}) for _ in range(2))
    pids = [message["pid"] for (message,) in messages_of(server, first, second, count=2)]
    first.send("exit")
    assert wait_until_ended(pids[0])
    time.sleep(0.3)  # the server says so, and nobody reads it
    server.close()
    assert wait_until_ended(pids[1])
    assert "ConnectionResetError" not in server._log.read_text()


def test_a_process_that_dies_in_the_middle_of_a_message_has_ended(server, tmp_path):
    (tmp_path / "talking_cases.py").write_text(TALKING)
    child = server.start("worker", "talking_cases", [], {})
    deadline, message = time.monotonic() + 60, ""
    while message is not None:
        found, message = server.next_message(0.2)
        message = "" if found is None else message
        assert time.monotonic() < deadline
    assert child.how_it_ended() == "was killed by SIGKILL (often: out of memory)"
