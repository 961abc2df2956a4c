"""A full disk, made by a limit on the size of files: one clear line, and no file half-written."""

import json
import re
from pathlib import Path

import pytest

LIMITED = """
import json, resource, sys
from tfaccel.scripts.main import main

for limit, folder in ((2_000, "none"), (60_000, "checkpoint")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    small = ["--recipe=image_classification", "--epochs=1", "--width=4", "--xla=off", "--set=augment_on=host"]
    status = main(["tfaccel", "train", *small, "--quiet", f"--run_dir={folder}"])
    print(status, flush=True)
"""


@pytest.mark.slow
def test_training_ends_with_one_line_and_whole_files(run_python, tmp_path):
    child = run_python(LIMITED, cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": None}, fresh=True)
    assert child.stdout.split() == ["2", "2"]
    lines = child.stderr.splitlines()
    assert [line.partition(" cannot be written")[0] for line in lines] == [
        "tfaccel train: The run directory none",
        "tfaccel train: The run directory checkpoint",
    ]
    assert "File too large. Free space, and resume the run: resume=" in lines[1]
    left = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert [path for path in left if path.name.startswith(".") or path.suffix == ".keras"] == []
    for path in left:
        if path.suffix == ".json":
            json.loads(path.read_text())
    assert re.fullmatch(r"step_\d+", next((tmp_path / "checkpoint/checkpoints").iterdir()).name)
