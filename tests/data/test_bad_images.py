"""Damaged images, TFRecord files and COCO folders: named, or exactly what is damaged is left out."""

import json
import shutil

import numpy as np
import pytest
from damage import flip, picture, skipping

from tfaccel.data import BadData, read_coco, read_image_set, write_tfrecords
from tfaccel.errors import DataError


def records(folder, *, numbers=range(24), num_shards=3):
    """Images that come with their number in TFRecord files; record i of shard s has the number 3 i + s."""
    examples = [
        {"image/encoded": picture(number), "image/class/text": "ab"[number % 2], "image/class/label": number % 2}
        for number in numbers
    ]
    return write_tfrecords(examples, folder, num_shards=num_shards)


def contents(images):
    """The bytes and classes of all images of a set, in order."""
    found = []
    for part in images.load():
        encoded = part.images.read(np.arange(len(part.labels)))
        found.append([(data, images.class_names[label]) for data, label in zip(encoded, part.labels, strict=True)])
    return found


def offsets(path):
    """Where each record of a TFRecord file begins, and its length."""
    content, found, place = path.read_bytes(), [], 0
    while place < len(content):
        length = int.from_bytes(content[place : place + 8], "little")
        found.append((place, length))
        place += 16 + length
    return found


def test_a_damaged_record_is_all_that_is_left_out(tmp_path):
    files = records(tmp_path / "bad")
    for record in (2, 5):
        flip(files[1], offsets(files[1])[record][0] + 40)
    with pytest.raises(
        DataError, match=r"Record 2 \(from 0\) of .*00001-of-00003.tfrecord is damaged: its checksum .*skip"
    ):
        read_image_set(tmp_path / "bad")
    bad = skipping()
    found = read_image_set(tmp_path / "bad", bad_data=bad)
    assert bad.to_json()["files"] == {
        str(files[1]): {
            "num_skipped": 2,
            "places": [2, 5],
            "reason": f"Record 2 (from 0) of {files[1]} is damaged: its checksum is wrong. "
            "Write or copy the file again.",
        }
    }
    records(
        tmp_path / "clean",
        numbers=[n for n in sorted(range(24), key=lambda n: (n % 3, n)) if n not in (7, 16)],
        num_shards=1,
    )
    assert contents(found) == contents(read_image_set(tmp_path / "clean"))


def test_after_a_damaged_length_the_rest_of_the_file_is_lost_and_estimated(tmp_path):
    files = records(tmp_path)
    flip(files[0], offsets(files[0])[5][0] + 1)
    files[2].write_bytes(files[2].read_bytes()[:-3])
    bad = skipping()
    found = read_image_set(tmp_path, bad_data=bad)
    lost = {path: (entry["num_skipped"], entry["places"]) for path, entry in bad.to_json()["files"].items()}
    assert lost == {str(files[0]): (3, [5]), str(files[2]): (1, [7])}
    assert (found.num_train_images + found.num_test_images, bad.num_read, bad.num_skipped) == (20, 20, 4)
    with pytest.raises(DataError, match=r"Record 5 \(from 0\) of .* the checksum of its length is wrong"):
        read_image_set(tmp_path)


def test_empty_and_missing_shards_are_named_and_count_as_average_ones(tmp_path):
    files = records(tmp_path, num_shards=6)
    files[1].write_bytes(b"")
    files[4].unlink()
    with pytest.raises(DataError, match=r"There is no file .*-00004-of-00006.tfrecord, one of 6\. Copy it as well\."):
        read_image_set(tmp_path)
    bad = skipping()
    read_image_set(tmp_path, bad_data=bad)
    assert {path: entry["num_skipped"] for path, entry in bad.to_json()["files"].items()} == {
        str(files[4]): 3,  # 16 records in 5 files
        str(files[1]): 3,
    }
    with pytest.raises(
        DataError, match=r"6 of 22 images \(27.27%\) cannot be read, more than max_bad_fraction=0.01: 3 in "
    ):
        read_image_set(tmp_path, bad_data=BadData("skip"))
    shutil.copy(files[0], files[4])
    with pytest.raises(DataError, match=rf"{files[1]} is empty \(0 bytes\)\. Write or copy the file again\."):
        read_image_set(tmp_path)


def test_damage_inside_of_whole_records_is_found_too(tmp_path):
    examples = [{"image/encoded": picture(n), "image/class/text": "ab"[n % 2]} for n in range(12)]
    examples[0] = {"something": 1}
    examples[3] |= {"image/encoded": picture(3)[:200]}
    examples[6] |= {"image/encoded": b""}
    (file,) = write_tfrecords(examples, tmp_path / "bad")
    bad = skipping()
    found = read_image_set(tmp_path / "bad", bad_data=bad)
    assert bad.to_json()["files"][str(file)]["places"] == [0, 3, 6]
    write_tfrecords([example for n, example in enumerate(examples) if n not in (0, 3, 6)], tmp_path / "clean")
    assert contents(found) == contents(read_image_set(tmp_path / "clean"))


def image_folder(folder, form="png"):
    for number in range(12):
        path = folder / "ab"[number % 2] / f"{number:02}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number, "PNG" if form == "png" else "JPEG"))


