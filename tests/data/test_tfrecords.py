"""TFRecord files: TensorFlow reads what is written, damage is named, images come out as they went in."""

import gzip
import io
import os

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.images.files import read_image_set
from tfaccel.data.images.tfrecords import read_tfrecord_images
from tfaccel.data.tfrecord_files import RecordIndex, decode_example, encode_example, find_tfrecords, write_tfrecords
from tfaccel.errors import DataError


def png(value, *, size=(10, 8), mode="L", form="PNG"):
    file = io.BytesIO()
    Image.new(mode, size, value).save(file, form)
    return file.getvalue()


def pictures(count=12, **fields):
    """Grey images that hold ten times their number, in two classes."""
    return [
        {
            "image/encoded": png(10 * number),
            "image/class/label": 1 + number % 2,
            "image/class/text": ("cat", "dog")[number % 2],
            **fields,
        }
        for number in range(count)
    ]


def test_checksums_of_any_length_are_right(logical_devices, tmp_path):
    import tensorflow as tf

    generator = np.random.default_rng(0)
    examples = [{"data": generator.bytes(length)} for length in (0, 1, 63, 64, 65, 127, 128, 1000, 70_000)]
    files = write_tfrecords(examples, tmp_path)
    records = tf.data.TFRecordDataset([str(path) for path in files])
    read = [tf.train.Example.FromString(record.numpy()) for record in records]
    assert [{"data": message.features.feature["data"].bytes_list.value[0]} for message in read] == examples


def test_tensorflow_s_examples_and_ours_are_the_same(logical_devices):
    import tensorflow as tf

    features = {"bytes": [b"a", b"\xff"], "floats": [0.5, -2.0], "numbers": [-3, 2**40], "none": []}
    message = tf.train.Example()
    message.features.feature["bytes"].bytes_list.value.extend(features["bytes"])
    message.features.feature["floats"].float_list.value.extend(features["floats"])
    message.features.feature["numbers"].int64_list.value.extend(features["numbers"])
    message.features.feature["none"].SetInParent()
    assert decode_example(message.SerializeToString()) == features
    again = tf.train.Example.FromString(encode_example(features))
    assert list(again.features.feature["numbers"].int64_list.value) == features["numbers"]
    assert decode_example(encode_example({"text": "ä", "number": np.int64(3)})) == {
        "text": ["ä".encode()],
        "number": [3],
    }
    with pytest.raises(DataError, match=r"texts, bytes, or numbers, all of one kind\. Received: mixed=\['a', 1\]"):
        encode_example({"mixed": ["a", 1]})
    with pytest.raises(DataError, match=r"This is not a tf\.train\.Example"):
        decode_example(b"\xff\xff")


def test_examples_go_to_the_files_in_turn_and_any_can_be_read(tmp_path):
    files = write_tfrecords(({"number": number} for number in range(7)), tmp_path / "made", num_shards=3)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [path.name for path in files]
    index = RecordIndex.of(find_tfrecords(tmp_path / "made"))
    numbers = [decode_example(index.read(row))["number"][0] for row in range(len(index))]
    assert numbers == [0, 3, 6, 1, 4, 2, 5]
    assert index.name(4) == f"record 1 (from 0) of {files[1]}"
    assert find_tfrecords(tmp_path / "made" / "*-00001-*.tfrecord") == files[1:2]


def test_nothing_is_left_of_a_write_that_failed(tmp_path):
    with pytest.raises(DataError, match="all of one kind"):
        write_tfrecords([{"number": 1}, {"number": [1, "a"]}], tmp_path)
    with pytest.raises(DataError, match=r"There are 1 examples for 2 files\. Use fewer files\."):
        write_tfrecords([{"number": 1}], tmp_path, num_shards=2)
    with pytest.raises(DataError, match=r"`num_shards` must be at least 1\. Received: num_shards=0\."):
        write_tfrecords([{"number": 1}], tmp_path, num_shards=0)
    assert list(tmp_path.iterdir()) == []
    (path,) = write_tfrecords([{"number": 1}], tmp_path)
    content = path.read_bytes()
    with pytest.raises(DataError, match=r"The file .*examples-00000-of-00001\.tfrecord exists already\. Remove it"):
        write_tfrecords([{"number": 2}], tmp_path)
    assert path.read_bytes() == content


