"""Signatures have the model's names, and raw ones make of images and texts what training made of them."""

import io

import numpy as np
import pytest
from export_models import IMAGES, TEXTS, image_model, pixels, several_model, text_model
from PIL import Image

from tfaccel.data.raw_input import ImageInput, RawInput, TableInput, TextInput
from tfaccel.data.tables.encoding import CategoricalColumn, NumericColumn, TableEncoding
from tfaccel.data.tables.table import Column, Table
from tfaccel.data.texts.vocabulary import Vocabulary, padded
from tfaccel.errors import ExportError

ODD_TEXTS = [
    "It's 3,5 \u2014 is it nice?",
    "",
    "\u00c4RGER\u00a0na\u00efve\u3000\u4f60\u597d",
    "a_b-c d\te\nf\u2028g\x1ch\x85i",
    "\u0130stanbul \u03a3\u03a3 \u00df\u1e9e",
    "x\u0301y \U0001f600!! \u0663\u00b2\u2167\u0e33",
    "...",
    "don\u2019t \u201cquote\u201d",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0939\u093f\u0928\u094d\u0926\u0940",
]


@pytest.fixture(scope="module", autouse=True)
def tensorflow(logical_devices):
    """TensorFlow, started as the tests want it."""


def get_specs(function):
    from tfaccel.exporting.signatures import input_specs

    return {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in input_specs(function).items()}


def test_names_are_those_of_the_model():
    from tfaccel.exporting.signatures import make_signatures

    functions = make_signatures(image_model(), IMAGES).functions
    assert get_specs(functions["serving_default"]) == {"pixels": ([None, 8, 8, 1], "float32")}
    assert list(functions["serving_default"].structured_outputs) == ["logits"]
    assert get_specs(functions["serving_raw"]) == {"image_bytes": ([None], "string")}
    assert sorted(functions["serving_raw"].structured_outputs) == ["label", "probabilities"]
    ((name, function),) = make_signatures(several_model()).functions.items()
    assert name == "serving_default"
    assert get_specs(function) == {"past": ([None, None, 2], "float32"), "kind": ([None, 1], "int32")}
    outputs = {name: spec.dtype.name for name, spec in function.structured_outputs.items()}
    assert outputs == {"level": "float32", "trend": "float32"}


def test_variables_are_in_the_order_of_their_use():
    """Otherwise, files of equal models would differ from process to process."""
    import keras

    from tfaccel.exporting.signatures import make_signatures

    layers = [layer for _ in range(6) for layer in (keras.layers.Dense(3), keras.layers.BatchNormalization())]
    function = make_signatures(keras.Sequential([keras.Input((2,)), *layers])).functions["serving_default"]
    handles = [id(variable.handle) for variable in function.variables]
    assert handles == [id(captured) for captured in function.captured_inputs if id(captured) in handles]
    assert len(handles) == 6 * 6


def test_names_that_keras_made_up_are_left_out():
    import keras

    from tfaccel.exporting.signatures import make_signatures

    one = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert list(make_signatures(one).inputs) == ["inputs"]
    pair = [keras.Input((2,)), keras.Input((3,))]
    two = keras.Model(pair, keras.layers.Concatenate()(pair))
    assert list(make_signatures(two).inputs) == ["inputs_0", "inputs_1"]


def test_class_of_its_own_needs_a_sample():
    import keras

    from tfaccel.exporting.signatures import make_signatures

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return {"y": self.dense(x["a"])}

    model, sample = Own(), {"a": np.zeros((4, 3))}
    model(sample)
    with pytest.raises(ExportError, match=r"The inputs of Own are unknown.*Give a batch: export\(\.\.\., sample=x\)"):
        make_signatures(model)
    assert get_specs(make_signatures(model, sample=sample).functions["serving_default"]) == {
        "a": ([None, 3], "float32")
    }


def test_a_sample_that_is_no_batch_is_refused(logical_devices, tmp_path):
    import keras

    import tfaccel

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    message = r"`sample` must be a batch: for each input of the model, an array with one row .*Received: 3\. Give it"
    with pytest.raises(ExportError, match=message):
        tfaccel.export(model, ["keras"], out=tmp_path / "out", name="model", sample=3)
    assert not (tmp_path / "out").exists()


