"""What a COCO file says of an image is compared with the image: its size, and the orientation that it is shown in."""

import json
import re

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from tfaccel.data.bad_data import BadData
from tfaccel.data.coco_files import read_coco
from tfaccel.errors import DataError
from tfaccel.extras.inspection.inspect_data import inspect_data

pytestmark = pytest.mark.usefixtures("logical_devices")
BOX = (4, 10, 12, 8)  # left, top, width and height of a white rectangle in a shown image of 32 x 64 pixels


def photo(path, orientation, suffix):
    """A black photo with a white rectangle at BOX, stored so that it is shown upright with this orientation."""
    shown = Image.new("RGB", (32, 64))
    left, top, width, height = BOX
    ImageDraw.Draw(shown).rectangle((left, top, left + width - 1, top + height - 1), fill="white")
    exif = Image.Exif()
    back = {6: 8, 8: 6}.get(orientation, orientation)
    exif[0x112] = back
    turned = Image.new("RGB", shown.size)
    turned.paste(shown)
    turned.getexif()[0x112] = back
    stored = ImageOps.exif_transpose(turned)
    exif = Image.Exif()
    exif[0x112] = orientation
    stored.save(path.with_suffix(suffix), exif=exif, quality=100)
    return stored.size


def write(folder, orientation, suffix=".jpg", *, box=BOX, **said):
    sizes = [photo(folder / str(i), orientation, suffix) for i in range(4)]
    images = [{"id": i, "file_name": f"{i}{suffix}", **said} for i in range(4)]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": list(box)} for i in range(4)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "box"}]}
    (folder / "annotations.json").write_text(json.dumps(content))
    return sizes[0]


def brightness(images):
    """The mean inside of the boxes, and in all of the image, of the first training image."""
    split = images.train(0, 0)
    left, top, right, bottom = np.round(split.boxes[0, 0]).astype(int)
    return split.images[0, top:bottom, left:right].mean(), split.images[0].mean()


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("orientation", [1, 5, 6, 7, 8])
def test_boxes_drawn_on_the_shown_photo_stay_on_their_objects(tmp_path, orientation, suffix):
    stored = write(tmp_path, orientation, suffix, width=32, height=64)
    assert stored == ((32, 64) if orientation == 1 else (64, 32))
    inside, overall = brightness(read_coco(tmp_path, image_size=64))
    assert inside > 240
    assert overall < 15


def test_boxes_drawn_on_the_stored_photo_stay_on_their_objects(tmp_path):
    write(tmp_path, 6, width=64, height=32, box=(10, 16, 8, 12))
    assert brightness(read_coco(tmp_path, image_size=64))[0] > 240


def test_of_16_bits_the_high_byte_is_taken(tmp_path):
    write(tmp_path, 1, ".png", width=32, height=64)
    for i in range(4):
        shades = np.full((64, 32), 100 * 256 + 77, np.uint16)
        Image.fromarray(shades).save(tmp_path / f"{i}.png")
    assert brightness(read_coco(tmp_path, image_size=64))[0] == pytest.approx(100, abs=1)


@pytest.mark.parametrize(("orientation", "said"), [(3, {"width": 32, "height": 64}), (6, {}), (6, {"width": 0})])
def test_an_orientation_that_the_size_does_not_explain_is_refused(tmp_path, orientation, said):
    write(tmp_path, orientation, **said)
    text = rf"The image .*0\.jpg has the EXIF orientation {orientation}, and its entry does not tell .*exif_transpose"
    with pytest.raises(DataError, match=text):
        read_coco(tmp_path, image_size=64)


@pytest.mark.parametrize(("width", "height"), [(64, 128), (32, 63), ("x", 1)])
def test_another_size_is_refused(tmp_path, width, height):
    write(tmp_path, 1, width=width, height=height)
    text = re.escape(f"0.jpg has 32x64 pixels, but its entry says width={width!r}, height={height!r}")
    with pytest.raises(DataError, match=text):
        read_coco(tmp_path, image_size=64)
    content = json.loads((tmp_path / "annotations.json").read_text())
    for entry in content["images"][1:]:
        entry |= {"width": 32, "height": 64}
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    found = read_coco(tmp_path, image_size=64, bad_data=BadData("skip", 0.5))
    assert found.num_train_images + found.num_test_images == 3


