"""The nouns of `compress`: methods, options, variants, and the verdict of the gate."""

import json
import math

import numpy as np
import pytest

from tfaccel.compressing.compress import known_workload
from tfaccel.compressing.compress_options import CompressOptions
from tfaccel.compressing.compress_result import HEADINGS, CompressResult, cells, get_notes
from tfaccel.compressing.litert.sensitivity import Sensitivity
from tfaccel.compressing.methods import checked_methods, get_parts
from tfaccel.compressing.variant import Latency, LayerCost, Variant, VariantResult
from tfaccel.errors import CompressionError, WorkloadError


def result(name="int8", *, accuracy=0.9, size=100, seconds=(1e-3,), suffix=".tflite", **fields):
    latencies = [
        Latency(num_threads=n + 1, p50_seconds=s, p95_seconds=2 * s, num_calls=20) for n, s in enumerate(seconds)
    ]
    variant = Variant(name=name, method=name, path=f"{name}{suffix}")
    known = {
        "metrics": {"accuracy": accuracy},
        "size_bytes": size,
        "zipped_bytes": size // 2,
        "latencies": latencies,
        "num_operations": 4,
        "float_operations": {},
        "agreement": 1.0,
        "peak_memory_bytes": 5000,
    }
    return VariantResult(variant=variant, **{**known, **fields})


def gate(*results, **fields):
    of_float = result("float32", accuracy=0.92, size=400, seconds=(2e-3, 1.5e-3), float_operations={"CONV_2D": 4})
    return CompressResult(metric="accuracy", results=(of_float, *results), held_out="10 examples", **fields)


def test_smallest_form_within_the_limit_wins():
    found = gate(
        result("float16", accuracy=0.92, size=200),
        result("int8", accuracy=0.915, size=100),
        result("weight_int4", accuracy=0.85, size=60),
    )
    assert found.winner.variant.name == "int8"
    verdicts = [found.verdict(one) for one in found.results]
    assert verdicts[:3] == ["the float model", "within the limit", "smallest within the limit"]
    assert verdicts[3] == "accuracy is worse by 0.07: too much"
    assert found.drop(found.results[3]) == pytest.approx(0.07)
    assert found.summary()[0].startswith(
        "Smallest within the limit (accuracy worse by 0.01 at most): int8, 0.25 of float32"
    )


def test_a_metric_that_should_fall_drops_when_it_rises():
    found = gate(result(accuracy=0.95), lower_is_better=True)
    assert found.winner is None
    assert found.drop(found.results[1]) == pytest.approx(0.03)
    assert gate(result(accuracy=0.85), lower_is_better=True).winner is not None


def test_a_gain_can_be_demanded():
    assert gate(result(accuracy=0.925), max_metric_drop=-0.01).winner is None
    found = gate(result(accuracy=0.935), max_metric_drop=-0.01)
    assert found.winner.variant.name == "int8"
    too_small = gate(result(accuracy=0.925), max_metric_drop=-0.01)
    assert too_small.verdict(too_small.results[1]) == "gain too small"
    assert too_small.summary()[0].startswith(
        "Do not compress: no variant is within the limit (accuracy better by 0.01 at least)"
    )


def test_the_limit_itself_is_allowed():
    assert gate(result(accuracy=0.92 - 0.01)).winner is not None
    assert gate(result(accuracy=0.92 - 0.0101)).winner is None


def test_a_slower_form_is_said_so_and_never_recommended_for_speed():
    slow = gate(result(accuracy=0.92, seconds=(3e-3, 1.6e-3)))
    assert slow.winner.variant.name == "int8"
    assert slow.fastest is None
    assert "slower than float32, do not use it for speed" in slow.verdict(slow.results[1])
    assert slow.summary()[1].startswith("For speed, use none of them")
    fast = gate(result(accuracy=0.92, seconds=(1e-3,)), result("bad", accuracy=0.5, seconds=(1e-4,)))
    assert fast.fastest.variant.name == "int8"
    assert fast.latency_ratio(fast.results[1]) == pytest.approx(1 / 1.5)


def test_a_slower_winner_is_said_to_be_slower():
    summary = gate(result(accuracy=0.92, seconds=(3e-3,)), result("float16", accuracy=0.92, size=300)).summary()
    assert summary[0].endswith("zipped 0.25. It is slower than float32, 2.00 of its latency: do not use it for speed.")
    assert summary[1].startswith("Fastest within the limit: float16, 0.67 of its latency")


