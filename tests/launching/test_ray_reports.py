"""What is reported of a run directory while a run goes on, without Ray."""

import json
import os

import pytest

from tfaccel.extras.cluster.ray_worker import RunReports, put_back


@pytest.fixture
def run(tmp_path):
    """Adds to a run directory what training does."""
    (tmp_path / "logs").mkdir()

    class Run:
        path = tmp_path / "run"
        reports = RunReports(path, tmp_path / "logs")

        def add_checkpoint(self, step):
            folder = self.path / "checkpoints" / f"step_{step:010d}"
            folder.mkdir(parents=True)
            (folder / "arrays.npz").write_text(f"weights of step {step}")

        def add_row(self, epoch):
            self.path.mkdir(exist_ok=True)
            with (self.path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"epoch": epoch, "loss": 1.0 / (epoch + 1), "performance": {"mfu": None}}) + "\n")

    return Run()


def test_each_epoch_and_each_checkpoint_is_reported_once(run):
    assert run.reports.news() is None
    run.add_row(0)
    assert run.reports.news().metrics == {"epoch": 0, "loss": 1.0}
    assert run.reports.news() is None
    run.add_checkpoint(5)
    report = run.reports.news()
    assert report.metrics == {"epoch": 0, "loss": 1.0, "checkpoint_step": 5}
    copied = report.folder / "checkpoints" / "step_0000000005" / "arrays.npz"
    assert copied.read_text() == "weights of step 5"
    assert copied.stat().st_ino == (run.path / copied.relative_to(report.folder)).stat().st_ino  # a link
    assert (report.folder / "metrics.jsonl").read_text() == (run.path / "metrics.jsonl").read_text()
    assert run.reports.news() is None


def test_of_several_new_ones_the_newest_is_reported(run):
    for number in (1, 2, 3):
        run.add_checkpoint(number)
        run.add_row(number)
    report = run.reports.news()
    assert report.metrics == {"epoch": 3, "loss": 0.25, "checkpoint_step": 3}
    assert os.listdir(report.folder / "checkpoints") == ["step_0000000003"]


def test_without_room_for_a_copy_the_metrics_are_reported_alone(run, tmp_path, caplog):
    reports = RunReports(run.path, tmp_path / "no such folder" / "logs")
    (tmp_path / "no such folder").write_text("a file")
    run.add_checkpoint(2)
    run.add_row(0)
    report = reports.news()
    assert (report.metrics, report.folder) == ({"epoch": 0, "loss": 1.0}, None)
    assert "The checkpoint step_0000000002 was not reported: " in caplog.text
    assert reports.news() is None


def test_what_an_earlier_attempt_has_left_is_not_reported_again(run, tmp_path):
    run.add_checkpoint(1)
    run.add_row(0)
    assert RunReports(run.path, tmp_path / "logs").news() is None


def test_the_end_is_reported_with_the_model(run):
    run.add_checkpoint(9)
    assert (run.reports.final().metrics, run.reports.final().folder) == ({}, None)
    (run.path / "model.keras").write_text("model")
    (run.path / "result.json").write_text(json.dumps({"final": {"loss": 0.5}}))
    report = run.reports.final()
    assert report.metrics == {"loss": 0.5}
    assert {"model.keras", "result.json", "checkpoints"} <= set(os.listdir(report.folder))


def test_a_reported_run_is_put_where_there_is_none(run, tmp_path):
    run.add_checkpoint(7)
    reported = run.reports.news().folder
    assert put_back(reported, tmp_path / "other")
    assert (tmp_path / "other/checkpoints/step_0000000007/arrays.npz").read_text() == "weights of step 7"
    run.add_checkpoint(8)
    assert not put_back(reported, run.path)
    assert sorted(os.listdir(run.path / "checkpoints")) == ["step_0000000007", "step_0000000008"]
    assert run.reports.news().metrics["checkpoint_step"] == 8
