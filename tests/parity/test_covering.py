"""The greedy choice of cases covers every valid pair (or triple) and nothing that is excluded."""

import itertools

import pytest

from tfaccel.parity.covering import covering_cases, valid_groups

AXES = {"letter": ("a", "b", "c", "d"), "number": (1, 2, 3), "flag": (False, True), "size": ("small", "large")}


def never(a, b):
    return False


def no_large_a(a, b):
    return {a, b} == {("letter", "a"), ("size", "large")}


def groups_of(cases, num_axes):
    return {frozenset(group) for case in cases for group in itertools.combinations(case.items(), num_axes)}


@pytest.mark.parametrize("excluded", [never, no_large_a])
@pytest.mark.parametrize("num_axes", [1, 2, 3, 4])
def test_all_valid_groups_are_covered_and_no_others(excluded, num_axes):
    cases = covering_cases(AXES, excluded, num_axes=num_axes)
    assert groups_of(cases, num_axes) == set(valid_groups(AXES, excluded, num_axes))
    if num_axes > 1:
        assert (frozenset([("letter", "a"), ("size", "large")]) in groups_of(cases, 2)) == (excluded is never)


def test_pairs_need_no_more_cases_than_the_two_longest_axes_have_combinations():
    assert len(covering_cases(AXES, never)) == 12
    assert len(covering_cases(AXES, never, num_axes=4)) == 4 * 3 * 2 * 2


def test_values_are_used_evenly_or_cheap_ones_first():
    flags = [case["flag"] for case in covering_cases(AXES, never)]
    assert flags.count(True) == flags.count(False) == 6
    flags = [case["flag"] for case in covering_cases(AXES, never, cheap_first=("flag",))]
    assert flags.count(True) == 4  # once with each letter


def test_every_run_gives_the_same():
    assert covering_cases(AXES, no_large_a) == covering_cases(AXES, no_large_a)
    assert list(covering_cases(AXES, never)[0]) == list(AXES)


def test_an_axis_without_a_fitting_value_is_named():
    def contradiction(a, b):
        return ("letter", "a") in (a, b) and "size" in (a[0], b[0])

    with pytest.raises(ValueError, match=r"No value of 'size' is compatible with .*'letter': 'a'.* Relax"):
        covering_cases({"letter": ("a",), "number": (1, 2), "size": ("small", "large")}, contradiction)
