"""`tfaccel.fit` without a strategy is `Model.fit`, to the last bit, whatever its arguments; all cases in one child."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("every", [14, pytest.param(1, marks=pytest.mark.slow)])
def test_same_with_any_arguments(every, run_python):
    code = "import sys; from fit_arguments import main; main(int(sys.argv[1]))"
    lines = run_python(code, str(every), cwd=HERE, timeout_seconds=580).stdout.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("[{")]
    assert len(found) * every >= 50
    assert all(trains for _, _, trains in found)
    assert [row for row in found if row[1]] == []
