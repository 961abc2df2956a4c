"""The comparison with Keras detects differences."""

from pathlib import Path

import pytest

CODE = """
import numpy as np
from keras_comparison import difference

first = {"loss": [1.0, 2.0], "rows": np.arange(3), "calls": [["a", 1, {}]]}
for second in (
    {"loss": [1.0, 2.1], "rows": np.arange(3), "calls": [["a", 1, {}]]},
    {"loss": [1.0], "rows": np.arange(3), "calls": [["a", 1, {}]]},
    {"loss": [1.0, 2.0], "rows": np.arange(1, 4), "calls": [["a", 1, {}]]},
    {"loss": [1.0, 2.0], "rows": np.arange(3), "calls": [["a", 2, {}]]},
    {"loss": [1.0, 2.0], "calls": [["a", 1, {}]], "rows": np.arange(3)},
    {"loss": [1.0, float("nan")], "rows": np.arange(3), "calls": [["a", 1, {}]]},
    {"loss": [1.0, "2"], "rows": np.arange(3), "calls": [["a", 1, {}]]},
    first,
):
    print(difference(first, second, 1e-5))
"""


@pytest.mark.slow
def test_differences_are_found(run_python):
    lines = run_python(CODE, cwd=Path(__file__).parent).stdout.splitlines()[-8:]
    assert lines[-1] == "None"
    assert "None" not in lines[:-1]
    assert "['loss'][1]: differs by 0.1" in lines[0]
