import pytest

from tfaccel.extras.tpu.graph_findings import (
    KINDS,
    Finding,
    Node,
    batch_checks,
    find_in_nodes,
    lint_checks,
    place_finder,
    replica_batch_check,
)


def checks_of(*findings, refusal=""):
    facts = {"findings": [f.to_json() for f in findings], "num_operations": 9, "refusal": refusal}
    return {check.name: check for check in lint_checks(facts)}


def find(*nodes, compilable=None):
    found = find_in_nodes(nodes, place_finder(["layer_a", "b"]), compilable=compilable)
    return [(finding.kind, finding.what, finding.where) for finding in found]


def test_a_finding_is_of_a_known_kind():
    with pytest.raises(ValueError, match=r"kind must be one of operation, .*Received: kind='other'"):
        Finding("other", "x", "y")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_check_with_a_fix(kind):
    faults = [check for check in checks_of(Finding(kind, "Thing", "layer 'a'")).values() if check.status != "ok"]
    assert len(faults) == 1
    assert "Thing in layer 'a'" in faults[0].detail
    assert len(faults[0].remedy) > 10


def test_a_step_without_findings_passes_every_check():
    checks = checks_of()
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["train step"].detail == "XLA compiles its 9 operations"
    assert len(checks) == 10


def test_known_operations_get_a_fix_of_their_own_and_long_lists_are_cut():
    found = [Finding("operation", "CropAndResize", f"layer 'crop_{i}'") for i in range(6)]
    check = checks_of(*found, refusal="Detected unsupported operations")["operations"]
    assert check.remedy.startswith("crop boxes in train_data")
    assert "layer 'crop_3'" in check.detail
    assert check.detail.endswith("and 2 more")


def test_a_refusal_that_no_finding_explains_fails():
    check = checks_of(refusal="Shape must be known")["train step"]
    assert (check.status, check.detail) == ("fail", "XLA cannot compile it: Shape must be known")
    assert checks_of(refusal="x could not find registered transfer manager for Host")["train step"].status == "skip"


def test_operations_are_found_by_type_and_number_format():
    nodes = [
        Node("model/layer_a_1/Mul", "Mul", frozenset({"float64"})),
        Node("model/layer_a_1/Mul_1", "Mul", frozenset({"float64"})),
        Node("model/b/Real", "Real", frozenset({"complex128", "float64"})),
        Node("gradient_tape/model/b/inner/Gone", "Gone", frozenset({"float32"})),
        Node("Print", "PrintV2", frozenset({"string"})),
        Node("model/b/Assert", "Assert", frozenset({"string"})),
        Node("loss/x/RaggedGather", "RaggedGather"),
    ]
    assert find(*nodes, compilable={"Mul", "Real"}) == [
        ("float64", "Mul", "layer 'layer_a'"),
        ("complex128", "Real", "layer 'b'"),
        ("operation", "Gone", "layer 'b'"),
        ("host call", "PrintV2", "the train step itself"),
        ("ragged", "RaggedGather", "loss/x"),
    ]
    assert ("operation", "Gone", "layer 'b'") not in find(*nodes)


def batches(*shapes, **facts):
    return list(batch_checks({"shapes": list(shapes), "num_seen": 3, "composite": [], "strings": 0, **facts}))


def test_batches_of_one_shape_pass_and_others_are_told():
    assert [(c.status, c.detail) for c in batches("float32 8x4")] == [("ok", "float32 8x4")]
    (check,) = batches("float32 8x4", "float32 3x4")
    assert (check.status, check.detail.startswith("2 shapes in 3 batches")) == ("warn", True)
    assert "drop_remainder=True" in check.remedy


def test_batches_of_strings_or_ragged_tensors_fail():
    assert [check.status for check in batches("string 8", strings=1)] == ["fail", "ok"]
    (check,) = batches("int64 8", composite=["RaggedTensor"])
    assert (check.status, "padded_batch" in check.remedy) == ("fail", True)


@pytest.mark.parametrize(
    ("rows", "cores", "status", "remedy"),
    [
        (64, 1, "ok", ""),
        (64, 8, "ok", ""),
        (20, 1, "warn", "set --global_batch_size=16 or 24"),
        (4, 1, "warn", "set --global_batch_size=8"),
        (72, 8, "warn", "set --global_batch_size=64 or 128"),
        (70, 8, "fail", "set --global_batch_size=64 or 128"),
    ],
)
def test_each_core_should_get_whole_tiles(rows, cores, status, remedy):
    check = replica_batch_check(rows, cores)
    assert (check.status, check.remedy) == (status, remedy)
