"""All parts of the library see the same pixels of an image."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfaccel.data.images.files import read_image_set
from tfaccel.data.images.image_check import check_image, decoded, pixels
from tfaccel.data.images.image_data import ImageData
from tfaccel.data.raw_input import ImageInput
from tfaccel.errors import DataError
from tfaccel.exporting.preprocessing import preprocessing
from tfaccel.extras.inspection.images import read_or_finding

pytestmark = pytest.mark.usefixtures("logical_devices")
ARRAY = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def encoded(form, mode="RGB", **options):
    image = Image.fromarray(ARRAY)
    if mode == "I;16":
        image = Image.fromarray(ARRAY[..., 0].astype(np.uint16) * 256 + 77)
    elif mode != "RGB":
        image = image.convert(mode)
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


KINDS = {
    "RGB": encoded("PNG"),
    "RGBA": encoded("PNG", "RGBA"),
    "palette": encoded("PNG", "P"),
    "grey": encoded("PNG", "L"),
    "grey and alpha": encoded("PNG", "LA"),
    "black and white": encoded("PNG", "1"),
    "16 bits": encoded("PNG", "I;16"),
    "BMP": encoded("BMP"),
    "BMP, 32 bits": encoded("BMP", "RGBA"),
    "grey BMP": encoded("BMP", "L"),
    "GIF": encoded("GIF", "P"),
    "WebP": encoded("WEBP", lossless=True),
    "animation": encoded("GIF", "P", save_all=True, append_images=[Image.new("P", (8, 8))]),
    "JPEG": encoded("JPEG"),
    "CMYK": encoded("JPEG", "CMYK"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_inspection_and_export_see_the_same_pixels(kind, tmp_path):
    content = KINDS[kind]
    for label in "ab":
        for number in range(2):
            (tmp_path / label).mkdir(exist_ok=True)
            (tmp_path / label / f"{number}.png").write_bytes(content)
    header = check_image(content, kind)
    num_channels = 1 if header.is_grey else 3
    expected = pixels(content, num_channels, name=kind)
    images = read_image_set(tmp_path, image_size=8)
    assert images.num_channels == num_channels
    trained = next(iter(ImageData(images).validation_data(1)))[0]
    raw_input = ImageInput(image_size=8, num_channels=num_channels, class_names=("a", "b"))
    exported = preprocessing(raw_input)[0](tf.constant([content]))
    np.testing.assert_array_equal(trained[0], expected)
    np.testing.assert_array_equal(exported[0], expected)
    assert read_or_finding(tmp_path / "a" / "0.png").shape == (8, 8, num_channels)
    if kind not in ("JPEG", "CMYK", "16 bits"):
        plain = Image.open(io.BytesIO(content)).convert("L" if header.is_grey else "RGB")
        np.testing.assert_array_equal(expected.squeeze(), np.asarray(plain))


def test_of_16_bits_the_high_byte_is_taken(tmp_path):
    np.testing.assert_array_equal(pixels(KINDS["16 bits"], 1, name="")[..., 0], ARRAY[..., 0])
    file = tmp_path / "a.png"
    file.write_bytes(KINDS["16 bits"])
    small = read_or_finding(file).small.reshape(16, 16, 3)
    assert small.mean() * 255 == pytest.approx(ARRAY[..., 0].mean(), abs=3)


def transparent_webp():
    image, content = Image.fromarray(ARRAY), io.BytesIO()
    image.putalpha(77)
    image.save(content, "WEBP")
    return content.getvalue()


@pytest.mark.parametrize("mode", ["P", "1"])
def test_a_bmp_that_cannot_be_decoded_is_refused(mode):
    with pytest.raises(DataError, match=r"a\.bmp is a BMP image that TensorFlow cannot decode. Save it with 24 bits"):
        check_image(encoded("BMP", mode), "a.bmp")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"TensorFlow cannot decode this BMP image\. Save it"):
        tf.function(decoded)(tf.constant(encoded("BMP", mode)), 3)  # as it is served


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encoded("BMP") + bytes(2), "is a BMP image that TensorFlow cannot decode"),  # as Photoshop ends them
        (
            encoded("WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8))]),
            "cannot decode image, an animated or transparent WebP",
        ),
        (transparent_webp(), "an animated or transparent WebP. Save it as PNG"),
    ],
    ids=["BMP with more bytes", "animated WebP", "transparent WebP"],
)
def test_what_pillow_decodes_and_tensorflow_does_not_is_refused(content, reason):
    with pytest.raises(DataError, match=reason):
        check_image(content, "image")


def test_what_cannot_be_decoded_is_named():
    with pytest.raises(DataError, match=r"Cannot read the image a\.png: .*Repair or remove it"):
        pixels(b"\x89PNG\r\n\x1a\n", 3, name="a.png")
    assert decoded(KINDS["RGB"], 3).dtype == tf.uint8