def test_a_form_in_keras_is_not_the_fastest_where_litert_is_faster():
    slow = result("keras_int8", accuracy=0.92, size=300, seconds=(5e-3,), suffix=".keras")
    found = gate(result("keras_float32", accuracy=0.92, size=1000, seconds=(1e-2,), suffix=".keras"), slow)
    assert found.latency_ratio(slow) == 0.5
    assert found.fastest is None
    assert "slower" not in found.verdict(slow)
    failed = result("keras_float32", failure="no", metrics={}, latencies=(), suffix=".keras")
    assert gate(failed, result(accuracy=0.92)).fastest.variant.name == "int8"


def test_what_is_not_smaller_or_failed_or_no_number_does_not_win():
    found = gate(
        result("float16", accuracy=0.92, size=400),
        result("dynamic", failure="no such operation", metrics={}, latencies=()),
        result("int16x8", accuracy=math.nan),
    )
    assert found.winner is None
    verdicts = [found.verdict(one) for one in found.results[1:]]
    assert verdicts == ["not at least 5% smaller than float32", "failed: no such operation", "accuracy is not a number"]


def test_a_pruned_form_is_smaller_when_zipped_only_and_comes_last():
    pruned = result("prune", accuracy=0.92, size=400, zipped_bytes=60)
    found = gate(pruned)
    assert found.winner.variant.name == "prune"
    assert found.verdict(pruned) == "smallest within the limit, smaller than float32 only when zipped"
    assert found.summary()[0].endswith("prune, 1.00 of float32, zipped 0.30.")
    assert gate(pruned, result(accuracy=0.915, size=370)).winner.variant.name == "int8"


@pytest.mark.parametrize(
    ("size", "zipped", "wins"),
    [
        (399, 10_000, False),
        (400, 199, False),
        (395, 195, False),
        (401, 190, True),
        (405, 100, False),
        (380, 203, False),
        (380, 202, True),
        (800, 100, False),
    ],
)
def test_a_form_wins_only_if_it_saves_enough_in_one_size_and_is_larger_in_neither(size, zipped, wins):
    found = gate(result("mixed", accuracy=0.92, size=size, zipped_bytes=zipped, seconds=(9e-3,)))
    assert (found.winner is not None) == wins
    if not wins:
        assert "not at least 5% smaller than float32" in found.verdict(found.results[1])
        assert found.summary()[0].endswith("and at least 5% smaller than float32, in its file or zipped.")


def test_of_equally_small_forms_the_fastest_wins():
    slow = result("int8", accuracy=0.915, size=100, seconds=(2e-3,))
    fast = result("dynamic", accuracy=0.92, size=103, seconds=(1e-3,))
    assert gate(slow, fast).winner.variant.name == gate(fast, slow).winner.variant.name == "dynamic"
    assert gate(slow, result("float16", accuracy=0.92, size=200, seconds=(1e-4,))).winner.variant.name == "int8"


class Quantizer:
    """Stands for `SelectiveQuantizer`: what it gives are the names of the layers in int8."""

    layers = {name: {"CONV_2D": 1} for name in ("first", "second", "third", "fourth")}

    def quantize(self, layers):
        return " ".join(layers).encode()


@pytest.mark.parametrize(
    ("max_drop", "kept"), [(0.5, ()), (0.3, ("fourth",)), (0.1, ("fourth", "third")), (0.0, ("fourth", "third"))]
)
def test_mixed_keeps_no_layer_in_float_where_none_is_needed(max_drop, kept):
    drops = {name: 0.05 * 2**place for place, name in enumerate(Quantizer.layers)}
    drop_of = lambda content: sum(drops[name] for name in content.decode().split()) / 2  # noqa: E731
    sensitivity = Sensitivity(
        Quantizer, drop_of=drop_of, highest_drop_of=drop_of, get_error=lambda content: 0.1, progress=lambda text: None
    )
    content, found = sensitivity.mixed(max_drop)
    assert found == kept
    assert content.decode().split() == [name for name in Quantizer.layers if name not in kept]


def test_a_keras_model_is_compared_with_the_float_model_in_keras():
    found = gate(
        result("keras_float32", accuracy=0.92, size=1000, seconds=(1e-2,), suffix=".keras"),
        result("keras_int8", accuracy=0.92, size=300, seconds=(5e-3,), suffix=".keras"),
    )
    assert found.size_ratio(found.results[2]) == 0.3
    assert found.latency_ratio(found.results[2]) == 0.5
    assert found.verdict(found.results[1]) == "the float model"
    assert found.winner.variant.name == "keras_int8"


