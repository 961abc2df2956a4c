"""Run directories: which workload they are of, and what is refused."""

import json
import shutil

import pytest

from tfaccel.compressing.outcome_folder import OutcomeFolder
from tfaccel.errors import CompressionError, RunDirError, WorkloadError
from tfaccel.planning.load_workload import check_finished_run, workload_of_run
from tfaccel.recipes import image_classification, object_detection


def left_run(folder, work, **config):
    folder.mkdir()
    kept = {
        "recipe": work.name,
        "options": dict(work.options),
        "epochs": 3,
        "seed": 0,
        "global_batch_size": work.global_batch_size,
    }
    (folder / "config.json").write_text(json.dumps({**kept, **config}))
    for name in ("result.json", "model.keras"):
        (folder / name).write_text("{}")
    return folder


def test_workload_has_the_run_s_options(tmp_path):
    trained = image_classification.workload(optimizer="sgd", label_smoothing=0.0, augmentation="none", image_size=16)
    work = workload_of_run(left_run(tmp_path / "run", trained, global_batch_size=32))
    assert dict(work.options) == dict(trained.options)
    assert (work.global_batch_size, work.epochs) == (32, 3)


def test_options_that_are_the_recipe_s_own_choice_are_left_to_it(tmp_path):
    trained = object_detection.workload()  # Its image_size is recorded, but only taken with images of one's own.
    assert dict(workload_of_run(left_run(tmp_path / "run", trained)).options) == dict(trained.options)


def test_what_is_no_finished_run_is_refused(tmp_path):
    work = image_classification.workload()
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    begun = left_run(tmp_path / "begun", work)
    (begun / "result.json").unlink()
    for path, message in [
        (tmp_path / "none", "There is no run directory"),
        (tmp_path / "file", "is a file. Give the directory of a finished run"),
        (tmp_path / "empty", "it has no config.json, result.json, model.keras. Give one that"),
        (begun, r"it has no result.json. Resume that run \(--resume=auto\)"),
    ]:
        with pytest.raises(RunDirError, match=message):
            check_finished_run(path)
    broken = left_run(tmp_path / "broken", work)
    (broken / "config.json").write_text("{")
    with pytest.raises(RunDirError, match=r"config.json cannot be read .* Give the directory of another run"):
        workload_of_run(broken)


def test_a_run_of_no_recipe_needs_its_workload(tmp_path):
    work = image_classification.workload()
    run_dir = left_run(tmp_path / "run", work, recipe="my_digits")
    with pytest.raises(WorkloadError, match=r"trained 'my_digits', which is not a recipe\. Name its workload"):
        workload_of_run(run_dir)
    with pytest.raises(WorkloadError, match=r"trained 'my_digits'\. Received the workload 'image_class"):
        workload_of_run(run_dir, workload="tfaccel.recipes.image_classification:workload")


def test_a_run_that_is_moved_meanwhile_leaves_another_one_in_its_place_alone(tmp_path):
    run = tmp_path / "run"
    for write in (
        lambda outcome, folder: (folder / "variants" / "model.tflite").write_bytes(b"x"),
        lambda outcome, folder: outcome.keep(folder, None),
    ):
        run.mkdir()
        outcome = OutcomeFolder(run / "compressed")
        message = "/run/compressed is in was moved or emptied, and nothing is written"
        with pytest.raises(CompressionError, match=message), outcome.working_folder() as folder:
            run.rename(tmp_path / "moved")
            run.mkdir()
            write(outcome, folder)
        assert list(run.iterdir()) == []
        run.rmdir()
        shutil.rmtree(tmp_path / "moved")
