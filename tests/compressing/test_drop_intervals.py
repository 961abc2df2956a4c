"""How sure a drop is: intervals from few and many examples, and what `compress` makes of them."""

import json
import math

import keras
import numpy as np
import pytest
from keras import layers
from scipy import stats

from tfaccel import compress
from tfaccel.compressing.comparison.drop_judge import DropInterval, jackknife_interval, paired_interval
from tfaccel.compressing.comparison.task_metric import TaskMetrics
from tfaccel.compressing.compress_result import CompressResult, cells
from tfaccel.compressing.compress_source import get_batches
from tfaccel.compressing.variant import Latency, Variant, VariantResult
from tfaccel.errors import CompressionError

KNOWN = {"confidence": 0.95, "limit": 0.01}


def test_no_change_in_few_examples_may_still_come():
    for num_examples in (5, 32, 360):
        found = paired_interval(0, 0, num_examples, **KNOWN)
        assert found.high == pytest.approx(1 - 0.05 ** (1 / num_examples))
        assert found.low == -found.high
        assert found.num_needed == 299
    assert paired_interval(0, 0, 10**6, confidence=0.95, limit=0).num_needed is None
    assert paired_interval(5, 1, 100, **KNOWN).num_needed is None  # It is worse by more than the limit.
    assert paired_interval(32, 0, 32, **KNOWN).high == 1.0


def test_bounds_hold_as_often_as_they_promise():
    generator = np.random.default_rng(0)
    for num_examples, worse, better in [(32, 0.05, 0.05), (360, 0.01, 0.005), (1000, 0.02, 0.02), (360, 0.008, 0.0)]:
        counts = generator.multinomial(num_examples, [worse, better, 1 - worse - better], size=400)
        highs = [paired_interval(int(a), int(b), num_examples, confidence=0.95, limit=-1).high for a, b, _ in counts]
        assert np.mean(np.array(highs) < worse - better) < 0.08


def test_needed_number_is_enough_and_one_less_is_not():
    found = paired_interval(1, 1, 100, confidence=0.95, limit=0.02)
    for count, is_enough in [(found.num_needed, True), (found.num_needed - 1, False)]:
        high = paired_interval(count / 100, count / 100, count, confidence=0.95, limit=0.02).high
        assert (high <= 0.02) == is_enough


def no_loss(y_true, y_pred):
    return 0 * keras.ops.mean(y_pred, axis=-1)


def judged(y, of_float, other, metric, *, limit=0.01):
    """The interval of a metric for outputs of two models, and its drop."""
    model = keras.Sequential([keras.Input((1,)), layers.Dense(of_float.shape[-1])])
    model.compile(loss=no_loss, metrics=[] if metric == "agreement" else [metric])
    x = np.arange(len(y), dtype="float32")[:, None]
    task = TaskMetrics(get_batches((x, y), what="data"), compiled=model)
    name = "metric" if isinstance(metric, keras.metrics.Metric) else metric
    before = task.of_float_model(lambda x: of_float[x[:, 0].astype(int)])[name]
    lower = task.lower_is_better(name)
    task.judge_by(name, lower_is_better=lower, limit=limit, confidence=0.95)
    after = task.of(lambda x: other[x[:, 0].astype(int)])[name]
    return task.drop_interval(of_float=before, value=after), after - before if lower else before - after


def test_right_answers_are_paired(logical_devices):
    labels = np.arange(320) % 4
    right = np.eye(4, dtype="float32")[labels]
    other = right.copy()
    other[:3] = other[:3, ::-1]  # three wrong answers
    expected = paired_interval(3, 0, 320, **KNOWN)
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="metric")
    assert judged(labels, right, other, accuracy) == (expected, pytest.approx(3 / 320, abs=1e-6))
    one_hot = keras.metrics.CategoricalAccuracy(name="metric")
    assert judged(right, right, other, one_hot)[0] == expected
    assert judged(labels, right, other, "agreement")[0] == expected
    binary = (np.arange(320) % 2).astype("float32")[:, None]
    swapped = np.where(np.arange(320)[:, None] < 3, 1 - binary, binary)
    assert judged(binary, binary, swapped, keras.metrics.BinaryAccuracy(name="metric"))[0] == expected
    logits = keras.metrics.BinaryAccuracy(name="metric", threshold=0.0)
    assert judged(binary, binary - 0.5, swapped - 0.5, logits)[0] == expected


def test_mean_of_few_examples_has_student_s_interval(logical_devices):
    generator = np.random.default_rng(1)
    y, of_float, other = (generator.normal(size=(20, 1)).astype("float32") for _ in range(3))
    found, drop = judged(y, of_float, other, keras.metrics.MeanAbsoluteError(name="metric"))
    differences = np.abs(other - y)[:, 0] - np.abs(of_float - y)[:, 0]
    low, high = stats.t.interval(0.9, 19, loc=differences.mean(), scale=stats.sem(differences))
    assert drop == pytest.approx(differences.mean(), abs=1e-5)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert math.isinf(judged(y[:1], of_float[:1], other[:1], keras.metrics.MeanAbsoluteError(name="metric"))[0].high)


def test_metric_that_is_no_mean_has_an_interval(logical_devices):
    generator = np.random.default_rng(2)
    y = (generator.random((400, 1)) < 0.5).astype("float32")
    scores = np.clip(0.5 + 0.3 * (y - 0.5) + 0.2 * generator.normal(size=y.shape), 0, 1).astype("float32")
    noisy = np.clip(scores + 0.05 * generator.normal(size=y.shape), 0, 1).astype("float32")
    found, drop = judged(y, scores, noisy, keras.metrics.AUC(name="metric", num_thresholds=500))
    assert found.low < drop < found.high
    assert 0.002 < found.high - found.low < 0.05


