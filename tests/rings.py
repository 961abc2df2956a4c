"""Which tests a run has, and in which order: three rings, told apart by how long each function took when measured.

* `./scripts/test` (`--quick`) leaves out the functions that took longest: `QUICK_SECONDS` or more in all.
* `./scripts/test --full` has all tests but those that are marked slow.
* `./scripts/test --all` has those too.

`durations.json` has the seconds of each function, with the fixtures that it was the first to use. `--store-durations`
measures them again; a function that it lacks counts as short.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
QUICK_SECONDS = 2.5
STORED_SECONDS = 0.1  # shorter functions are not listed


def known_durations() -> dict[str, float]:
    """Function, as `training/test_fit.py::test_it` -> seconds of all its cases."""
    return dict(json.loads(DURATIONS.read_text())) if DURATIONS.exists() else {}


def get_function(node_id: str) -> str:
    """The function of a test, without its case."""
    return node_id.partition("[")[0].removeprefix("tests/")


def chosen(items: Sequence[pytest.Item], config: pytest.Config) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests to run, those of the files that take longest first, and the tests to leave out."""
    known = known_durations()
    runs, left = [], []
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None and not config.getoption("--all")
        is_long = known.get(get_function(item.nodeid), 0.0) >= QUICK_SECONDS and not item.get_closest_marker("quick")
        (left if is_slow or (is_long and config.getoption("--quick")) else runs).append(item)
    tenths: Counter[Path] = Counter()  # whole numbers, whose sum is the same in every process
    for path, function in {(item.path, get_function(item.nodeid)) for item in runs}:
        tenths[path] += round(10 * known.get(function, 0.0))
    return sorted(runs, key=lambda item: -tenths[item.path]), left


class StoredDurations:
    """Measures the functions that a run has, and writes them to a file at its end.

    Args:
        path: the file, whose other functions stay.
    """

    def __init__(self, path: Path = DURATIONS) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[get_function(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        known |= {name: round(value, 1) for name, value in self._seconds.items()}
        listed = {name: known[name] for name in sorted(known) if known[name] >= STORED_SECONDS}
        self._path.write_text(json.dumps(listed, indent=0) + "\n")
