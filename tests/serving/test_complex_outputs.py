"""JSON has no complex numbers: nothing of them is lost in silence."""

import numpy as np
import pytest

from tfaccel.errors import ExportError
from tfaccel.exporting.comparison import largest_difference
from tfaccel.exporting.fresh_process import _plain
from tfaccel.extras.serving.messages import RequestError, predictions


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("in_rows", [True, False])
def test_complex_outputs_are_refused_over_rest(dtype, in_rows):
    values = np.array([1 + 2j], dtype)
    with pytest.raises(RequestError, match=rf"output 'z' is {np.dtype(dtype).name}, and JSON has no complex numbers"):
        predictions({"x": np.ones(1), "z": values}, in_rows=in_rows)


def test_imaginary_parts_are_compared_after_an_export():
    wanted = {"z": np.array([1 + 2j], np.complex64)}
    np.testing.assert_array_equal(_plain(wanted["z"]), wanted["z"])
    assert largest_difference(wanted, wanted, "f")[0] == 0
    with pytest.raises(ExportError, match="output z differs by 5"):
        largest_difference({"z": np.array([1 - 3j], np.complex64)}, wanted, "f")