def test_words_in_the_graph_are_those_of_training():
    import tensorflow as tf

    from tfaccel.exporting.preprocessing import preprocessing

    vocabulary = Vocabulary.of(ODD_TEXTS, unit="words")
    encode, spec, _ = preprocessing(TextInput(vocabulary=vocabulary, num_tokens=12))
    found = tf.function(encode, input_signature=[spec])(tf.constant(ODD_TEXTS)).numpy()
    wanted = padded([vocabulary.encode(text) for text in ODD_TEXTS], 12)
    assert found.tolist() == wanted.tolist()
    assert (found > 1).sum() > 30


def test_characters_in_the_graph_are_those_of_training():
    import tensorflow as tf

    from tfaccel.exporting.preprocessing import preprocessing

    vocabulary = Vocabulary.of(ODD_TEXTS[:4], unit="characters")
    encode, _, _ = preprocessing(TextInput(vocabulary=vocabulary, num_tokens=20))
    wanted = padded([vocabulary.encode(text) for text in ODD_TEXTS], 20)
    assert encode(tf.constant(ODD_TEXTS)).numpy().tolist() == wanted.tolist()


def test_subwords_in_the_graph_are_those_of_training():
    import tensorflow as tf

    from tfaccel.exporting.preprocessing import preprocessing

    texts = [*ODD_TEXTS, "", " ", "a  b ", "x\u2581y", "\t\n"]
    vocabulary = Vocabulary.of(ODD_TEXTS[:-1] * 3, unit="subwords", most_tokens=200)
    encode, spec, _ = preprocessing(TextInput(vocabulary=vocabulary, num_tokens=20))
    found = tf.function(encode, input_signature=[spec])(tf.constant(texts)).numpy()
    assert found.tolist() == vocabulary.encode_all(texts, 20).tolist()
    assert vocabulary.longest > 3 and len(np.unique(found)) > 20


def test_images_in_the_graph_are_those_of_training(tmp_path):
    import tensorflow as tf

    from tfaccel.data.images.image_data import decoder
    from tfaccel.data.images.image_set import ImageSet
    from tfaccel.exporting.preprocessing import preprocessing

    rng, contents = np.random.default_rng(0), []
    for number, (size, mode) in enumerate([((9, 13), "RGB"), ((8, 8), "L"), ((40, 31), "RGBA")]):
        shape = (*size[::-1], len(mode)) if len(mode) > 1 else size[::-1]
        picture = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8), mode)
        kind = "JPEG" if number == 0 else "PNG"
        picture.save(tmp_path / f"{number}", kind)
        contents.append((tmp_path / f"{number}").read_bytes())
    of = ImageSet(
        class_names=("a", "b"), image_size=8, num_channels=3, num_train_images=3, num_test_images=0, load=tuple
    )
    trained_on = decoder(tuple(str(tmp_path / f"{number}") for number in range(3)), of)(tf.range(3)).numpy()
    decode, _, _ = preprocessing(ImageInput(image_size=8, num_channels=3))
    assert np.array_equal(decode(tf.constant(contents)).numpy(), trained_on.astype(np.float32))


def test_raw_rows_give_what_their_tensors_give():
    import tensorflow as tf

    from tfaccel.exporting.signatures import make_signatures

    model = image_model()
    content = io.BytesIO()
    Image.fromarray(pixels(1)[0, ..., 0].astype(np.uint8)).save(content, "PNG")
    outputs = make_signatures(model, IMAGES).functions["serving_raw"](image_bytes=tf.constant([content.getvalue()]))
    logits = model(pixels(1)).numpy()
    wanted = np.exp(logits) / np.exp(logits).sum()
    assert np.allclose(outputs["probabilities"], wanted, atol=1e-6)
    assert outputs["label"].numpy().tolist() == [IMAGES.class_names[logits.argmax()].encode()]
    texts = make_signatures(text_model(), TEXTS).functions["serving_raw"](text=tf.constant(["It's nice", ""]))
    assert texts["probabilities"].shape == (2, 2)


