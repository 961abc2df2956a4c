"""`tfaccel estimate-scaling` and `tfaccel plan --compare`: tables, JSON, the picture, one clear line for bad input."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from tfaccel.extras.estimates.device_comparison import DeviceComparison
from tfaccel.extras.estimates.scaling import ScalingEstimate
from tfaccel.scripts import estimate_scaling as command
from tfaccel.scripts import plan as plan_command

CASES = Path(__file__).parent.parent / "measuring"
OURS = "--workload=scaling_cases:workload"
LINK = {"name": "ours", "machine_latency_seconds": 1e-4, "machine_bytes_per_second": 1e8}
T4 = {"devices": [{"kind": "GPU", "index": 0, "model": "Tesla T4"}]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "link.json").write_text(json.dumps({"interconnect": LINK}))
    (tmp_path / "t4.json").write_text(json.dumps(T4))
    (tmp_path / "mine.py").write_text(
        "from tfaccel.planning.workload import Workload\n\n"
        "def workload():\n    return Workload('mine', object, dict, list, global_batch_size=64)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.slow
def test_table_json_and_picture(run_python, folder):
    environment = {"PYTHONPATH": str(CASES), "TFACCEL_CACHE": str(folder / "cache")}
    flags = ("--replicas=8,1", "--hardware=link.json", "--step_seconds=0.01", "--price_per_device_hour=2")
    arguments = (OURS, *flags, "--write=scaling.png", "--scaling=strong")
    done = run_python("tfaccel.scripts.main", "estimate-scaling", *arguments, env=environment, cwd=folder)
    assert "Predicted scaling of scaling_cases over ours" in done.stdout
    assert "cost of 1e6 examples" in done.stdout
    assert "step of one device: 0.01 s (given), 32 examples" in done.stdout
    assert "gradients: 4,872 bytes in 1 message(s)" in done.stdout
    assert "estimate-scaling: building the model" in done.stderr
    with Image.open(folder / "scaling.png") as picture:
        assert picture.size == (800, 420)
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10


@pytest.mark.slow
def test_json_and_measured_network(run_python, folder):
    environment = {"PYTHONPATH": str(CASES), "TFACCEL_CACHE": str(folder / "cache")}

    def tfaccel(*arguments):
        return run_python("tfaccel.scripts.main", *arguments, env=environment, cwd=folder, timeout_seconds=500)

    first, second = (tfaccel("estimate-scaling", OURS, "--replicas=1,2", "--json") for _ in range(2))
    found = [ScalingEstimate.from_json(json.loads(done.stdout)) for done in (first, second)]
    assert found[0].interconnect == found[1].interconnect
    assert found[0].step.source == "measured"
    assert "measuring all-reduces" in first.stderr
    assert "measuring all-reduces" not in second.stderr
    assert (found[0].step.device, bool(found[0].step.device_model)) == ("CPU:0", True)
    quiet = tfaccel("estimate-scaling", OURS, "--hardware=link.json", "--step_seconds=1", "--quiet", "--json")
    assert "estimate-scaling:" not in quiet.stderr
    compared = tfaccel("plan", OURS, "--compare=gpu,cpu", "--hardware=t4.json", "--epochs=3")
    assert "Tesla T4 │ estimated" in compared.stdout
    assert "The GPU " in compared.stdout


def test_comparison_of_given_times(folder, capsys):
    given = ("--workload=mine:workload", "--hardware=t4.json", "--cpu_step_seconds=0.1", "--gpu_step_seconds=0.01")
    assert plan_command.run(["tfaccel plan", *given, "--compare=cpu,gpu", "--num_examples=10000", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "The GPU takes less time from 7,112 examples per epoch on, with 1 epoch(s). With 10,000 it pays." in out
    assert plan_command.run(["tfaccel plan", *given, "--compare=CPU, GPU", "--json"]) == 0
    found = DeviceComparison.from_json(json.loads(capsys.readouterr().out))
    assert (found.break_even_examples, found.num_examples) == (7112, None)
    slower = [text.replace("gpu_step_seconds=0.01", "gpu_step_seconds=0.2") for text in given]
    assert plan_command.run(["tfaccel plan", *slower, "--compare=cpu,gpu"]) == 0
    assert "The GPU never takes less time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare=cpu"], "Two kinds are compared, each once. Give --compare=cpu,gpu. Received: --compare=cpu."),
        (["--compare=cpu,tpu"], "There is no kind 'tpu' to compare. Give --compare=cpu,gpu."),
        (
            ["--compare=cpu,gpu", "--hardware=link.json"],
            "In the hardware file 'link.json': Hardware has no such field.",
        ),
        (["--compare=cpu,gpu", "--hardware=t4.json", "--write=a.json"], "--write is for a plan."),
        (["--compare=cpu,gpu", "--hardware=t4.json", "--strategy=none"], "The comparison chooses strategy."),
        (["--compare=cpu,gpu", "--gpu_reached_fraction=2"], "reached_fraction must be above 0, and at most 1."),
        (["--epochs=3"], "--epochs needs --compare=cpu,gpu."),
    ],
)
def test_bad_comparison_is_one_line_and_status_2(folder, capsys, arguments, message):
    status = plan_command.run(["tfaccel plan", "--workload=mine:workload", *arguments])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas=1,x"], "--replicas must be whole numbers, such as 1,2,4. Received: 'x'."),
        (["--replicas=0"], "replicas must be whole numbers from 1 to 1,000,000"),
        (["--scaling=week"], "scaling must be one of weak, strong. Received: scaling='week'."),
        (["--interconnect=dgx_a10"], "There is no interconnect 'dgx_a10'. Did you mean 'dgx_a100'?"),
        (["--interconnect=dgx_a100", "--measure"], "Received: --interconnect, --measure."),
        (["--hardware=t4.json"], "It describes a machine, but not what connects machines."),
        (["--hardware=nowhere.json"], "Cannot read the hardware file 'nowhere.json'"),
        (["--hardware=link.json", "--write=a.jpg"], "--write must be a PNG file in an existing directory."),
        (
            ["--hardware=link.json", "--step_seconds=-1"],
            "`step_seconds` must be a number above 0. Received: step_seconds=-1.0.",
        ),
        (["--hardware=link.json", "--scaling=strong", "--replicas=65"], "64 examples has too few for 65 replicas."),
    ],
)
def test_bad_input_is_one_line_and_status_2(folder, capsys, arguments, message):
    status = command.run(["tfaccel estimate-scaling", "--workload=mine:workload", *arguments])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tfaccel estimate-scaling: ")
    assert message in err


def test_workload_must_be_named(folder, capsys):
    assert command.run(["tfaccel estimate-scaling", "--hardware=link.json"]) == 2
    assert "Give --recipe=NAME or --workload=package.module:function. Received: neither." in capsys.readouterr().err
