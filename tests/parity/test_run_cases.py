"""Parity cases run in child processes: rows in order, and on after a case that breaks its process."""

import numpy as np
import pytest

from tfaccel.parity.axes import CHECK_NAMES
from tfaccel.parity.case import ParityCase, ParityCheck, Placement
from tfaccel.parity.references import SGD_TOLERANCE
from tfaccel.parity.run_cases import MAX_CASES, MIN_CASES, process_shares, run_cases
from tfaccel.parity.shared_references import SharedReferences, reference_key

TWO, WORKERS = Placement("mirrored", 2), Placement("multi_worker", 2)
OVERFLOW = next(name for name in CHECK_NAMES if "overflow" in name)


@pytest.fixture(scope="module")
def ran():
    """Cases of which the first breaks the processes it is in, their rows, and the rows as they came."""
    cases = [ParityCase(WORKERS, "no_such_model"), ParityCheck(TWO, OVERFLOW), ParityCheck(WORKERS, OVERFLOW)]
    came = []
    return cases, run_cases(cases, on_row=came.append), came


@pytest.mark.slow
def test_rows_are_in_the_order_of_the_cases(ran):
    cases, rows, came = ran
    assert [(row.case, row.strategy) for row in rows] == [(case.name, str(case.placement)) for case in cases]
    assert sorted(came, key=str) == sorted(rows, key=str)


@pytest.mark.slow
def test_a_case_that_breaks_its_process_is_a_row_and_the_next_goes_on(ran):
    _, rows, _ = ran
    assert [row.ok for row in rows] == [False, True, True]
    assert rows[0].max_abs_diff is None
    assert rows[0].note.startswith("KeyError: 'no_such_model'")
    assert rows[1].max_abs_diff == rows[2].max_abs_diff == 0.0


def test_a_child_that_cannot_start_is_a_row():
    rows = run_cases([ParityCase(TWO), ParityCase(TWO, xla=True)], interpreter_options=["--no-such-option"])
    assert [(row.ok, row.max_abs_diff) for row in rows] == [(False, None)] * 2
    assert "Worker 0 of 1 ended with status 2" in rows[0].note


def test_shares_have_one_kind_of_process_and_are_as_many_as_the_cores():
    single = [ParityCase(Placement("none")), ParityCase(Placement("mirrored", 1), xla=True)]
    many = [ParityCase(TWO, accumulation=number) for number in range(4 * MIN_CASES)]
    workers = [ParityCase(Placement("multi_worker", 1)), ParityCase(WORKERS)]
    cases = [*many, *single, *workers]
    assert sorted(map(len, process_shares(cases, 2))) == [1, 1, 4 * MIN_CASES + 2]
    shares = process_shares(cases, 16)
    assert sorted(map(len, shares)) == [1, 1, 2] + [MIN_CASES] * 4
    assert [case for share in shares for case in share if case in many] == many
    assert process_shares([], 2) == []
    long = [ParityCase(TWO, accumulation=number) for number in range(2 * MAX_CASES + 1)]
    assert list(map(len, process_shares(long, 2))) == [MAX_CASES, MAX_CASES, 1]


def test_workers_share_references(tmp_path):
    case = ParityCase(WORKERS)
    first, second = (SharedReferences(tmp_path, worker, 2) for worker in range(2))
    np.savez(tmp_path / f"{reference_key(case)}.npz", weight=np.float32(1.0))
    assert first.get(case, 1) == second.get(case, 1) == ({"weight": 1.0}, SGD_TOLERANCE)


def test_references_are_kept_by_what_decides_them():
    case = ParityCase(WORKERS, "dense")
    same = [ParityCase(WORKERS, "dense", xla=True), ParityCase(TWO, "dense")]
    others = [ParityCase(Placement("mirrored", 3), "dense"), ParityCase(WORKERS, "dense", "adam"), case.in_float32()]
    assert {reference_key(one) for one in same} == {reference_key(case)}
    assert len({reference_key(one) for one in [case, *others]}) == 3  # the case is in float32 already