def test_inspection_names_what_training_refuses(tmp_path):
    write(tmp_path, 1, width=64, height=128)
    kinds = [finding.kind for finding in inspect_data(tmp_path).findings]
    assert kinds.count("other size") == 4
    write(tmp_path, 6, width=32, height=64)
    assert {"other size", "box outside"}.isdisjoint(finding.kind for finding in inspect_data(tmp_path).findings)


@pytest.mark.parametrize("name", ["images", "annotations", "categories"])
@pytest.mark.parametrize("wrong", [[1], {"$oid": "65f1"}, None, True])
def test_an_id_that_is_no_number_or_text_is_named(tmp_path, name, wrong):
    write(tmp_path, 1)
    file = tmp_path / "annotations.json"
    content = json.loads(file.read_text())
    content[name][0]["id"] = wrong
    file.write_text(json.dumps(content))
    text = re.escape(f"The 'id' of entry 0 (from 0) of '{name}' in {file} must be a whole number or a text.")
    for read in (lambda: read_coco(tmp_path, image_size=64), lambda: inspect_data(tmp_path)):
        with pytest.raises(DataError, match=text):
            read()


def test_pixels_are_read_on_use(tmp_path, run_python):
    write(tmp_path, 1, width=32, height=64)
    run_python(
        f"""
import sys
from tfaccel.data.coco_files import read_coco
images = read_coco({str(tmp_path)!r}, image_size=64)
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
assert images.train(0, 0) is images.train(1, 1)
""",
    )


def test_images_of_the_same_name_belong_to_the_file_of_their_part(tmp_path):
    for part, value in (("train", 10), ("test", 200)):
        (tmp_path / part).mkdir()
        for number in range(2):
            Image.new("RGB", (64, 64), (value,) * 3).save(tmp_path / part / f"{number}.png")
        images = [{"id": number, "file_name": f"{number}.png"} for number in range(2)]
        boxes = [{"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 9, 9]} for number in range(2)]
        content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "box"}]}
        (tmp_path / f"{part}.json").write_text(json.dumps(content))
    found = read_coco(tmp_path, image_size=64)
    assert [found.train(0, 0).images.mean(), found.test().images.mean()] == [10, 200]
    assert "leak" not in {finding.kind for finding in inspect_data(tmp_path).findings}
    (tmp_path / "train.json").rename(tmp_path / "annotations.json")
    (tmp_path / "test.json").unlink()
    with pytest.raises(DataError, match=r"names the image '0.png', which is both .*train/0.png and .*test/0.png"):
        read_coco(tmp_path, image_size=64)


@pytest.mark.parametrize(
    ("fields", "num_boxes"),
    [
        ({"iscrowd": 0}, 2),
        ({"iscrowd": "0"}, 2),
        ({"iscrowd": 1, "segmentation": {"counts": [1, 2], "size": [64, 32]}}, 1),
        ({"iscrowd": True}, 1),
        ({"iscrowd": "1"}, 1),
    ],
)
def test_crowds_are_passed_over_and_counted(tmp_path, fields, num_boxes, caplog):
    write(tmp_path, 1)
    content = json.loads((tmp_path / "annotations.json").read_text())
    content["annotations"] += [{"id": 10 + i, "image_id": i, "category_id": 1, "bbox": [1, 1, 5, 5]} for i in range(4)]
    for annotation in content["annotations"][4:]:
        annotation.update(fields)
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    assert read_coco(tmp_path, image_size=64).most_objects == num_boxes
    assert ("4 annotations of crowds" in caplog.text) == (num_boxes == 1)
    assert f"{num_boxes}.0 boxes (mean)" in inspect_data(tmp_path).shape


def test_a_box_of_huge_numbers_is_named(tmp_path):
    write(tmp_path, 1, box=(1, 1, 10**400, 5))
    with pytest.raises(DataError, match="must have a bbox of four numbers"):
        read_coco(tmp_path, image_size=64)
