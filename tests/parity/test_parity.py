"""The proof: small models trained under every strategy agree with plain Keras on one device.

By default a few cases run: every value of each axis (`tfaccel.parity.axes`) but the model's. With --all, every valid
triple of values occurs in some case, and each case in low precision is run in float32 as well, since rounding could
hide what float32 shows.
"""

import tempfile
from pathlib import Path

import pytest
from parity_runs import ParityRuns, assert_right, selected_cases

from tfaccel.parity.axes import AXES, CHECK_NAMES, PLACEMENTS, covering_set
from tfaccel.parity.case import ParityCase, ParityCheck, Placement

NONE, ONE_DEVICE, ONE_MIRRORED = Placement("none"), Placement("one_device"), Placement("mirrored", 1)
TWO, THREE, WORKERS = PLACEMENTS

CASES = [
    ParityCase(THREE, "dense", "sgd", source="py_dataset", exact_kernels=True),
    ParityCase(WORKERS, "batch_norm", "adamw", "clipnorm", last_batch="empty", weighting="class_weights"),
    ParityCase(TWO, "batch_norm_by_replica", "ema", "global_clipnorm", 4, last_batch="short", source="py_dataset"),
    ParityCase(TWO, "dropout", "lars", "clipvalue", 1, "mixed_float16", xla=True, weighting="sample_weights"),
    ParityCase(TWO, "embedding_summed", "adamw", "global_clipnorm", 4, weighting="masks", source="py_dataset"),
    ParityCase(TWO, "embedding_rows", "adagrad", "clipnorm", last_batch="short", weighting="masks"),
    ParityCase(WORKERS, "embedding_host", "adagrad", "clipnorm", last_batch="short", weighting="masks"),
    ParityCase(TWO, "own_train_step", "lamb", "global_clipnorm", dtype_policy="mixed_bfloat16", source="tf_data"),
    ParityCase(NONE, "dense", "adam", "global_clipnorm", xla=True, weighting="sample_weights"),
    *(ParityCheck(TWO, name) for name in CHECK_NAMES),
]

# With CASES, every value of each axis.
FURTHER_CASES = [
    ParityCase(TWO, "batch_norm", "lars", accumulation=4, last_batch="short", weighting="class_weights"),
    ParityCase(TWO, "embedding", "lars", "global_clipnorm", dtype_policy="mixed_bfloat16", source="tf_data"),
    ParityCase(TWO, "penalties", "adam", "clipvalue", last_batch="short", weighting="sample_weights"),
    ParityCase(TWO, "attention", "lamb", dtype_policy="mixed_bfloat16", weighting="masks", source="tf_data"),
    ParityCase(TWO, "embedding", "adam", "clipnorm", weighting="class_weights"),
    ParityCase(TWO, "gan", "adam", dtype_policy="mixed_float16", source="tf_data"),
    ParityCase(TWO, "lstm", "ema", last_batch="short", weighting="masks", source="tf_data"),
    ParityCase(TWO, "own_train_step", "lamb", "global_clipnorm", dtype_policy="mixed_bfloat16"),
    ParityCase(TWO, "stateful_lstm", "sgd", "clipnorm", xla=True),
    ParityCase(THREE, "embedding_host", "adagrad", dtype_policy="mixed_float16", last_batch="empty", weighting="masks"),
    ParityCase(TWO, "lstm", "adam", last_batch="short"),
    ParityCase(TWO, "two_outputs", "adam", "clipvalue", dtype_policy="mixed_float16", last_batch="empty"),
    ParityCase(NONE, "lstm", "adam", "global_clipnorm", weighting="masks", source="tf_data"),
]

ONE_REPLICA_CASES = [
    ParityCase(NONE, "lstm", "lamb", accumulation=4, last_batch="short", weighting="masks", source="tf_data"),
    ParityCase(NONE, "embedding_summed", "adamw", "clipnorm", source="py_dataset"),
    ParityCase(ONE_DEVICE, "batch_norm", "ema", dtype_policy="mixed_float16", weighting="class_weights"),
    ParityCase(ONE_DEVICE, "embedding_summed", "adam", xla=True, last_batch="short", weighting="masks"),
    ParityCase(ONE_MIRRORED, "gan", "adam", "clipvalue", accumulation=4, source="py_dataset"),
    ParityCase(ONE_MIRRORED, "two_outputs", "ema", dtype_policy="mixed_float16", xla=True, source="tf_data"),
    ParityCase(ONE_MIRRORED, "dropout", "lamb", xla=True, last_batch="short"),
]
MORE_CASES = [
    *FURTHER_CASES,
    *ONE_REPLICA_CASES,
    *sorted(
        {*covering_set(PLACEMENTS), *covering_set(PLACEMENTS, num_axes=3)} - {*CASES, *FURTHER_CASES},
        key=lambda case: (case.placement, case.name),
    ),
    *(ParityCheck(placement, name) for placement in (THREE, WORKERS) for name in CHECK_NAMES),
]


def case_id(case):
    return f"{case.placement}: {case.name}"


@pytest.fixture(scope="module")
def reference_dir(pytestconfig):
    """Where references are kept from run to run: pytest's cache, if there is one."""
    if pytestconfig.pluginmanager.has_plugin("cacheprovider"):
        yield pytestconfig.cache.mkdir("parity_references")
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


@pytest.fixture(scope="module")
def start(request, pytestconfig, reference_dir):
    """A function that starts the selected cases of a test; all of them are ended after the last test."""
    options = [f"-W{warning}" for warning in pytestconfig.getini("filterwarnings")]
    runs = []

    def start(test_name):
        runs.append(ParityRuns(selected_cases(request.session, test_name), options, reference_dir=reference_dir))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


@pytest.fixture(scope="module")
def runs(start):
    return start("test_agrees_with_plain_keras")


@pytest.fixture(scope="module")
def more_runs(start):
    return start("test_triples_and_twins_agree_with_plain_keras")


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_agrees_with_plain_keras(runs, case):
    assert_right(runs.row(case))


@pytest.mark.slow
@pytest.mark.timeout(0)  # The first test waits until its case's turn comes. The runs have time limits of their own.
@pytest.mark.parametrize("case", MORE_CASES, ids=case_id)
def test_triples_and_twins_agree_with_plain_keras(more_runs, case):
    assert_right(more_runs.row(case))


def test_every_value_of_each_axis_occurs():
    for axis, values in {**AXES, "placement": PLACEMENTS}.items():
        cases = [*CASES, *FURTHER_CASES] if axis == "model" else CASES
        assert set(values) <= {getattr(case, axis) for case in cases if isinstance(case, ParityCase)}
