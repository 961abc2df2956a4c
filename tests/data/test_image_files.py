"""Images from folders: what is listed, checked and split, and one clear message for everything that cannot be."""

import os
import re

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.images.files import read_image_set
from tfaccel.data.images.image_data import ImageData
from tfaccel.errors import DataError

NO_IMAGE = "holds no image: no file that ends in .png, .jpg, .jpeg, .bmp, .gif."


def save(path, *, size=(12, 10), mode="RGB", seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 256) if mode == "I;16" else Image.fromarray(pixels)
    (image if image.mode == mode else image.convert(mode)).save(path)
    return path


def make_classes(folder, *, classes=("cat", "dog"), num_images=5, **options):
    for name in classes:
        for index in range(num_images):
            save(folder / name / f"{index}.png", seed=index, **options)
    return folder


def test_classes_are_the_folders_in_order_and_a_fifth_is_for_testing(tmp_path):
    images = read_image_set(make_classes(tmp_path, classes=("dog", "cat", "Ant")))
    train, test = images.load()
    assert images.class_names == ("Ant", "cat", "dog")
    assert (images.num_train_images, images.num_test_images) == (len(train.images), len(test.images)) == (12, 3)
    assert sorted(test.labels) == [0, 1, 2]
    for part in (train, test):
        assert [name.split("/")[-2] for name in part.images] == [images.class_names[label] for label in part.labels]
    assert not set(train.images) & set(test.images)
    assert read_image_set(tmp_path).load()[1].images == test.images


@pytest.mark.parametrize(("first", "second"), [("train", "test"), ("Training", "Testing")])
def test_folders_train_and_test_are_the_split(tmp_path, first, second):
    make_classes(tmp_path / first, num_images=3)
    make_classes(tmp_path / second, num_images=2)
    images = read_image_set(tmp_path)
    train, test = images.load()
    assert images.class_names == ("cat", "dog")
    assert (len(train.images), len(test.images)) == (6, 4)
    assert all(f"/{second}/" in name for name in test.images)


def test_other_files_are_passed_over(tmp_path):
    make_classes(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._0.png").write_text("no image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "readme.md").write_text("no image")
    save(tmp_path / "cat" / "photo.JPG")
    save(tmp_path / "dog" / "photo.jpeg")
    images = read_image_set(tmp_path)
    assert images.class_names == ("cat", "dog")
    assert images.num_train_images + images.num_test_images == 12


@pytest.mark.parametrize(("modes", "num_channels"), [(("L", "1", "LA", "I;16"), 1), (("L", "RGB"), 3), (("P",), 3)])
def test_images_are_grey_only_if_all_are(tmp_path, modes, num_channels):
    make_classes(tmp_path, mode=modes[0])
    for mode in modes[1:]:
        save(tmp_path / "cat" / f"{mode[:1]}_{len(mode)}.png", mode=mode)
    assert read_image_set(tmp_path).num_channels == num_channels


def test_size_is_the_median_of_longer_sides_bounded_or_chosen(tmp_path):
    make_classes(tmp_path, size=(20, 31))
    save(tmp_path / "cat" / "large.jpg", size=(500, 400))
    assert read_image_set(tmp_path).image_size == 31
    assert read_image_set(tmp_path, image_size=48).image_size == 48
    assert read_image_set(make_classes(tmp_path / "large", size=(90, 80))).image_size == 64
    assert read_image_set(make_classes(tmp_path / "small", size=(5, 4))).image_size == 8