def test_hashed_ids_in_the_graph_are_those_of_training():
    import tensorflow as tf

    from tfaccel.exporting.preprocessing import table_preprocessing

    # All categories of "rare" are in few training rows.
    kinds = (CategoricalColumn("user", (), num_buckets=50), CategoricalColumn("genre", ("b",)))
    kinds += (CategoricalColumn("rare", ()),)
    encoding = TableEncoding(numeric=(), categorical=kinds, target="click")
    users, genres = ["anna", " bert ", "", "none", "\u00c4ffchen"], ["b", "c", "", "b", " b"]
    rare = ["Na", "NA", "", "b", " x"]
    encode, _, _ = table_preprocessing(encoding, ["user", "genre", "rare"])
    columns_given = {"user": tf.constant(users), "genre": tf.constant(genres), "rare": tf.constant(rare)}
    found = encode(**columns_given)["categories"].numpy().tolist()
    texts = {"user": ["anna", "bert", None, "none", "\u00c4ffchen"], "genre": ["b", "c", None, "b", "b"]}
    texts |= {"rare": ["Na", None, None, "b", "x"]}
    columns = tuple(Column(name, np.array(values, dtype=object)) for name, values in texts.items())
    assert found == encoding.encode(Table("views", columns))["categories"].tolist()
    assert TableEncoding.from_json(encoding.to_json()) == encoding


PETS = TableInput.of(
    TableEncoding(
        numeric=(NumericColumn("age in years", 4.0, 2.0, True), NumericColumn("kg", 9.0, 3.0, False)),
        categorical=(CategoricalColumn("kind", ("cat", "none", "\u00c4ffchen")),),
        target="stays",
        class_names=("no", "yes"),
    )
)


def pets_model():
    import keras

    inputs = {
        "numbers": keras.Input((2,), name="numbers"),
        "categories": keras.Input((1,), dtype="int32", name="categories"),
    }
    codes = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(inputs["categories"]))
    both = keras.layers.Concatenate()([keras.ops.nan_to_num(inputs["numbers"]), codes])
    return keras.Model(inputs, keras.layers.Dense(2)(both))


def test_columns_in_the_graph_are_those_of_training(tmp_path):
    import tensorflow as tf

    from tfaccel.exporting.preprocessing import table_preprocessing
    from tfaccel.exporting.sample_rows import raw_rows, rows_of_raw
    from tfaccel.exporting.signatures import make_signatures

    kinds = ["cat", " cat ", "none", "NONE", "N/A", "", "?", "Cat", "\u00c4ffchen", "dog"]
    ages = [*map(float, range(9)), float("nan")]
    table = Table(
        "pets",
        (
            Column("kg", np.array(ages)),
            Column("age in years", np.array(ages) / 3),
            Column(
                "kind",
                np.array(["cat", "cat", "none", "NONE", None, None, None, "Cat", "\u00c4ffchen", "dog"], dtype=object),
            ),
        ),
    )
    encode, specs, _ = table_preprocessing(PETS.encoding, ["age", "kg", "kind"])
    assert {name: spec.dtype.name for name, spec in specs.items()} == {
        "age": "float32",
        "kg": "float32",
        "kind": "string",
    }
    columns = {"age": np.array(ages, np.float32) / 3, "kg": np.array(ages, np.float32), "kind": kinds}
    found = tf.function(encode)(**{name: tf.constant(values) for name, values in columns.items()})
    wanted = PETS.encoding.encode(table)
    assert sorted(found) == sorted(wanted)
    assert np.allclose(found["numbers"], wanted["numbers"], equal_nan=True)
    assert found["categories"].numpy().tolist() == wanted["categories"].tolist()

    functions = make_signatures(pets_model(), PETS).functions
    assert get_specs(functions["serving_raw"]) == {
        "age_in_years": ([None], "float32"),
        "kg": ([None], "float32"),
        "kind": ([None], "string"),
    }
    rows = {"numbers": np.ones((4, 2), np.float32), "categories": np.array([[4], [1], [0], [2]], np.int32)}
    raw = raw_rows(PETS, rows)
    assert raw["kind"].tolist() == ["\u00c4ffchen".encode(), b" another ", b"", b"cat"]
    again = rows_of_raw(PETS, raw, rows)
    assert again["categories"].tolist() == [[4], [1], [0], [2]]
    assert np.isnan(again["numbers"]).tolist() == [[False, False]] * 3 + [[True, True]]
    outputs = functions["serving_raw"](**{name: tf.constant(values.tolist()) for name, values in raw.items()})
    assert set(outputs["label"].numpy()) <= {b"no", b"yes"} and outputs["probabilities"].shape == (4, 2)