def test_fraction_without_a_change_is_as_uncertain_as_its_number_of_examples(logical_devices):
    labels = np.arange(40) % 6
    right = np.eye(6, dtype="float32")[labels]
    top = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="metric")
    found, drop = judged(labels, right, right, top)
    assert drop == 0
    assert found.high == pytest.approx(1 - 0.05 ** (1 / 40))
    tokens = np.tile(labels[:, None], (1, 5))  # several decisions an example
    outputs = np.eye(6, dtype="float32")[tokens]
    found, _ = judged(tokens, outputs, outputs, keras.metrics.SparseCategoricalAccuracy(name="metric"))
    assert (found.high, found.num_needed) == (pytest.approx(1 - 0.05 ** (1 / 40)), 299)
    same = np.ones((40, 1), "float32") * 0.3  # An error that does not move is not taken for a count.
    assert judged(same, same + 1, same + 1, keras.metrics.MeanAbsoluteError(name="metric"))[0].high < 1e-3


def test_jackknife_needs_two_groups():
    assert math.isinf(jackknife_interval(0.0, [], 1, **KNOWN).high)


def result(name, accuracy, size, interval=None, agreement=1.0):
    return VariantResult(
        variant=Variant(name=name, method=name, path=f"{name}.tflite"),
        metrics={"accuracy": accuracy},
        size_bytes=size,
        zipped_bytes=size,
        latencies=[Latency(num_threads=1, p50_seconds=1e-3, p95_seconds=1e-3, num_calls=9)],
        agreement=agreement,
        drop_interval=interval,
        num_operations=1,
        float_operations={},
    )


def gate(*results, confidence=0.95):
    return CompressResult(
        metric="accuracy",
        held_out="32 examples",
        confidence=confidence,
        results=(result("float32", 0.75, 400), *results),
    )


def test_a_form_that_wins_by_one_of_few_examples_does_not_win():
    interval = paired_interval(2, 3, 32, **KNOWN)
    found = gate(result("int8", 0.75 + 1 / 32, 100, interval, agreement=0.81))
    assert (found.winner, found.fastest, found.is_undecided) == (None, None, True)
    assert found.verdict(found.results[1]) == (
        "too few examples to tell: may be worse by 0.098; agrees with float32 in 81.0% only"
    )
    assert found.summary()[:2] == [
        "Too few examples to tell (accuracy worse by 0.01 at most, with 95% confidence).",
        "int8: its accuracy may be worse by up to 0.098, as far as 32 examples can tell. About 252 with the same "
        "outcome would be enough. Give more validation data, allow more (max_metric_drop), or go by the estimate alone "
        "(confidence=0).",
    ]
    assert cells(found, found.results[1])[2] == "+0.0312\n-0.0980 to +0.1642"
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (data["winner"], data["too_few_examples"], data["confidence"]) == (None, True, 0.95)
    assert data["results"][1]["drop_interval"] == {
        "low": pytest.approx(interval.low),
        "high": pytest.approx(interval.high),
        "num_examples": 32,
        "num_needed": 252,
    }
    assert CompressResult.from_json(data).to_json() == found.to_json()
    assert gate(*found.results[1:], confidence=0.0).winner.variant.name == "int8"


def test_a_larger_form_wins_where_the_smaller_one_is_not_sure():
    sure = DropInterval(low=-0.001, high=0.004, num_examples=900, num_needed=300)
    unsure = DropInterval(low=-0.01, high=0.02, num_examples=900, num_needed=None)
    found = gate(result("int8", 0.75, 100, unsure), result("float16", 0.75, 200, sure))
    assert (found.winner.variant.name, found.is_undecided) == ("float16", False)
    assert found.summary()[1] == (
        "int8 would be smaller: its accuracy may be worse by up to 0.02, as far as 900 examples can tell. No number of "
        "examples with the same outcome would be enough. Give more validation data, allow more (max_metric_drop), or "
        "go by the estimate alone (confidence=0)."
    )
    infinite = DropInterval(low=-math.inf, high=math.inf, num_examples=1, num_needed=None)
    assert DropInterval.from_json(json.loads(json.dumps(infinite.to_json(), allow_nan=False))) == infinite


@pytest.mark.slow
def test_compress_refuses_what_too_few_examples_show(logical_devices, tmp_path):
    model = keras.Sequential([keras.Input((16,)), layers.Dense(128, "relu"), layers.Dense(4)])
    model.compile(loss=no_loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")])
    x = np.random.default_rng(0).normal(size=(340, 16)).astype("float32")
    y = np.asarray(model(x)).argmax(axis=-1)
    found = {}
    for rows, options in [(40, {}), (40, {"confidence": 0.0}), (340, {})]:
        out = tmp_path / f"out_{rows}_{len(options)}"
        found[rows, len(options)] = compress(
            model,
            methods="float16",
            representative_data=x,
            validation_data=(x[:rows], y[:rows]),
            metric="accuracy",
            out_dir=out,
            latency_seconds=0.01,
            num_threads=(1,),
            **options,
        )
        assert (out / "model.tflite").exists() == (rows == 340 or bool(options))
    assert [one.is_undecided for one in found.values()] == [True, False, False]
    assert found[40, 0].results[1].drop_interval.num_needed == 299
    assert found[40, 1].results[1].drop_interval is None
    for confidence in (0.4, 1, math.nan, "much"):
        with pytest.raises(CompressionError, match=r"`confidence` must be from 0\.5 to below 1, or 0"):
            compress(model, methods="float16", representative_data=x, out_dir=tmp_path / "no", confidence=confidence)