def get_message(folder):
    with pytest.raises(DataError) as caught:
        read_image_set(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_data_dir_must_be_there(tmp_path):
    assert get_message(tmp_path / "nowhere") == f"There is no folder or file {tmp_path / 'nowhere'} (`data_dir`)."
    (tmp_path / "data.csv").write_text("1,2")
    assert get_message(tmp_path / "data.csv").startswith("`data_dir` must be a folder, TFRecord files or a .npz file.")


def test_two_classes_are_the_least(tmp_path):
    assert get_message(tmp_path).endswith("at least two. Received: none.")
    save(tmp_path / "cat" / "0.png")
    assert get_message(tmp_path) == (
        f"{tmp_path} must have one sub-folder for each class, at least two. Received: one, 'cat'."
    )


def test_class_without_images_is_named(tmp_path):
    make_classes(tmp_path)
    (tmp_path / "eel").mkdir()
    (tmp_path / "eel" / "0.webp").touch()
    (tmp_path / "eel" / "below").mkdir()
    (tmp_path / "eel" / "below" / "1.webp").touch()
    assert get_message(tmp_path) == f"The class folder {tmp_path / 'eel'} {NO_IMAGE} Received: 2 .webp."


def test_class_with_one_image_cannot_be_split(tmp_path):
    make_classes(tmp_path)
    save(tmp_path / "eel" / "0.png")
    assert get_message(tmp_path).startswith(f"The class folder {tmp_path / 'eel'} holds one image; it needs at least")


def test_split_with_one_half_missing_is_refused(tmp_path):
    make_classes(tmp_path / "train")
    assert "has a folder 'train' with classes, but no folder 'test'" in get_message(tmp_path)


def test_classes_of_both_folders_must_be_the_same(tmp_path):
    make_classes(tmp_path / "train")
    make_classes(tmp_path / "test", classes=("cat",))
    assert get_message(tmp_path) == f"The class folder {tmp_path / 'test' / 'dog'} {NO_IMAGE}"
    make_classes(tmp_path / "test", classes=("dog", "eel"))
    assert "has the class 'eel', which the training images do not have" in get_message(tmp_path)


def test_no_image_is_named(tmp_path):
    make_classes(tmp_path)
    bad = tmp_path / "dog" / "bad.png"
    bad.write_bytes(b"")
    advice = 'Or leave out what is damaged: on_bad_data="skip" (--on_bad_data=skip).'
    assert get_message(tmp_path) == f"Cannot read the image {bad}: it is not an image. Repair or remove it. {advice}"
    Image.new("RGB", (8, 8)).save(bad, format="TIFF")
    assert get_message(tmp_path) == f"{bad} must be a PNG, JPEG, BMP, GIF or WebP image. Received: TIFF. {advice}"


# JPEG has no checksums: changed bytes give another picture.
@pytest.mark.parametrize(("suffix", "damage"), [("png", "cut"), ("png", "changed"), ("jpg", "cut")])
def test_damaged_image_is_named(tmp_path, suffix, damage):
    make_classes(tmp_path)
    bad = save(tmp_path / "dog" / f"bad.{suffix}", size=(64, 64))
    content = bytearray(bad.read_bytes())
    content[len(content) // 2] ^= 255
    bad.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    assert re.match(rf"Cannot read the image {re.escape(str(bad))}: .+ Repair or remove it\.", get_message(tmp_path))


def test_files_are_read_as_keras_reads_them_and_others_are_counted(tmp_path, caplog):
    keras = pytest.importorskip("keras")
    for name in ("cat", "dog"):
        for place in ("0.png", "1.bmp", "2.GIF", "below/3.jpg", "below/deep/4.jpeg"):
            save(tmp_path / name / place)
    found = keras.utils.image_dataset_from_directory(tmp_path, shuffle=False, verbose=False).file_paths
    for place in ("cat/5.webp", "cat/below/6.webp", "dog/notes.txt", "readme", "other.webp"):
        (tmp_path / place).touch()
    (tmp_path / "cat" / ".hidden").mkdir()
    save(tmp_path / "cat" / ".hidden" / "7.png")
    (tmp_path / "dog" / "._0.jpg").touch()
    (tmp_path / "dog" / "more").symlink_to(tmp_path / "cat")
    images = read_image_set(tmp_path)
    assert sorted(name for part in images.load() for name in part.images) == sorted(found)
    assert caplog.messages == [
        f"Passed over in {tmp_path}: 3 .webp, 1 .txt, 1 without an ending (first: cat/5.webp), 1 hidden .jpg, "
        "1 hidden .png, 1 link to a folder. Files in class folders that end in .png, .jpg, .jpeg, .bmp, .gif are read."
    ]


def test_names_that_are_not_utf_8(tmp_path, logical_devices):
    make_classes(tmp_path)
    name = os.fsdecode(b"M\xfcller.png")
    (tmp_path / "cat" / "0.png").rename(tmp_path / "cat" / name)
    images = read_image_set(tmp_path)
    assert sum(name in file for part in images.load() for file in part.images) == 1
    batches = ImageData(images)
    rows = sum(len(labels) for _, labels in [*batches.validation_data(1), *batches.train_data(1, seed=0, epoch=0)])
    assert rows == 10
    (tmp_path / "dog" / os.fsdecode(b"\xfc.png")).write_bytes(b"no image")
    assert r"dog/\udcfc.png" in get_message(tmp_path)
    (tmp_path / "dog").rename(tmp_path / os.fsdecode(b"H\xfcnd"))
    assert get_message(tmp_path) == rf"The name of the class folder {tmp_path}/H\xfcnd is not UTF-8. Rename it."


def test_a_folder_beside_train_and_test_is_counted(tmp_path, caplog):
    for part in ("train", "test", "val"):
        make_classes(tmp_path / part, num_images=2)
    assert read_image_set(tmp_path).num_train_images == 4
    assert f"Passed over in {tmp_path}: 4 .png (first: val/cat/0.png)" in caplog.text
