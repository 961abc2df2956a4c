"""Two workers that are killed and restarted give bit-identical results to two uninterrupted ones."""

import json
import sys
from pathlib import Path

import pytest

from tfaccel.processes.local_cluster import WorkerError, run_local_cluster

HERE = Path(__file__).parent


def outcomes(run_dir, die_at="never"):
    """The outcome on each of two workers."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import train_workload; train_workload.once(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(run_dir), "workers_2", die_at]
    workers = run_local_cluster(command, num_workers=2, time_limit_seconds=200)
    return [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]


@pytest.mark.slow
def test_resumed_workers_end_as_if_never_stopped(tmp_path):
    with pytest.raises(WorkerError, match="status 7"):
        outcomes(tmp_path / "run", "1.5")
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    resumed = outcomes(tmp_path / "run")
    whole = outcomes(tmp_path / "whole")
    newest = [name for name in left if not name.startswith(".")][-1]
    assert newest in ("step_0000000014", "step_0000000016")  # written, or being written
    assert resumed[0] == resumed[1]
    assert whole[0] == whole[1]
    assert resumed[0] == whole[0]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 2
