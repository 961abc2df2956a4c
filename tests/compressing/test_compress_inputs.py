"""Data that `compress` is given: in every form that Keras takes, judged as they are, or refused by name."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfaccel import compress
from tfaccel.compressing.call_signature import get_signature
from tfaccel.compressing.comparison.drop_judge import Agreement
from tfaccel.compressing.comparison.task_metric import TaskMetrics, lower_is_better
from tfaccel.compressing.compress_source import check_ranges, get_batches, get_repeated_batches, make_source
from tfaccel.errors import CompressionError

QUICK = {"latency_seconds": 0.01, "num_threads": (1,), "num_representative": 20}
NUMBERS = np.random.default_rng(4).normal(size=(12, 4)).astype("float32")


def dense_model(units=3, **inputs):
    return keras.Sequential([keras.Input((4,), name="numbers", **inputs), layers.Dense(units)])


def token_model():
    parts = [layers.Embedding(10, 8), layers.Flatten(), layers.Dense(2)]
    return keras.Sequential([keras.Input((4,), dtype="int32", name="tokens"), *parts])


def text_model():
    words = layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4)
    parts = [words, layers.Embedding(4, 8), layers.Flatten(), layers.Dense(2)]
    return keras.Sequential([keras.Input((1,), dtype="string", name="words"), *parts])


def two_inputs_model():
    first, second = keras.Input((4,), name="first"), keras.Input((2,), name="second")
    return keras.Model([first, second], layers.Dense(2)(layers.Concatenate()([first, second])))


def repeated_for_ever():
    return tf.data.Dataset.from_tensors(NUMBERS).repeat()


def changed(row, value):
    array = NUMBERS.copy()
    array[row, 1] = value
    return array


@pytest.mark.parametrize(
    ("make_model", "representative", "given", "message"),
    [
        (
            dense_model,
            changed(3, np.nan),
            {"validation_data": NUMBERS},
            "Received: nan in input 'numbers' of example 3 of the representative data given. Leave such examples out",
        ),
        (dense_model, changed(0, np.inf), {"validation_data": NUMBERS}, "inf in input 'numbers' of example 0 "),
        (
            dense_model,
            NUMBERS,
            {"validation_data": changed(2, np.nan)},
            "The float model gives nan in 'outputs' for the validation data given",
        ),
        (dense_model, NUMBERS.astype("<U8"), {}, r"'numbers' must be an array of numbers\. Received: the"),
        (dense_model, [NUMBERS, NUMBERS], {}, r"The model takes 1 inputs \(numbers\)\. Received: the .* given with 2"),
        (dense_model, NUMBERS[0], {}, r"'numbers' must be of shape \(rows, 4\)\. Received: .* of shape \(4,\)"),
        (dense_model, 3, {}, r"representative_data must be a tf\.data\.Dataset of batches, or arrays .* Received: int"),
        (dense_model, (NUMBERS,) * 4, {}, r"must be \(inputs, targets, weights\) at most\. Received: 4 parts"),
        (dense_model, NUMBERS, {"validation_data": (NUMBERS, NUMBERS[:5])}, r"Received arrays of 5, 12 rows"),
        (
            dense_model,
            NUMBERS,
            {"validation_data": repeated_for_ever},
            r"validation_data must end\. Received: an infinite data set",
        ),
        (
            two_inputs_model,
            (NUMBERS, NUMBERS[:, :2]),
            {},
            r"takes 2 inputs \(first, second\)\. .* with 1\. Give several inputs as a dictionary or a list",
        ),
        (token_model, NUMBERS, {}, r"Input 'tokens' takes integers \(int32\)\. Received: .* with -?\d+\.\d+"),
        (token_model, np.full((4, 4), 99), {}, "LiteRT cannot run the model on an example: gather index out of bounds"),
        (
            text_model,
            np.array([["a b"], ["b"]]),
            {},
            "'words' must be an array of numbers.* A model of text is compressed without its text vectorization",
        ),
        (text_model, np.array([["a b"], ["b"]], object), {}, "A model of text is compressed without"),
    ],
)
def test_data_that_do_not_fit_are_refused(logical_devices, tmp_path, make_model, representative, given, message):
    given = {name: data() if callable(data) else data for name, data in given.items()}
    with pytest.raises(CompressionError, match=message):
        compress(
            make_model(),
            methods="int8",
            representative_data=representative,
            out_dir=str(tmp_path / "out"),
            **given,
            **QUICK,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (NUMBERS, r"loss and metrics cannot be computed on the held-out data \(targets: \(12, 4\) float32\)"),
        (np.array(["yes"] * 12), r"cannot be computed on the held-out data \(targets: \(12,\) "),
    ],
)
def test_targets_that_the_loss_does_not_take_are_refused(logical_devices, tmp_path, targets, message):
    model = dense_model()
    model.compile(loss="mse")
    with pytest.raises(CompressionError, match=message):
        compress(
            model,
            methods="float16",
            representative_data=NUMBERS,
            validation_data=(NUMBERS, targets),
            out_dir=str(tmp_path / "out"),
            **QUICK,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make_data",
    [
        lambda rows: {"numbers": rows},
        lambda rows: {"numbers": tf.constant(rows)},
        lambda rows: ({"numbers": rows.astype("float64")}, rows),
        lambda rows: tf.data.Dataset.from_tensor_slices({"numbers": rows}).batch(5),
    ],
)
def test_inputs_are_taken_as_keras_takes_them(logical_devices, make_data):
    numbers = keras.Input((4,), name="numbers")
    model = keras.Model({"numbers": numbers}, layers.Dense(3)(numbers))
    source = make_source(model, None, representative_data=make_data(NUMBERS))
    rows = [row for x, _, _ in source.held_out() for row in source.signature.rows(x)]
    assert np.array_equal(np.concatenate([row["numbers"] for row in rows]), NUMBERS)
    assert {row["numbers"].dtype.name for row in rows} == {"float32"}


def test_list_is_the_inputs_and_a_tuple_has_targets(logical_devices):
    source = make_source(two_inputs_model(), None, representative_data=[NUMBERS, NUMBERS[:, :2]])
    assert [tensor.name for tensor in source.signature.inputs] == ["first", "second"]
    ((_, y, _),) = get_batches((NUMBERS, NUMBERS[:, :1]), what="data")()
    assert y.shape == (12, 1)


def test_shuffled_data_have_one_order(logical_devices, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shuffled = tf.data.Dataset.from_tensor_slices((NUMBERS, np.arange(12))).shuffle(12, seed=3).batch(4)
    passes = [[y.tolist() for _, y, _ in get_batches(shuffled, what="data")()] for _ in range(2)]
    assert passes[0] != passes[1]
    batches = get_repeated_batches(shuffled, what="data")
    passes = [[y.tolist() for _, y, _ in batches()] for _ in range(2)]
    assert passes[0] == passes[1]
    assert sorted(itertools.chain(*passes[0])) == list(range(12))
    assert len(list(tmp_path.iterdir())) == 1
    del batches
    assert list(tmp_path.iterdir()) == []
    same = tf.data.Dataset.from_tensor_slices(NUMBERS).batch(4)
    assert len(list(get_repeated_batches(same, what="data")())) == 3
    assert list(tmp_path.iterdir()) == []


def test_whole_numbers_may_be_written_as_floats(logical_devices):
    signature = get_signature(token_model(), np.zeros((1, 4), "int64"))
    (row,) = signature.rows(np.full((1, 4), 3.0))
    assert (row["tokens"].dtype.name, row["tokens"].tolist()) == ("int32", [[3, 3, 3, 3]])
    check_ranges([row], what="data")


def test_metric_s_class_says_what_is_better(logical_devices):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    metrics = [keras.metrics.MeanAbsoluteError(name="how_far"), keras.metrics.R2Score(name="error_share"), "mse"]
    model.compile(loss="mse", metrics=metrics)
    task = TaskMetrics(get_batches((NUMBERS, NUMBERS[:, :1]), what="data"), compiled=model)
    found = task.of_float_model(lambda x: np.zeros((len(x), 1), "float32"))
    assert set(found) == {"loss", "how_far", "error_share", "mse", "agreement"}
    directions = {name: task.lower_is_better(name) for name in found}
    assert directions == {"loss": True, "how_far": True, "error_share": False, "mse": True, "agreement": False}
    assert lower_is_better("false_positives")
    assert not lower_is_better("true_positives")


def test_agreement_of_several_outputs_is_their_mean(logical_devices):
    kinds, numbers = np.eye(3, dtype="float32")[[0, 1, 2, 0]], np.arange(4, dtype="float32")[:, None]
    both = Agreement()
    both.update([kinds, numbers], [kinds, numbers * 0], [np.array([0, 1, 2, 0]), numbers])
    assert both.result() == pytest.approx(0.5)
    far = Agreement()  # The spread is found though numbers are far from nothing.
    for part in (slice(0, 2), slice(2, 4)):
        far.update(1e8 + numbers[part].astype("float64"), 1e8 + numbers[part].astype("float64") + 0.5, None)
    assert far.result() == pytest.approx(1 - 4 * 0.25 / 5)
    assert np.isnan(Agreement().result())


@pytest.mark.slow
def test_outcome_takes_the_place_of_an_earlier_one_only(logical_devices, tmp_path):
    model, out = dense_model(64), tmp_path / "out"
    given = {"representative_data": NUMBERS, **QUICK}
    found = compress(model, methods="float16", max_metric_drop=0.1, out_dir=out, **given)
    assert found.winner is not None
    assert (out / "model.tflite").is_file()
    (tmp_path / "link").symlink_to(out)
    file = tmp_path / "dense.keras"
    model.save(file)
    assert compress(file, methods="dynamic", max_metric_drop=-1, out_dir=tmp_path / "link", **given).winner is None
    assert sorted(path.name for path in out.iterdir()) == ["report.json", "size_and_metric.png", "variants"]
    assert {path.name for path in (out / "variants").iterdir()} == {"float32.tflite", "dynamic.tflite"}
    assert {path.name for path in tmp_path.iterdir()} == {"dense.keras", "link", "out"}
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(CompressionError, match=r"holds something else than compressed models \(thesis\.txt\)"):
        compress(model, methods="float16", out_dir=out, **given)
    assert (out / "thesis.txt").read_text() == "mine"
