"""The recipe for detection: what it builds, what it refuses, that it learns under replicas, and what it leaves."""

import json
import re

import pytest
from PIL import Image

from tfaccel.data import scenes_of_digits
from tfaccel.errors import DataError, WorkloadError
from tfaccel.recipes import object_detection as recipe


def test_workload_is_made_without_tensorflow(run_python):
    run_python(
        """
import sys
from tfaccel.recipes import object_detection
object_detection.workload(optimizer="lamb", remat=True)
sys.exit(", ".join({"tensorflow", "keras", "sklearn"} & set(sys.modules)) or 0)
""",
        fresh=True,
    )


@pytest.mark.parametrize("remat", [False, True])
def test_maps_have_a_quarter_of_the_size_and_are_float32(logical_devices, remat):
    import keras

    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        model = recipe.build_model(scenes_of_digits(), width=32, dropout=0.1, remat=remat)
    finally:
        keras.config.set_dtype_policy(policy)
    assert (model.output.shape, model.output.dtype) == ((None, 16, 16, 14), "float32")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"image_size": 128},
            WorkloadError,
            "`image_size` is for your own data. Received: image_size=128 without data_dir.",
        ),
        ({"image_size": 40, "data_dir": "x"}, WorkloadError, "`image_size` must be a multiple of 16, at least 32."),
        ({"data_dir": "nowhere"}, DataError, "There is no folder nowhere (`data_dir`)."),
        ({"dropout": 1}, WorkloadError, "`dropout` must be a number from 0 to below 1."),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recipe.workload(**options)


RUN = """
import sys
from tfaccel import Plan
from tfaccel.recipes import object_detection

devices = ("CPU:0", "CPU:1")
plan = Plan(strategy="mirrored", devices=devices, num_logical_cpus=2, global_batch_size=16, dtype_policy="float32")
result = object_detection.run(run_dir=sys.argv[1], plan=plan, verbose=0, epochs=2, data_dir=sys.argv[2], image_size=32)
print(result.history["loss"])
"""


@pytest.mark.slow
def test_run_on_a_folder_learns_and_leaves_boxes(run_python, tmp_path):
    folder, images, annotations = tmp_path / "data", [], []
    folder.mkdir()
    for i in range(40):
        x, y = 5 * (i % 5), 4 * (i % 4)
        image = Image.new("RGB", (48, 32), (20, 20, 20))
        image.paste((250, 40 * (i % 2), 0), (x, y, x + 16, y + 12))
        image.save(folder / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png"})
        annotations.append({"id": i, "image_id": i, "category_id": i % 2, "bbox": [x, y, 16, 12]})
    categories = [{"id": 0, "name": "red"}, {"id": 1, "name": "orange"}]
    described = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(described))

    losses = json.loads(run_python(RUN, tmp_path / "run", folder).stdout)
    assert losses[1] < losses[0]
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert sorted(scores) == ["ap_50_by_class", "baselines", "map", "map_50"]
    compared = json.loads((tmp_path / "run" / "result.json").read_text())["baselines"]
    assert compared["score"] == scores["map_50"]
    assert compared["baselines"] == scores["baselines"]
    assert 0.5 < scores["baselines"]["SVM on windows of gradients"] <= 1
    boxes = json.loads((tmp_path / "run" / "detections.json").read_text())
    assert all(sorted(box) == ["bbox", "category", "image_id", "score"] for box in boxes)
    with Image.open(tmp_path / "run" / "detections.png") as picture:
        assert picture.size == (4 * 308 + 8, 2 * 308 + 30)


@pytest.mark.slow
def test_digits_are_found(run_python, tmp_path):
    code = "import sys; from tfaccel.recipes import object_detection as o; o.run(run_dir=sys.argv[1], verbose=0)"
    run_python(code, tmp_path / "run", timeout_seconds=900)
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["map_50"] >= 0.98
