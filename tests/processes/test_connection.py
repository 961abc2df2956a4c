"""Objects go both ways; silence and death are told; a child ends with its parent."""

import os
import subprocess

import numpy as np
import pytest
from process_cases import python, wait_until_ended

from tfaccel.processes.child import ConnectedChild

PROGRAM = """
import os, sys, time
from pathlib import Path
from tfaccel.processes.child import connect_to_parent

print("begins", flush=True)
parent = connect_to_parent(sys.argv, on_orphaned=lambda: Path("orphaned").touch())
parent.send(os.getpid())
while True:
    message = parent.recv()
    if message == "die":
        os.abort()
    if message == "hang":
        time.sleep(600)
    parent.send([sys.argv[2:], message])
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "echo_program.py").write_text(PROGRAM)
    return {"module": "echo_program", "options": (), "environment": {"PYTHONPATH": os.getcwd()}}


def test_objects_go_both_ways_and_a_death_is_told(echo):
    module = echo.pop("module")
    with ConnectedChild(module, "one", **echo) as child:
        assert child.receive(60) == child.process.pid
        for message in (None, {"text": "ü\n"}, 2**70):
            child.send(message)
            assert child.receive(60) == [["one"], message]
        child.send([np.arange(300_000), np.array([b"a\0b", "c"], dtype=object)])
        (_, (numbers, texts)) = child.receive(60)
        np.testing.assert_array_equal(numbers, np.arange(300_000))
        assert texts.tolist() == [b"a\0b", "c"]
        child.send("die")
        with pytest.raises(EOFError):
            child.receive(60)
        assert not child.send("heard by nobody")
        assert child.how_it_ended() == "was killed by SIGABRT (the program aborted itself)"
        assert child.output().startswith("begins\n")


def test_silence_is_told(echo):
    with ConnectedChild(**echo) as child:
        pid = child.receive(60)
        child.send("hang")
        with pytest.raises(TimeoutError):
            child.receive(0.1)
    assert wait_until_ended(pid)


def test_a_child_ends_with_its_parent_though_messages_wait_for_it(echo, tmp_path):
    starter = f"""
import time
from tfaccel.processes.child import ConnectedChild
child = ConnectedChild("echo_program", options=(), environment={echo["environment"]!r})
pid = child.receive(60)
for message in ("hang", "unread", "unread"):
    child.send(message)
print(pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(python(starter), stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.kill()
    assert wait_until_ended(pid)
    assert (tmp_path / "orphaned").exists()