def test_result_survives_json():
    costs = (LayerCost(layer="dense", operations={"FULLY_CONNECTED": 1}, drop=0.1, output_error=0.2),)
    found = gate(
        result(),
        result("int16x8", failure="no", metrics={}, latencies=(), agreement=math.nan),
        sensitivity=costs,
        representative="5 examples",
    )
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert CompressResult.from_json(data).to_json() == found.to_json()
    assert (data["winner"], data["results"][1]["size_ratio"], data["results"][2]["drop"]) == (None, 0.25, None)


def test_metrics_that_are_no_numbers_are_written_as_null():
    variant = Variant(name="qat", method="qat", path="qat.tflite", metrics={"imitated_loss": math.nan})
    data = json.loads(json.dumps(VariantResult(variant=variant, metrics={"loss": math.inf}).to_json(), allow_nan=False))
    assert data["variant"]["metrics"] == {"imitated_loss": None}
    assert math.isnan(VariantResult.from_json(data).variant.metrics["imitated_loss"])


def test_table_has_a_cell_for_each_heading():
    found = gate(result(float_operations={"SOFTMAX": 1}), result("dynamic", failure="no such operation"))
    rows = [cells(found, one) for one in found.results]
    assert {len(row) for row in rows} == {len(HEADINGS)}
    assert rows[1][:6] == ["int8", "0.9000", "-0.0200", "100 B", "0.25", "50 B"]
    assert rows[1][6:11] == ["1: 1.00 ms / 2.00 ms", "0.67", "5.0 kB", "1 of 4", "1.0000"]
    assert get_notes(found, found.results[1]) == ["int8: in float are 1 SOFTMAX."]
    assert rows[2][-1] == "failed: no such operation"


def test_methods_go_together_or_are_refused():
    assert checked_methods("int8, prune+int8") == ("int8", "prune+int8")
    assert [part.name for part in get_parts("cluster+dynamic")] == ["cluster", "dynamic"]
    for methods, message in [
        ("int9", r"There is no method 'int9'\. Did you mean 'int8'\?"),
        ([], "Name at least one method"),
        ("prune+inte8", r"There is no method 'inte8'\. Did you mean 'int8'\?"),
        ("int8+prune", r"int8 cannot be followed by prune\. Received: 'int8\+prune'"),
        ("qat+int8", "qat cannot be followed by int8"),
    ]:
        with pytest.raises(CompressionError, match=message):
            checked_methods(methods)


def test_options_are_checked():
    assert CompressOptions.of({"num_threads": [1, 2]}).num_threads == (1, 2)
    for options, message in [
        ({"num_repressentative": 3}, "There is no option 'num_repressentative'. Did you mean 'num_representative'"),
        ({"num_threads": (0,)}, "`num_threads` must be an integer of at least 1. Received: 0"),
        ({"latency_seconds": 0}, "`latency_seconds` must be a number above 0"),
        ({"direction": "mni"}, "Did you mean 'min'"),
        ({"num_threads": 2}, r"`num_threads` must be a list of integers\. Received: 2"),
        ({"metric": 3}, "`metric` must be the name of a metric, or None"),
        ({"progress": "yes"}, "`progress` must be a function that takes a line"),
        ({"training": {"epcohs": 3}}, r"Training has no option 'epcohs'\. Did you mean 'epochs'"),
        ({"training": {"sparsity": 2}}, "`sparsity` must be above 0 and below 1"),
    ]:
        with pytest.raises(CompressionError, match=message):
            CompressOptions.of(options)
    for drop in (math.nan, "much", None, True):
        with pytest.raises(CompressionError, match=rf"`max_metric_drop` must be a number\. Received: {drop!r}"):
            CompressOptions(max_metric_drop=drop)
    assert CompressOptions(max_metric_drop=np.float32(0.5)).max_metric_drop == 0.5
    for methods in (None, 5):
        with pytest.raises(CompressionError, match="`methods` must be names of methods"):
            checked_methods(methods)


def test_variant_is_a_file_of_litert_or_keras():
    variant = Variant(name="a", method="int8", path="a.keras", notes=["one"], metrics={"loss": 1.0})
    assert not variant.is_litert
    assert Variant.from_json(json.loads(json.dumps(variant.to_json()))) == variant
    with pytest.raises(CompressionError, match=r"ends in \.tflite or \.keras\. Received: path='a\.h5'"):
        Variant(name="a", method="int8", path="a.h5")
    with pytest.raises(CompressionError, match="A variant's name must be a text"):
        Variant(name="", method="int8", path="a.tflite")


def test_a_workload_that_takes_its_length_is_refused(tmp_path, monkeypatch):
    (tmp_path / "with_epochs.py").write_text("def workload(epochs=3): ...")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkloadError, match="with_epochs:workload has a parameter `epochs`, which the run decides"):
        known_workload(str(tmp_path), "with_epochs:workload")
