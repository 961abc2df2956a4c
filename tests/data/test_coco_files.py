"""Folders in COCO's format: what is read, and what is refused with the entry named."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.box_data import NO_OBJECT
from tfaccel.data.coco_files import read_coco
from tfaccel.errors import DataError

pytestmark = pytest.mark.usefixtures("logical_devices")


def content():
    return {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(10)],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {"id": 100 + i, "image_id": i, "category_id": 7 if i % 2 else 3, "bbox": [10, 20, 30, 10]} for i in range(9)
        ],
    }


def write(folder, described, name="annotations.json"):
    (folder / "images").mkdir(exist_ok=True)
    for i in range(10):
        Image.new("RGB", (80, 40), (i, 0, 0)).save(folder / "images" / f"{i}.png")
    (folder / name).write_text(described if isinstance(described, str) else json.dumps(described))
    return folder


def test_images_are_fitted_and_boxes_with_them(tmp_path):
    images = read_coco(write(tmp_path, content()), image_size=32)
    assert (images.class_names, images.num_train_images, images.num_test_images) == (("cat", "dog"), 8, 2)
    train, test = images.train(0, 0), images.test()
    assert train.images.shape == (8, 32, 32, 3)
    numbers = np.concatenate([train.images, test.images])[:, 0, 0, 0]
    assert sorted(numbers) == list(range(10))
    assert np.array_equal(train.images[:, 20:], np.zeros_like(train.images[:, 20:]))
    for number, box, label in zip(train.images[:, 0, 0, 0], train.boxes[:, 0], train.labels[:, 0], strict=True):
        assert label == (NO_OBJECT if number == 9 else number % 2)
        assert box.tolist() == ([0, 0, 0, 0] if number == 9 else [4, 8, 16, 12])


def test_two_files_are_taken_as_they_are(tmp_path):
    write(write(tmp_path, content(), "train.json"), content(), "test.json")
    images = read_coco(tmp_path, image_size=32)
    assert (images.num_train_images, images.num_test_images) == (10, 10)


def changed(**entry):
    described = content()
    described["annotations"][4] |= entry
    return described


def without(name):
    return {key: value for key, value in content().items() if key != name}


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ('{"images": [', "annotations.json: Expecting value"),
        ("[]", "must have a list 'images' with at least one entry"),
        (without("categories"), "must have a list 'categories'"),
        ({**content(), "images": [{"id": 3}]}, "Entry 0 (from 0) of 'images' in"),
        (changed(id=100), "Two entries of 'annotations' in"),
        (changed(image_id=55), "has the image_id 55, which the file does not have."),
        (changed(category_id=1), "has the category_id 1, which the file does not have."),
        (changed(bbox=[1, 2, 3]), "Annotation 104 in"),
        (changed(bbox=[1, 2, 0, 5]), "has a box without area: bbox=[1, 2, 0, 5]."),
        (changed(bbox=[60, 20, 30, 10]), "lies outside its image 4.png of 80x40 pixels"),
        (changed(bbox=[-5, 20, 30, 10]), "lies outside its image 4.png"),
        (
            {**content(), "images": [*content()["images"], {"id": 99, "file_name": "no.png"}]},
            "there is no file 'no.png'",
        ),
        ({**content(), "categories": [{"id": 7, "name": "x"}, {"id": 3, "name": "x"}]}, "have the same name"),
    ],
)
def test_wrong_entries_are_named(tmp_path, described, message):
    with pytest.raises(DataError, match=re.escape(message)):
        read_coco(write(tmp_path, described), image_size=32)


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(DataError, match="There is no folder nowhere"):
        read_coco("nowhere", image_size=32)
    with pytest.raises(DataError, match=r"There is no .*annotations.json. A folder for detection holds"):
        read_coco(tmp_path, image_size=32)
    write(tmp_path, content(), "train.json")
    with pytest.raises(DataError, match=r"has train\.json, but not both"):
        read_coco(tmp_path, image_size=32)
    write(tmp_path, content(), "test.json")
    (tmp_path / "images" / "3.png").write_text("no image")
    with pytest.raises(DataError, match=r"Cannot read the image .*3.png"):
        read_coco(tmp_path, image_size=32)


def test_crowds_are_left_out(tmp_path):
    images = read_coco(write(tmp_path, changed(iscrowd=1)), image_size=32)
    both = np.concatenate([images.train(0, 0).labels, images.test().labels])
    assert (both != NO_OBJECT).sum() == 8
