"""What raw inputs are goes to JSON and back."""

import json

import numpy as np
import pytest

from tfaccel.data.images.image_set import ImageSet, digits
from tfaccel.data.raw_input import ImageInput, RawInput, TableInput, TextInput, load_raw_input, raw_input_of_json
from tfaccel.data.tables.encoding import CategoricalColumn, NumericColumn, TableEncoding
from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.errors import DataError, WorkloadError
from tfaccel.planning.workload import Workload

ENCODING = TableEncoding(
    numeric=(NumericColumn("age", 40.0, 9.0, True),),
    categorical=(CategoricalColumn("color", ("red",)),),
    target="pays",
    class_names=("no", "yes"),
)


@pytest.mark.parametrize(
    "raw_input",
    [
        RawInput(class_names=("a", "b"), outputs="probabilities"),
        ImageInput(image_size=8, num_channels=3, class_names=("cat", "dog")),
        TextInput(vocabulary=Vocabulary(unit="words", tokens=("it", "is")), num_tokens=5),
        TableInput.of(ENCODING),
    ],
    ids=lambda raw_input: raw_input.kind,
)
def test_goes_to_json_and_back(raw_input, tmp_path):
    (tmp_path / "raw_input.json").write_text(json.dumps(raw_input.to_json()))
    assert load_raw_input(tmp_path / "raw_input.json") == raw_input


def test_images_whose_pixels_are_no_bytes_have_no_files():
    assert ImageInput.of(digits()) == ImageInput(image_size=8, num_channels=1, class_names=tuple("0123456789"))
    parts = {"image_size": 8, "num_channels": 1, "num_train_images": 2, "num_test_images": 1}
    floats = ImageSet(class_names=("a", "b"), pixel_mean=0.1, load=lambda: (np.zeros(1), np.zeros(1)), **parts)
    assert ImageInput.of(floats) is None


def test_table_of_numbers_to_predict_has_values():
    encoding = TableEncoding(numeric=ENCODING.numeric, categorical=(), target="pays")
    assert TableInput.of(encoding).outputs == "values"
    assert TableInput.of(ENCODING).class_names == ("no", "yes")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "sound"}, r"This describes no raw input \(KeyError: 'sound'\). Kinds: tensors, image, text, table."),
        ({"kind": "image"}, "describes no raw input .*image_size"),
        (
            {"kind": "tensors", "outputs": "odds"},
            "`outputs` must be logits, probabilities or values. Received: .*'odds'",
        ),
        ({"kind": "text", "num_tokens": 3, "vocabulary": {"unit": "bytes", "tokens": []}}, "unit must be"),
    ],
)
def test_what_is_none_is_refused(data, message):
    with pytest.raises(DataError, match=message):
        raw_input_of_json(data)


def test_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"Cannot read .*raw_input\.json"):
        load_raw_input(tmp_path / "raw_input.json")
    (tmp_path / "raw_input.json").write_text("{")
    with pytest.raises(DataError, match=r"Cannot read .*raw_input\.json"):
        load_raw_input(tmp_path / "raw_input.json")


def test_workload_refuses_what_does_not_go_to_json():
    with pytest.raises(WorkloadError, match="raw_input must be an ImageInput, TextInput or TableInput"):
        Workload("a", object, dict, lambda *a, **k: None, global_batch_size=1, raw_input="images")
