"""The proof: small models trained under every strategy agree with plain Keras on one device.

Every valid pair of values of the axes (`tfaccel.parity.axes`) occurs in some case. With --all, every triple does, and
each case in low precision is run in float32 as well.
"""

import pytest
from parity_runs import ParityRuns, assert_right, selected_cases

from tfaccel.parity.axes import CHECK_NAMES, PLACEMENTS, covering_set
from tfaccel.parity.case import ParityCase, ParityCheck, Placement

NONE, ONE_DEVICE, ONE_MIRRORED = Placement("none"), Placement("one_device"), Placement("mirrored", 1)

ONE_REPLICA_CASES = [
    ParityCase(NONE, "dense", "adam", "global_clipnorm", xla=True, weighting="sample_weights"),
    ParityCase(NONE, "lstm", "lamb", accumulation=4, last_batch="short", weighting="masks", source="tf_data"),
    ParityCase(NONE, "embedding_summed", "adamw", "clipnorm", source="py_dataset"),
    ParityCase(ONE_DEVICE, "batch_norm", "ema", dtype_policy="mixed_float16", weighting="class_weights"),
    ParityCase(ONE_DEVICE, "embedding_summed", "adam", xla=True, last_batch="short", weighting="masks"),
    ParityCase(ONE_MIRRORED, "gan", "adam", "clipvalue", accumulation=4, source="py_dataset"),
    ParityCase(ONE_MIRRORED, "two_outputs", "ema", dtype_policy="mixed_float16", xla=True, source="tf_data"),
    ParityCase(ONE_MIRRORED, "dropout", "lamb", xla=True, last_batch="short"),
]

CASES = [
    *sorted(covering_set(PLACEMENTS, with_twins=False), key=lambda case: case.placement),
    *ONE_REPLICA_CASES,
    *(ParityCheck(placement, name) for placement in PLACEMENTS for name in CHECK_NAMES),
]
MORE_CASES = sorted(
    {*covering_set(PLACEMENTS), *covering_set(PLACEMENTS, num_axes=3)} - set(CASES),
    key=lambda case: (case.placement, case.name),
)


def case_id(case):
    return f"{case.placement}: {case.name}"


@pytest.fixture(scope="module")
def start(request, pytestconfig):
    """A function that starts the selected cases of a test; all of them are ended after the last test."""
    options = [f"-W{warning}" for warning in pytestconfig.getini("filterwarnings")]
    runs = []

    def start(test_name):
        quick_xla = not pytestconfig.getoption("--all")
        runs.append(ParityRuns(selected_cases(request.session, test_name), options, quick_xla=quick_xla))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


@pytest.fixture(scope="module")
def pairs(start):
    return start("test_agrees_with_plain_keras")


@pytest.fixture(scope="module")
def more_runs(start):
    return start("test_triples_and_twins_agree_with_plain_keras")


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_agrees_with_plain_keras(pairs, case):
    assert_right(pairs.row(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_CASES, ids=case_id)
def test_triples_and_twins_agree_with_plain_keras(more_runs, case):
    assert_right(more_runs.row(case))
