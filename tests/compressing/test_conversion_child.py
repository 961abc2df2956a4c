"""Conversions in a child process: the same files, the same errors, and no memory left behind."""

import compress_cases as cases
import keras
import numpy as np
import psutil
import pytest
from keras import layers

from tfaccel.compressing.call_signature import get_signature
from tfaccel.compressing.litert.conversion import ConversionChild
from tfaccel.compressing.litert.model import LitertModel
from tfaccel.compressing.litert.post_training import make_converter
from tfaccel.compressing.litert.sensitivity import SelectiveQuantizer
from tfaccel.errors import CompressionError


def children():
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.slow
def test_a_child_converts_as_this_process_does(logical_devices, monkeypatch):
    model, x = cases.image_model(), cases.images(num_rows=6)
    signature = get_signature(model, x)
    rows = list(signature.rows(x))
    before = children()

    def contents():
        with make_converter(model, signature) as converter:
            quantizer = SelectiveQuantizer(converter, model, rows)
            found = [converter.float_content, converter.convert("int8", rows), quantizer.quantize(["hidden"])]
            return found, children() - before

    monkeypatch.setattr(ConversionChild, "left_behind", 0)
    here, started = contents()
    assert started == set()
    assert ConversionChild.left_behind > 3 * 10**6
    monkeypatch.setattr(ConversionChild, "left_behind", 2**40)
    there, started = contents()
    assert len(started) == 1
    assert children() == before
    for one, other in zip(here, there, strict=True):
        outputs = [LitertModel(content, signature).predict(x) for content in (one, other)]
        np.testing.assert_array_equal(*outputs)


@pytest.mark.slow
def test_a_child_that_cannot_convert_or_dies_is_an_error(logical_devices, monkeypatch):
    monkeypatch.setattr(ConversionChild, "left_behind", 2**40)
    before = children()
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8), cases.Odd(name="odd_one"), layers.Dense(2)])
    with make_converter(model, get_signature(model, np.ones((2, 4), "float32"))) as converter:
        with pytest.raises(CompressionError, match=r"cannot convert these layers of the model: '.*odd_one' \(Erfinv\)"):
            converter.convert("float16")
        (pid,) = children() - before
        psutil.Process(pid).kill()
        with pytest.raises(CompressionError, match=r"crashed: its process was killed by SIGKILL \(often"):
            converter.convert("float16")
        with pytest.raises(CompressionError, match="odd_one"):  # in a new child
            converter.convert("dynamic")
    assert children() == before


GROWTH = """
import gc, keras, numpy as np, psutil
from keras import layers
from tfaccel.compressing.call_signature import get_signature
from tfaccel.compressing.litert.post_training import make_converter
model = keras.Sequential([keras.Input((1500,)), *[layers.Dense(1500, "relu") for _ in range(3)]])
signature = get_signature(model, np.zeros((1, 1500), "float32"))
sizes = []
with make_converter(model, signature) as converter:
    for number in range(9):
        converter.convert("float16")
        gc.collect()
        sizes.append(psutil.Process().memory_info().rss)
print(sizes[-1] - sizes[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_conversions(run_python):
    assert int(run_python(GROWTH, timeout_seconds=600, fresh=True).stdout.splitlines()[-1]) < 30e6
