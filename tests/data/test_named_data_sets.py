"""Data sets by name: of Hugging Face and of TensorFlow Datasets, made here."""

import importlib.util
import io
import sys

import pytest
from PIL import Image

from tfaccel.data.images.files import read_image_set
from tfaccel.data.texts.files import read_labelled_texts
from tfaccel.errors import DataError

TEXTS = ["good", "bad", "fine", "awful", "great", "poor"]


def png(value):
    file = io.BytesIO()
    Image.new("L", (8, 8), int(value)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pixels(logical_devices):
    """A function from an image set to the label and the value of each image, those to train on first."""
    from tfaccel.data.cache import CacheOptions
    from tfaccel.data.images.image_data import ImageBatches, ImageMoves

    def pairs(part):
        rows = part.unbatch().as_numpy_iterator()
        return sorted((int(label.argmax()), round(float(image.mean()))) for image, label in rows)

    def read(images):
        batches = ImageBatches(images, ImageMoves(0.0, 0.0, 0.0), cache=CacheOptions(place="none"))
        parts = (batches.train(2, seed=0, epoch=0), batches.test(2))
        return [pairs(part) for part in parts]

    return read


@pytest.fixture
def hugging_face(tmp_path, monkeypatch):
    """A function that writes a data set of columns, or of splits with columns, and returns its address."""
    import datasets
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # no thread that outlives the test
    datasets.disable_progress_bars()

    def make(columns, *, features=None):
        if not all(isinstance(part, dict) for part in columns.values()):
            made = datasets.Dataset.from_dict(columns, features=features)
        else:
            made = datasets.DatasetDict(
                {name: datasets.Dataset.from_dict(part, features=features) for name, part in columns.items()}
            )
        made.save_to_disk(tmp_path / "set")
        return f"hf:{tmp_path / 'set'}"

    yield make
    datasets.enable_progress_bars()


def image_columns(count, first=0):
    numbers = range(first, first + count)
    return {"image": [{"bytes": png(10 * n), "path": None} for n in numbers], "label": [n % 2 for n in numbers]}


def test_images_of_hugging_face(hugging_face, pixels):
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    images = read_image_set(
        hugging_face({"train": image_columns(8), "validation": image_columns(4, 8)}, features=features)
    )
    assert (images.class_names, images.num_train_images, images.num_test_images) == (("cat", "dog"), 8, 4)
    assert pixels(images) == [sorted((n % 2, 10 * n) for n in numbers) for numbers in (range(8), range(8, 12))]


def test_one_split_of_hugging_face_is_cut_in_two(hugging_face, pixels):
    import datasets

    columns = image_columns(10)
    columns["fine_label"] = [f"kind {label}" for label in columns.pop("label")]
    features = datasets.Features({"image": datasets.Image(), "fine_label": datasets.Value("string")})
    images = read_image_set(hugging_face(columns, features=features))
    assert images.class_names == ("kind 0", "kind 1")
    train, test = pixels(images)
    assert sorted(train + test) == sorted((n % 2, 10 * n) for n in range(10))


def test_texts_of_hugging_face(hugging_face):
    texts = read_labelled_texts(hugging_face({"text": TEXTS, "label": [1, 0, 1, 0, 1, 0]}))
    assert texts.class_names == ("0", "1")
    assert sorted(texts.train_texts + texts.test_texts) == sorted(TEXTS)
    words, labels = texts.train_texts + texts.test_texts, texts.train_labels + texts.test_labels
    assert all(label == (TEXTS.index(word) + 1) % 2 for word, label in zip(words, labels, strict=True))


def test_what_hugging_face_lacks_is_named(hugging_face, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    address = hugging_face({"text": TEXTS, "label": [1, 0, 1, 0, 1, 2]})
    with pytest.raises(DataError, match=r"must have a column of the type Image, and a column 'label'.* text, label\."):
        read_image_set(address)
    with pytest.raises(DataError, match=r"must have columns 'words' and 'label'\. Received columns: text, label\."):
        read_labelled_texts(address, text_column="words")
    with pytest.raises(DataError, match=r"Class '2' in hf:.* has one text; it needs at least two"):
        read_labelled_texts(address)
    with pytest.raises(DataError, match=r"Cannot load hf:.*missing with the package datasets: "):
        read_image_set(f"hf:{tmp_path}/missing")


def test_broken_images_of_hugging_face_are_named(hugging_face):
    import datasets

    columns = image_columns(4)
    columns["image"][2]["bytes"] = b"no image"
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    with pytest.raises(DataError, match=r"Cannot read the image in row 2 \(from 0\) of hf:.*: it is not an image\."):
        read_image_set(hugging_face(columns, features=features))


MAKE_BUILDERS = """
import sys
import numpy as np
import tensorflow_datasets as tfds

class MadeUpImages(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        kinds = {"image": tfds.features.Image(shape=(8, 8, 1)), "label": tfds.features.ClassLabel(names=["cat", "dog"])}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(kinds))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(0, 8), "test": self._generate_examples(8, 12)}

    def _generate_examples(self, first, last):
        for number in range(first, last):
            yield number, {"image": np.full((8, 8, 1), 10 * number, np.uint8), "label": number % 2}

class MadeUpTexts(MadeUpImages):
    def _info(self):
        kinds = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=["bad", "good"])}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(kinds))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(0, 8)}

    def _generate_examples(self, first, last):
        for number in range(first, last):
            yield number, {"text": f"word {number} \\u00e4", "label": number % 2}

for builder in (MadeUpImages, MadeUpTexts):
    builder(data_dir=sys.argv[1]).download_and_prepare()
"""


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    """A folder with the data sets made_up_images and made_up_texts, made where a warning is no error."""
    import subprocess

    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    subprocess.run([sys.executable, "-c", MAKE_BUILDERS, str(folder)], check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_images_of_tensorflow_datasets(tfds_folder, monkeypatch, pixels):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    images = read_image_set("tfds:made_up_images", image_size=8)
    assert (images.class_names, images.num_train_images, images.num_test_images) == (("cat", "dog"), 8, 4)
    assert pixels(images) == [sorted((n % 2, 10 * n) for n in numbers) for numbers in (range(8), range(8, 12))]


@pytest.mark.slow
def test_texts_of_tensorflow_datasets(tfds_folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    texts = read_labelled_texts("tfds:made_up_texts")
    assert texts.class_names == ("bad", "good")
    words = texts.train_texts + texts.test_texts
    assert sorted(words) == [f"word {number} ä" for number in range(8)]
    labels = texts.train_labels + texts.test_labels
    assert all(label == int(word.split()[1]) % 2 for word, label in zip(words, labels, strict=True))


@pytest.mark.slow
def test_what_tensorflow_datasets_lacks_is_named(tfds_folder, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    with pytest.raises(DataError, match=r"must have a feature of the kind Image\. Received: label \(ClassLabel\)"):
        read_image_set("tfds:made_up_texts")
    with pytest.raises(DataError, match=r"must have a feature 'words'\. Received: label, text\."):
        read_labelled_texts("tfds:made_up_texts", text_column="words")
    with pytest.raises(DataError, match=r"Cannot prepare tfds:missing_set with .*: Dataset missing_set not found"):
        read_image_set("tfds:missing_set")


@pytest.mark.parametrize(
    ("address", "package", "extra"),
    [("hf:rotten_tomatoes", "datasets", "huggingface"), ("tfds:mnist", "tensorflow-datasets", "tfds")],
)
def test_a_missing_package_is_named(monkeypatch, address, package, extra):
    find = importlib.util.find_spec
    absent = package.replace("-", "_")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == absent else find(name, *more))
    for read in (read_image_set, read_labelled_texts):
        with pytest.raises(DataError, match=rf"needs the package {package}, .*pip install 'tfaccel\[{extra}\]'\."):
            read(address)


@pytest.mark.slow
def test_named_data_sets_are_read_without_tensorflow(tfds_folder, hugging_face, run_python):
    address = hugging_face({"text": TEXTS, "label": [1, 0, 1, 0, 1, 0]})
    code = """
import sys
from tfaccel.data.images.files import read_image_set
from tfaccel.data.texts.files import read_labelled_texts
read_image_set("tfds:made_up_images")
read_labelled_texts(sys.argv[1])
sys.exit("tensorflow" in sys.modules)
"""
    run_python(code, address, env={"TFDS_DATA_DIR": str(tfds_folder)}, fresh=True)
