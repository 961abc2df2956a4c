"""Sharded slots on two workers: the weights of replicated ones, half of the memory, whole files and checkpoints."""

import json
import sys
from pathlib import Path

import pytest

from tfaccel.processes.local_cluster import run_local_cluster

HERE = Path(__file__).parent
ALL = (
    *("momentum", "AdamW", "Lamb", "Adafactor", "Muon", "Nadam", "RMSprop"),
    *("global_clipnorm", "loss scale", "EMA", "Adam", "accumulation"),
)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("Adam",), ALL, ("EMA",)])
def test_two_workers(tmp_path, names):
    program = str(HERE / "optimizer_state_program.py")
    workers = run_local_cluster([sys.executable, program, str(tmp_path), *names], num_workers=2, time_limit_seconds=400)
    found = [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]
    for worker, one in enumerate(found):
        assert one["differences"] == dict.fromkeys(names, 0.0)
        assert one["resumed"] == 0.0
        assert 0 < one["bytes"][1] < one["bytes"][0]
        held = f"The slot NAME is held by worker {1 - worker}, since optimizer_state='sharded'"
        assert one["messages"] == [
            f"{held}, so that this worker cannot assign it. Use optimizer_state='replicated'.",
            f"{held}. Read it on the chief after training, save with `tfaccel.Resume` while training, or use "
            "optimizer_state='replicated'.",
        ]
    assert found[0]["bytes"][0] == found[0]["bytes"][1] + found[1]["bytes"][1]
    assert found[0]["saved"] == 0.0
