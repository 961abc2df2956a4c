"""The axes name every value that has to be proved, and the chosen cases hold every valid pair of them."""

import itertools
from collections import Counter

import pytest

from tfaccel.errors import TfaccelError
from tfaccel.parity.axes import AXES, PLACEMENTS, covering_set, excluded, full_product, get_axes
from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow, Placement, case_from_json


def pairs_of(cases, axes):
    chosen = [[(axis, getattr(case, axis)) for axis in axes] for case in cases]
    return {frozenset(pair) for values in chosen for pair in itertools.combinations(values, 2)}


def test_every_valid_pair_is_covered_and_no_excluded_one():
    axes = get_axes(PLACEMENTS)
    valid = {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(axes, 2)
        for x in axes[a]
        for y in axes[b]
        if excluded((a, x), (b, y)) is None
    }
    most = max(Counter(frozenset(axis for axis, _ in pair) for pair in valid).values())
    cases = covering_set(PLACEMENTS, with_twins=False)
    assert pairs_of(cases, axes) == valid
    assert len(cases) < 1.1 * most  # no pair of axes has more valid pairs than `most`


def test_every_low_precision_case_is_followed_by_itself_in_float32():
    cases = covering_set(PLACEMENTS)
    low = [case for case in cases if case.layer_dtype != "float32"]
    assert {case.dtype_policy for case in low} == {"mixed_bfloat16", "mixed_float16"}
    assert all(case.in_float32() in cases for case in low)
    assert all(case.in_float32().layer_dtype == "float32" for case in low)
    assert len(set(cases)) == len(cases)


def test_exclusions_give_a_reason_in_either_order():
    masks, dense = ("weighting", "masks"), ("model", "dense")
    assert excluded(masks, dense) == excluded(dense, masks) == "only token models propagate a mask"
    assert excluded(masks, ("model", "lstm")) is None
    assert "full batches" in excluded(("model", "stateful_lstm"), ("last_batch", "short"))
    assert "one output" in excluded(("model", "two_outputs"), ("weighting", "class_weights"))
    assert "GAN" in excluded(("weighting", "sample_weights"), ("model", "gan"))
    assert excluded(("xla", True), ("source", "numpy")) is None


def test_full_product_holds_every_valid_combination_once():
    cases = list(itertools.islice(full_product(PLACEMENTS[:1]), 20000))
    assert len(set(cases)) == len(cases)
    assert not any(excluded(("model", c.model), ("weighting", c.weighting)) for c in cases)
    first = cases[0]
    assert cases[1].xla != first.xla  # neighbours share their reference
    assert ParityCase(first.placement, **{axis: values[0] for axis, values in AXES.items()}) == first


def test_cases_go_through_json():
    for case in [*covering_set(PLACEMENTS), ParityCheck(PLACEMENTS[0], "something_holds")]:
        assert case_from_json(case.to_json()) == case


def test_names_tell_all_cases_apart():
    cases = covering_set(PLACEMENTS, num_axes=2)
    assert len({(case.name, case.placement) for case in cases}) == len(cases)
    case = ParityCase(Placement("mirrored", 2), accumulation=4, clipping="clipnorm", weighting="masks", xla=True)
    assert case.name == "dense sgd clipnorm accumulation=4 float32 xla last-batch=even masks numpy"
    assert ParityCheck(case.placement, "something_holds").name == "something holds"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("parameter_server", 2), "The strategy must be one of none, .* Received: 'parameter_server'"),
        (("mirrored", 0), "must be at least 1.* Received: num_replicas=0, strategy='mirrored'"),
        (("one_device", 2), "Received: num_replicas=2, strategy='one_device'"),
    ],
)
def test_impossible_placements_are_refused(arguments, message):
    with pytest.raises(TfaccelError, match=message):
        Placement(*arguments)


def test_placements_in_words():
    assert str(Placement("mirrored", 3)) == "MirroredStrategy, 3 replicas"
    assert str(Placement("multi_worker")) == "MultiWorkerMirroredStrategy, 1 worker"
    assert str(Placement("none")) == "no strategy"


def test_rows_go_through_json_without_empty_texts():
    row = ParityRow("a case", "a strategy", 1e-7, 1e-5, True, seconds=1.5)
    assert row.to_json() == {
        "case": "a case",
        "strategy": "a strategy",
        "max_abs_diff": 1e-7,
        "tolerance": 1e-5,
        "ok": True,
        "seconds": 1.5,
    }
    assert ParityRow.from_json(row.to_json()) == row
    failed = ParityRow("a case", "a strategy", None, 1e-5, False, fault="this", note="that")
    assert ParityRow.from_json(failed.to_json()) == failed
