"""`tfaccel roofline`: known limits of the machine, and a workload in a file beside the user."""

import json
from pathlib import Path

import pytest

from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.machine_ceilings import MachineCeilings, keep_ceilings
from tfaccel.planning.workload import Workload
from tfaccel.scripts import roofline

CASES = Path(__file__).parent.parent / "measuring"
CEILINGS = MachineCeilings(
    device="CPU", matrix_flops_per_second={"float32": 1e11}, bytes_per_second=1e10, measured="2026-01-31"
)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    nothing = Workload("nothing", object, dict, lambda *args, **kwargs: None, global_batch_size=1)
    return keep_ceilings(detect_hardware(), default_plan(detect_hardware(), nothing, devices=("CPU:0",)), CEILINGS)


def test_known_limits_are_printed(kept, capsys):
    assert roofline.run(["tfaccel roofline", "--devices=CPU:0", "--json"]) == 0
    assert MachineCeilings.from_json(json.loads(capsys.readouterr().out)) == CEILINGS
    assert roofline.run(["tfaccel roofline", "--devices=CPU:0"]) == 0
    shown = capsys.readouterr()
    assert "matrix products, float32" in shown.out
    assert "100 GFLOP/s" in shown.out
    assert "10 FLOP/byte" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--write=roofline.svg",
            "--write must be a PNG file in an existing directory.",
        ),
        ("--write=roofline.png", "--write needs a workload."),
        ("--optimizer=sgd", "--optimizer needs a workload."),
        ("--limit_seconds=0", "--limit_seconds must be positive. Received: --limit_seconds=0."),
        ("--report=nowhere/report.json", "--report must be a file in an existing directory."),
    ],
)
def test_wrong_flags(capsys, argument, message):
    assert roofline.run(["tfaccel roofline", argument]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_workload_is_measured_and_drawn(run_python, tmp_path, kept):
    environment = {"TFACCEL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(CASES)}
    arguments = ["--workload=fastest_cases:workload", "--devices=CPU:0", "--write=roof.png", "--report=roof.json"]
    shown = run_python("tfaccel.scripts.main", "roofline", *arguments, env=environment, cwd=tmp_path)
    assert "A step of " in shown.stdout
    assert "Bound by " in shown.stdout
    assert "measuring the machine's limits" not in shown.stderr
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "roof.json").read_text())["ceilings"] == CEILINGS.to_json()