@pytest.mark.parametrize("form", ["png", "jpg"])
def test_images_of_folders_are_left_out_as_if_they_were_removed(tmp_path, form):
    image_folder(tmp_path, form)
    bad_files = [tmp_path / "a" / f"00.{form}", tmp_path / "b" / f"03.{form}", tmp_path / "a" / f"08.{form}"]
    bad_files[0].write_bytes(b"")
    bad_files[1].write_bytes(bad_files[1].read_bytes()[:-1])  # the last byte, which Pillow does not miss
    flip(bad_files[2], 0)
    with pytest.raises(DataError, match=rf'Cannot read the image {bad_files[0]}: it is not .*on_bad_data="skip"'):
        read_image_set(tmp_path)
    bad = skipping()
    found = read_image_set(tmp_path, bad_data=bad)
    assert {path: entry["num_skipped"] for path, entry in bad.to_json()["files"].items()} == dict.fromkeys(
        sorted(map(str, bad_files)), 1
    )
    for file in bad_files:
        file.unlink()
    clean = read_image_set(tmp_path)
    assert [part.images for part in found.load()] == [part.images for part in clean.load()]
    assert (found.num_train_images, found.image_size) == (clean.num_train_images, clean.image_size)


def test_a_class_of_which_no_image_is_left_is_not_trained_on(tmp_path):
    for part in ("train", "test"):
        image_folder(tmp_path / part)
    for file in (tmp_path / "train" / "b").iterdir():
        file.write_bytes(b"")
    with pytest.raises(DataError, match=r"Class 'b' of .* must have at least one, to train on\. Received: 0\."):
        read_image_set(tmp_path, bad_data=skipping())
    with pytest.raises(DataError, match=r"Class 'b' of .* must have at least two, .* to test with\. Received: 0\."):
        read_image_set(tmp_path / "train", bad_data=skipping())


def test_whatever_passes_the_check_can_be_decoded_by_tensorflow(logical_devices):
    import tensorflow as tf

    from tfaccel.data.images.image_check import check_image

    generator = np.random.default_rng(0)
    num_decoded = 0
    for form in ("PNG", "JPEG"):
        whole = picture(0, form)
        for case in range(800):
            content = bytearray(whole)
            place = int(generator.integers(len(content)))
            if case % 4 == 0:
                content = content[: len(content) - int(generator.integers(1, 30))]
            elif case % 4 == 1:
                content[place] ^= 1 << int(generator.integers(8))
            elif case % 4 == 2:
                content[place : place + 40] = bytes(len(content[place : place + 40]))
            else:
                content[-1 - place % 20] = int(generator.integers(256))
            try:
                check_image(bytes(content), "image")
            except DataError:
                continue
            tf.io.decode_image(bytes(content), channels=3, expand_animations=False)
            num_decoded += 1
    assert num_decoded > 100


def test_images_with_nan_are_left_out_and_a_damaged_archive_is_not(tmp_path):
    path, images, labels = tmp_path / "set.npz", np.random.default_rng(0).random((12, 8, 8)), np.arange(12) % 2
    images[[2, 9], 3, 3] = np.nan
    np.savez(path, x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    with pytest.raises(DataError, match=r"x_train in .* holds NaN or infinity, first in image 2"):
        read_image_set(path)
    bad = skipping()
    train, test = read_image_set(path, bad_data=bad).load()
    kept = [row for row in range(12) if row not in (2, 9)]
    np.testing.assert_array_equal(train.images[..., 0], images[kept].astype(np.float32))
    assert (train.labels.tolist(), len(test.labels), bad.num_skipped) == (labels[kept].tolist(), 2, 2)
    flip(path, 300)
    with pytest.raises(DataError, match="Cannot read"):
        read_image_set(path, bad_data=skipping())


def coco(folder, *, leave_out=()):
    folder.mkdir(exist_ok=True)
    entries = [{"id": n, "file_name": f"{n}.png"} for n in range(20) if n not in leave_out]
    for entry in entries:
        (folder / entry["file_name"]).write_bytes(picture(entry["id"]))
    boxes = [
        {"id": n, "image_id": e["id"], "category_id": e["id"] % 2, "bbox": [2, 3, 8, 9]} for n, e in enumerate(entries)
    ]
    classes = [{"id": n, "name": "ab"[n]} for n in range(2)]
    content = {"images": entries, "annotations": boxes, "categories": classes}
    (folder / "annotations.json").write_text(json.dumps(content))
    return content


def test_images_with_boxes_are_left_out_with_all_their_boxes(tmp_path):
    content = coco(tmp_path / "bad")
    (tmp_path / "bad" / "3.png").unlink()
    (tmp_path / "bad" / "7.png").write_bytes(picture(7)[:300])
    content["annotations"][11]["bbox"] = [2, 3, float("nan"), 9]
    content["annotations"][12]["bbox"] = [2, 3, 80, 9]
    content["annotations"].append({"id": 99, "image_id": 77, "category_id": 0, "bbox": [1, 1, 2, 2]})
    (tmp_path / "bad" / "annotations.json").write_text(json.dumps(content))
    bad = skipping()
    found = read_coco(tmp_path / "bad", image_size=32, bad_data=bad)
    coco(tmp_path / "clean", leave_out=(3, 7, 11, 12))
    clean = read_coco(tmp_path / "clean", image_size=32)
    for a, b in ((found.train(0, 0), clean.train(0, 0)), (found.test(), clean.test())):
        for name in ("images", "boxes", "labels"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    json_file = str(tmp_path / "bad" / "annotations.json")
    files = bad.to_json()["files"]
    assert sorted(files[json_file]["places"]) == [3, 7, 11, 12]
    assert files[f"{json_file} (annotations)"]["places"] == [20]
    with pytest.raises(DataError, match=r"Annotation 11 .* has a box without area.*skip"):
        read_coco(tmp_path / "bad", image_size=32)


def test_files_that_may_not_be_read_are_never_left_out(tmp_path):
    image_folder(tmp_path)
    (tmp_path / "a" / "00.png").unlink()
    (tmp_path / "a" / "00.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"Cannot read the image .*00\.png: No such file or directory\."):
        read_image_set(tmp_path, bad_data=skipping())
