"""A run that is killed and resumed gives bit-identical results to an uninterrupted one."""

import json
from functools import cache
from pathlib import Path

import pytest

from tfaccel.training.run.result import TrainResult

HERE = Path(__file__).parent
# Dropout, batch normalization, Adam with EMA, a float16 loss scale, accumulation, early stopping, a plateau schedule.
DEATHS = {"none": "3.validation", "mirrored_2": "1.5"}


NEWEST = {
    "none": ("step_0000000042", "step_0000000044"),
    "mirrored_2": ("step_0000000014", "step_0000000016"),
}


@pytest.fixture(scope="module")
def ended(run_python, tmp_path_factory):
    """A function: placement -> (status of the killed run, its checkpoints, outcomes of `train_workload`, run_dir)."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def run(placement: str):
        run_dir = folder / placement
        killed = run_python("train_workload", run_dir, placement, DEATHS[placement], cwd=HERE, check=False)
        left = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
        # An interrupted write must not matter.
        (run_dir / "checkpoints" / ".step_0000000099-1").mkdir()
        resumed = run_python("train_workload", run_dir, placement, cwd=HERE)
        return killed.returncode, left, *json.loads(resumed.stdout.splitlines()[-1]), run_dir

    return run


@pytest.mark.parametrize("placement", ["none", pytest.param("mirrored_2", marks=pytest.mark.slow)])
def test_resumed_run_equals_whole_run(ended, placement):
    status, left, resumed, _, whole, _ = ended(placement)
    assert status == 7
    newest = [name for name in left if not name.startswith(".")][-1]
    assert newest in NEWEST[placement]  # it was killed while the last one was being written, or just after
    weights, lines, history, final = resumed
    assert [line["epoch"] for line in lines] == list(range(9))  # of 12: stopped early
    assert weights == whole[0]
    assert lines == whole[1]
    assert history == whole[2]
    assert final == whole[3]


@pytest.mark.parametrize("placement", ["none", pytest.param("mirrored_2", marks=pytest.mark.slow)])
def test_finished_run_stays_as_it_is(ended, placement):
    _, _, resumed, again, _, run_dir = ended(placement)
    assert again == resumed
    result = json.loads((run_dir / "result.json").read_text())
    assert result["examples_per_second"] > 0  # recorded by the call that trained
    assert [path.name for path in run_dir.rglob(".*") if not path.name.startswith(".step_0000000099")] == []


@pytest.mark.parametrize("placement", ["none", pytest.param("mirrored_2", marks=pytest.mark.slow)])
def test_result_says_what_was_done(ended, placement):
    run_dir = ended(placement)[-1].with_name(f"{placement}-without-a-stop")
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "checkpoints",
        "config.json",
        "example_inputs.npz",
        "metrics.jsonl",
        "model.keras",
        "plan.json",
        "result.json",
        "tensorboard",
    ]
    result = json.loads((run_dir / "result.json").read_text())
    assert {
        "recipe",
        "plan",
        "history",
        "final",
        "examples_per_second",
        "step_seconds",
        "first_step_seconds",
        "wall_seconds",
        "hardware",
        "versions",
        "run_dir",
    } <= set(result)
    assert result["recipe"] == "small"
    assert result["plan"] == json.loads((run_dir / "plan.json").read_text())
    assert set(result["step_seconds"]) == {"median", "p95"}
    assert 0 < result["step_seconds"]["median"] <= result["step_seconds"]["p95"] < result["wall_seconds"]
    assert result["examples_per_second"] > 0
    assert {"python", "tensorflow", "keras", "numpy", "tfaccel"} <= set(result["versions"])
    assert result["history"]["val_loss"][-1] > 0
    assert set(result["final"]) == {"loss", "mae"}
    assert result["verdict"] == json.loads(json.dumps(TrainResult.from_json(result).verdict.to_json()))
    assert set(result["baselines"]["trivial"]) == {"median"}
    config = json.loads((run_dir / "config.json").read_text())
    assert (config["epochs"], config["seed"], config["global_batch_size"]) == (12, 3, 8)
    assert list((run_dir / "tensorboard").rglob("events*"))