def damaged(path, change):
    content = bytearray(path.read_bytes())
    changed = change(content)
    path.write_bytes(content if changed is None else changed)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda content: content.__setitem__(-40, content[-40] ^ 1),
            r"Record 3 \(from 0\) of .* its checksum is wrong",
        ),
        (lambda content: content[:-30], r"Record 3 \(from 0\) of .* is damaged: the file ends inside of it"),
        (lambda content: content[: len(content) // 4 + 5], r"Record 1 .* the file ends inside of it\. Write or copy"),
        (lambda content: content.__setitem__(0, content[0] ^ 1), r"Record 0 .* the checksum of its length is wrong"),
        (
            lambda content: b"\x1f\x8b" + content,
            r"is compressed\. Write TFRecord files without compression, or use gunzip\.",
        ),
        (
            lambda content: b"\x78\x5e" + content,
            r"is compressed\. Write TFRecord files without compression, or use gunzip\.",
        ),
        (lambda content: b"", r"\.tfrecord is empty \(0 bytes\)\. Write or copy the file again\."),
    ],
)
def test_damage_names_file_and_record(tmp_path, change, text):
    (path,) = write_tfrecords([{"image/encoded": png(0), "image/class/label": 1}] * 4, tmp_path)
    damaged(path, change)
    with pytest.raises(DataError, match=text) as caught:
        read_image_set(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_compressed_files_are_named(tmp_path):
    (path,) = write_tfrecords(pictures(), tmp_path)
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with pytest.raises(DataError, match=r"\.tfrecord\.gz is compressed\. Write TFRecord files without compression"):
        read_image_set(tmp_path)


def test_a_missing_file_of_several_is_named(tmp_path):
    write_tfrecords(pictures(), tmp_path, num_shards=3)[1].unlink()
    with pytest.raises(DataError, match=r"There is no file .*examples-00001-of-00003\.tfrecord, one of 3\."):
        read_image_set(tmp_path)


@pytest.fixture
def all_pixels(logical_devices):
    """A function from an image set to the labels and the values of all its images."""
    from tfaccel.data.cache import CacheOptions
    from tfaccel.data.images.image_data import ImageBatches, ImageMoves

    def read(images, place="memory", folder=None):
        batches = ImageBatches(images, ImageMoves(0.0, 0.0, 0.0), cache=CacheOptions(place=place, folder=folder))
        parts = [*batches.train(1, seed=0, epoch=0).as_numpy_iterator(), *batches.test(1).as_numpy_iterator()]
        assert all(np.ptp(image) == 0 for image, _ in parts)
        return sorted((int(label.argmax()), round(float(image.mean()))) for image, label in parts)

    return read


@pytest.mark.parametrize("place", ["memory", "disk", "none"])
def test_images_come_out_with_their_classes(all_pixels, tmp_path, place):
    write_tfrecords(pictures(), tmp_path / "set", num_shards=2)
    images = read_image_set(tmp_path / "set", image_size=8)
    assert (images.class_names, images.num_channels) == (("cat", "dog"), 1)
    assert (images.num_train_images, images.num_test_images) == (9, 3)
    expected = sorted((number % 2, 10 * number) for number in range(12))
    assert all_pixels(images, place, tmp_path / "cache") == expected


def test_parts_are_told_by_the_names_of_files(all_pixels, tmp_path):
    write_tfrecords(pictures(8), tmp_path, num_shards=2, name="train")
    write_tfrecords(pictures(2), tmp_path, name="validation")
    images = read_image_set(tmp_path)
    assert (images.num_train_images, images.num_test_images, images.image_size) == (8, 2, 10)
    assert read_image_set(f"{tmp_path}/train*.tfrecord").num_train_images == 6
    write_tfrecords(pictures(2), tmp_path, name="more")
    with pytest.raises(DataError, match=r"only some are named train or test\. Name all, or none\."):
        read_image_set(tmp_path)


def test_classes_may_be_numbers_or_names_alone(tmp_path):
    for fields, names in (
        ({"image/class/text": "", "image/class/label": None}, ("10", "9")),
        ({"image/class/label": None}, ("cat", "dog")),
        ({"image/class/text": None}, ("1", "2")),
    ):
        examples = [{k: v for k, v in {**example, **fields}.items() if v is not None} for example in pictures(4)]
        if names == ("10", "9"):  # the names TensorFlow Datasets uses
            examples = [{"image": png(0), "label": 9 + row % 2} for row in range(4)]
            names = ("9", "10")
        (path,) = write_tfrecords(examples, tmp_path)
        assert read_image_set(tmp_path).class_names == names
        path.unlink()


@pytest.mark.parametrize(
    ("examples", "text"),
    [
        ([{"picture": png(0), "label": 1}], r"must have the features 'image/encoded' and .*Received: label, picture\."),
        (
            [*pictures(2), {"image/encoded": png(0)}],
            r"record 2 \(from 0\) of .* must have one image in 'image/encoded'",
        ),
        ([*pictures(2), *pictures(1, **{"image/class/text": "cow"})], "Every number of a class must have one text"),
        (
            pictures(4, **{"image/class/label": [0, 1]}),
            r"record 0 .* has 2 classes in 'image/class/label'; an image must",
        ),
        (pictures(4, **{"image/class/text": ["cat", "dog"]}), r"record 0 .* has 2 classes in 'image/class/text'; an"),
        (pictures(4, **{"image/class/text": b"caf\xe9"}), r"class in the record 0 .* is not UTF-8\. Received: b'caf"),
        (
            [{"image/encoded": png(0), f"image/class/{name}": value} for name, value in (("label", 0), ("text", "a"))],
            "The class must be a number in every example, or a text in every one",
        ),
        (pictures(1), "must have at least two classes. Received: cat"),
        (pictures(3), r"Class 'dog' of .* must have at least two, one to train on .* Received: 1\."),
        (
            [*pictures(4), *pictures(1, **{"image/encoded": b"x"})],
            r"image record 4 \(from 0\) of .*: it is not an image\.",
        ),
        (
            pictures(4, **{"image/encoded": png(0, form="TIFF")}),
            r"record 0 .* must be a PNG, JPEG, BMP, GIF or WebP image\. Received: TIFF",
        ),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, examples, text):
    write_tfrecords(examples, tmp_path)
    with pytest.raises(DataError, match=text):
        read_image_set(tmp_path)


def test_a_record_that_is_no_example_is_named(tmp_path):
    import struct

    from tfaccel.data.tfrecord_files import masked_crc32c

    (path,) = write_tfrecords(pictures(2), tmp_path)
    length, data = struct.pack("<Q", 3), b"\xff\xff\xff"
    with open(path, "ab") as file:
        file.write(length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data)))
    with pytest.raises(DataError, match=r"Cannot read the record 2 \(from 0\) of .*: This is not a tf\.train\.Example"):
        read_image_set(tmp_path)


def test_test_images_of_unknown_classes_are_refused(tmp_path):
    write_tfrecords(pictures(4), tmp_path, name="train")
    write_tfrecords(pictures(1, **{"image/class/text": "cow", "image/class/label": 3}), tmp_path, name="test")
    with pytest.raises(DataError, match=r"Example 0 \(from 0\) of .* has the class 'cow', which is not trained on"):
        read_image_set(tmp_path)
    with pytest.raises(DataError, match=r"There is no TFRecord file at .*missing\. Their names end in \.tfrecord\."):
        read_tfrecord_images(os.fspath(tmp_path / "missing"))
