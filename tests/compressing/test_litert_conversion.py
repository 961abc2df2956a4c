"""Models as LiteRT files: what is cut away changes nothing, names are kept, and recurrent layers are unrolled."""

import compress_cases as cases
import keras
import numpy as np
import pytest
from keras import layers

from tfaccel.compressing.call_signature import get_signature
from tfaccel.compressing.litert.file import float_operations, operations, slim
from tfaccel.compressing.litert.model import LitertModel
from tfaccel.compressing.litert.post_training import make_converter, quantize_blocks, quantize_weights
from tfaccel.errors import CompressionError


def converted(model, x):
    """The float32 form of a model, as LiteRT runs it, and its signature."""
    signature = get_signature(model, x)
    with make_converter(model, signature) as converter:
        return LitertModel(slim(converter.float_content), signature), signature


def test_file_without_what_no_runtime_reads_is_smaller_and_the_same(logical_devices):
    model, x = cases.image_model(), cases.images(num_rows=6)
    signature = get_signature(model, x)
    with make_converter(model, signature) as converter:
        contents = [converter.float_content, converter.convert("int8", list(signature.rows(x)))]
    for content in contents:
        slimmed = slim(content)
        assert len(slimmed) < len(content) - 500
        assert slim(slimmed) == slimmed
        assert operations(slimmed) == operations(content)
        assert float_operations(slimmed) == float_operations(content)
        before, after = (LitertModel(one, signature).predict(x) for one in (content, slimmed))
        assert np.array_equal(before, after)


@pytest.mark.slow
def test_weights_that_the_quantizer_puts_behind_the_file_s_tables_are_kept(logical_devices):
    x = np.random.default_rng(0).normal(size=(2, 300)).astype("float32")
    model = keras.Sequential([keras.Input((300,)), layers.Dense(800)])
    signature = get_signature(model, x)
    with make_converter(model, signature) as converter:
        content = quantize_weights(converter.float_content, num_bits=8)
    assert b"TFL3" in content[:8]
    assert len(slim(content)) < len(content)
    assert operations(slim(content)) == float_operations(slim(content)) == {"FULLY_CONNECTED": 1}
    before, after = (LitertModel(one, signature).predict(x) for one in (content, slim(content)))
    assert np.array_equal(before, after)
    np.testing.assert_allclose(after, model(x), atol=0.02)


def get_error(content, signature, x, expected):
    found = LitertModel(slim(content), signature).predict(x)
    return np.sqrt(np.square(found - expected).mean() / np.square(expected).mean())


@pytest.mark.slow
def test_a_few_large_weights_cost_blocks_of_int4_weights_less_than_channels(logical_devices):
    generator = np.random.default_rng(0)
    parts = [layers.Dense(256, "relu"), layers.Dense(50, "relu"), layers.Dense(7)]  # 50 inputs make no blocks
    model = keras.Sequential([keras.Input((512,)), *parts])
    for layer in parts[:2]:
        kernel = generator.normal(size=layer.kernel.shape) * 0.05
        kernel[generator.integers(0, len(kernel), 8)] *= 20
        layer.kernel.assign(kernel)
    x = generator.normal(size=(6, 512)).astype("float32")
    signature, expected = get_signature(model, x), model.predict(x, verbose=0)
    with make_converter(model, signature) as converter:
        float_content = converter.float_content
    by_channels = quantize_weights(float_content, num_bits=4)
    by_blocks, note = quantize_blocks(float_content)
    assert note == "2 of 3 dense layers in blocks of 32; the others have a scale for each channel"
    errors = [get_error(content, signature, x, expected) for content in (by_channels, by_blocks)]
    assert errors[1] < 0.6 * errors[0]
    assert len(slim(by_channels)) < len(slim(by_blocks)) < 0.2 * len(slim(float_content))
    assert operations(slim(by_blocks)) == operations(slim(float_content))


def test_blocks_need_a_dense_layer_that_they_fit(logical_devices):
    model = keras.Sequential([keras.Input((50,)), layers.Dense(3)])
    with make_converter(model, get_signature(model, np.zeros((2, 50), "float32"))) as converter:
        content = converter.float_content
    with pytest.raises(CompressionError, match=r"weight_int4_blocks needs .* a multiple of 32. Use weight_int4\."):
        quantize_blocks(content)


@pytest.mark.slow
def test_several_inputs_and_outputs_keep_their_names(logical_devices):
    model, x = cases.several_inputs_model(), cases.several_inputs(5)
    litert, signature = converted(model, x)
    assert [(one.name, one.dtype) for one in signature.inputs] == [("numbers", "float32"), ("tokens", "int32")]
    found, expected = litert.predict(x), model.predict(x, verbose=0)
    assert found.keys() == expected.keys() == {"score", "kind"}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


@pytest.mark.slow
def test_recurrent_layers_are_unrolled_for_int8_or_named(logical_devices, monkeypatch):
    from tfaccel.compressing.litert import post_training

    model, x = cases.several_inputs_model(), cases.several_inputs(5)
    signature, rows = get_signature(model, x), list(get_signature(model, x).rows(x))
    with post_training.make_converter(model, signature) as converter:
        found = LitertModel(converter.convert("int8", rows), signature).predict(x)
        np.testing.assert_allclose(found["kind"], model.predict(x, verbose=0)["kind"], atol=0.1)
        assert "WHILE" in operations(converter.convert("dynamic"))
        with pytest.raises(CompressionError, match="int16x8 does not support the integer input 'tokens'"):
            converter.convert("int16x8", rows)
        assert not any(layer.unroll for layer in model._flatten_layers() if hasattr(layer, "unroll"))
        monkeypatch.setattr(post_training, "MAX_STEPS", 5)
        del converter.without_loops
        with pytest.raises(CompressionError, match=r"are loops: 'both_ways/backward_lstm', 'both_ways/forward_lstm'"):
            converter.convert("int8", rows)


@pytest.mark.slow
def test_model_of_a_class_of_its_own_is_called_as_it_is(logical_devices):
    model, x = cases.Subclassed(), [np.ones((4, 3), "float32"), np.linspace(0, 1, 20, dtype="float32").reshape(4, 5)]
    expected = model(x)
    found = converted(model, x)[0].predict(x)
    assert isinstance(found, tuple)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