def test_numbers_less_an_offset_are_served_in_float64():
    import tensorflow as tf

    from tfaccel.exporting.preprocessing import table_preprocessing
    from tfaccel.exporting.sample_rows import raw_rows, rows_of_raw

    times = 1_700_000_000_000 + 1000.0 * np.arange(60)
    column = NumericColumn.of("when", times)
    raw_input = TableInput.of(TableEncoding(numeric=(column,), categorical=(), target="y"))
    encode, specs, _ = table_preprocessing(raw_input.encoding, ["when"])
    assert specs["when"].dtype == tf.float64
    wanted = raw_input.encoding.encode(Table("t", (Column("when", times),)))["numbers"]
    found = tf.function(encode).get_concrete_function(**specs)(when=tf.constant(times, tf.float64))["numbers"]
    assert np.array_equal(found, wanted)
    assert len(np.unique(wanted)) == 60
    raw = raw_rows(raw_input, {"numbers": wanted[:4]})
    assert np.array_equal(rows_of_raw(raw_input, raw, {})["numbers"], [*wanted[:3], [np.nan]], equal_nan=True)


ODD_COLUMNS = [
    "class",
    "% change",
    "self",
    "_id",
    "__doc__",
    "\u5e74\u9f62",
    "None",
    "lambda",
    "a.b",
    "a b",
    "a_b",
    "a_b_9",
    "1",
    "",
]


def test_columns_of_any_name_are_served(tmp_path):
    import keras
    import tensorflow as tf

    from tfaccel.exporting.signatures import column_names, make_signatures

    numeric = tuple(NumericColumn(name, 0.0, 1.0, False) for name in ODD_COLUMNS)
    raw_input = TableInput.of(TableEncoding(numeric=numeric, categorical=(), target="y"))
    numbers = keras.Input((len(numeric),), name="numbers")
    weights = np.arange(1.0, len(numeric) + 1)[:, np.newaxis]
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(weights), use_bias=False)
    model = keras.Model({"numbers": numbers}, dense(numbers))
    names = column_names(raw_input)
    assert len(set(names)) == len(names)
    function = make_signatures(model, raw_input).functions["serving_raw"]
    module = tf.Module()
    module.function, module.kept = function, [variable.value for variable in model.variables]
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_raw": function})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serving_raw"]
    for place, name in enumerate(names):  # Each name stands for its own column.
        row = {other: tf.constant([float(other == name)]) for other in names}
        assert next(iter(loaded(**row).values())).numpy().item() == place + 1


def test_inputs_of_any_name_are_served():
    import keras

    from tfaccel.exporting.signatures import make_signatures

    inputs = {name: keras.Input((2,), name=name) for name in ("class", "self", "_id")}
    model = keras.Model(inputs, keras.layers.Concatenate()(list(inputs.values())))
    assert list(make_signatures(model).inputs) == ["inputs_class", "inputs_id", "inputs_self"]


def test_raw_inputs_that_do_not_fit_are_refused():
    from tfaccel.exporting.signatures import make_signatures

    with pytest.raises(
        ExportError, match=r"A model of this table must have the inputs categories, numbers\. Received: pixels\."
    ):
        make_signatures(image_model(), PETS)

    with pytest.raises(ExportError, match=r"takes tensors of shape .*8, 8, 1.*raw inputs give .*9, 9, 1"):
        make_signatures(image_model(), ImageInput(image_size=9, num_channels=1))
    with pytest.raises(ExportError, match=r"Raw inputs are supported for models with one input\. Received: 2"):
        make_signatures(several_model(), IMAGES)


def test_outputs_that_are_no_classes_keep_their_names():
    from tfaccel.exporting.signatures import make_signatures

    raw = ImageInput(image_size=8, num_channels=1)
    assert list(make_signatures(image_model(), raw).functions["serving_raw"].structured_outputs) == ["logits"]
    assert list(make_signatures(image_model(), RawInput(class_names=("a",))).functions) == ["serving_default"]
