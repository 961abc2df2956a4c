"""Limits of the machine that were measured while other programs ran are marked, and measured again."""

import json
from pathlib import Path

import pytest

from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring import ceilings
from tfaccel.planning.machine_ceilings import cached_ceilings
from tfaccel.planning.plan import Plan
from tfaccel.processes.fork_server import ForkServer

MACHINE = Hardware(cpu_model="EPYC", num_usable_cores=2)
PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
DISTURBED = {"event": "disturbed", "what": "float32", "value": 0.3}


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """A function that asks for the ceilings, given the speed that would be measured, and whether that is disturbed."""
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ceilings, "_PROGRAM", "ceilings_of_files")
    messages = tmp_path / "messages.json"
    variables = {"MESSAGES": str(messages), "PYTHONPATH": str(Path(__file__).parent)}
    server = ForkServer([], folder=tmp_path, environment=variables)

    class OneServer:
        def of(self, plan):
            return server

    def measure(speed, *, disturbed=False, again=False):
        done = {"event": "done", "matrix_flops_per_second": {"float32": speed}, "bytes_per_second": 1e9}
        messages.write_text(json.dumps([*([DISTURBED] if disturbed else []), done]))
        said = []
        found = ceilings.known_or_measured(
            OneServer(), MACHINE, PLAN, again=again, limit_seconds=60, on_progress=said.append
        )
        return found.matrix_flops("float32"), found.disturbed, said

    yield measure
    server.close()


def test_disturbed_limits_are_kept_until_they_are_measured_again(measure):
    speed, disturbed, said = measure(1e9, disturbed=True)
    assert (speed, disturbed) == (1e9, ("float32",))
    assert "had only 30 % of the CPU: the limit may be too low. It is measured again next time" in said[1]
    assert cached_ceilings(MACHINE, PLAN).disturbed == ("float32",)
    assert measure(2e9, disturbed=True)[:2] == (2e9, ("float32",))
    assert measure(3e9)[:2] == (3e9, ())
    assert measure(4e9)[:2] == (3e9, ())  # known
    assert measure(4e9, again=True)[:2] == (4e9, ())


def test_disturbed_limits_do_not_replace_others(measure):
    measure(3e9)
    speed, disturbed, said = measure(1e9, disturbed=True, again=True)
    assert (speed, disturbed, said[-1]) == (1e9, ("float32",), "the limits that were measured before stay in use")
    assert measure(4e9)[0] == 3e9
