"""Layers of text models: step by step as in one go, rematerialised as kept, blind to padding, saved and loaded."""

import keras
import numpy as np
import pytest
from keras import ops

from tfaccel.models.sequence_to_sequence import CopyingDecoder, TextDecoder, TextEncoder, known_tokens
from tfaccel.models.transformer import Attention, LstmLanguageModel, TransformerBlock, TransformerLanguageModel

LANGUAGE_MODELS = [
    lambda: TransformerLanguageModel(11, max_length=7, width=64, num_blocks=2, dropout=0.5),
    lambda: LstmLanguageModel(11, width=16, num_layers=2, dropout=0.5),
]
TOKENS = np.random.default_rng(0).integers(4, 11, (3, 7)).astype("int32")
SOURCE = np.array([[4, 5, 6, 7, 0, 0], [8, 9, 12, 13, 4, 0]], "int32")
WRITTEN = np.array([[2, 5, 6, 7], [2, 12, 13, 4]], "int32")


def small_model(*, length=6, num_copied=None, **options):
    source = keras.Input((length,), dtype="int32", name="source")
    written = keras.Input((4,), dtype="int32", name="written")
    blocks = {"width": 64, "num_blocks": 2, **options}
    read = TextEncoder(11, max_length=length, **blocks, name="encoder")(known_tokens(source, 11))
    kind, copied = (TextDecoder, {}) if num_copied is None else (CopyingDecoder, {"num_copied": num_copied})
    decoder = kind(11, max_length=4, **copied, **blocks, name="decoder")
    return keras.Model({"source": source, "written": written}, decoder(written, read, source))


@pytest.fixture
def initial_weights(logical_devices):
    """Makes weights large enough that every part of a model matters."""

    def set_weights(layer):
        generator = np.random.default_rng(1)
        for weight in layer.trainable_variables:
            weight.assign(generator.normal(0, 0.4, weight.shape))
        return layer

    return set_weights


@pytest.mark.parametrize("make", LANGUAGE_MODELS, ids=["transformer", "lstm"])
def test_language_model_gives_the_same_logits_step_by_step(initial_weights, make):
    layer = make()
    layer(TOKENS)
    at_once = initial_weights(layer)(TOKENS)
    state = layer.start(3)
    for position in range(7):
        logits, state = layer.step(ops.array(TOKENS[:, position]), position, state)
        np.testing.assert_allclose(logits, at_once[:, position], atol=2e-5)
    assert float(ops.std(at_once)) > 0.1


@pytest.mark.parametrize("num_copied", [None, 3])
def test_decoder_gives_the_same_scores_step_by_step(initial_weights, num_copied):
    model = initial_weights(small_model(num_copied=num_copied))
    source = SOURCE if num_copied else np.minimum(SOURCE, 10)
    written = WRITTEN if num_copied else np.minimum(WRITTEN, 10)
    at_once = model({"source": source, "written": written})
    decoder = model.get_layer("decoder")
    state = decoder.start(model.get_layer("encoder")(np.where(source < 11, source, 1)), ops.array(source))
    for position in range(4):
        scores, state = decoder.step(ops.array(written[:, position]), position, state)
        np.testing.assert_allclose(scores, at_once[:, position], atol=5e-5)


def test_later_tokens_do_not_change_earlier_logits(initial_weights):
    layer = TransformerLanguageModel(11, max_length=7, width=64, num_blocks=2)
    layer(TOKENS)
    initial_weights(layer)
    changed = TOKENS.copy()
    changed[:, 4:] = 4
    before, after = layer(TOKENS), layer(changed)
    np.testing.assert_allclose(before[:, :4], after[:, :4], atol=1e-5)
    assert not np.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


def test_padding_of_the_source_is_not_looked_at(initial_weights):
    model = initial_weights(small_model())
    longer = initial_weights(small_model(length=9))
    for weight, shorter in zip(longer.trainable_variables, model.trainable_variables, strict=True):
        value = ops.convert_to_numpy(shorter)
        weight.assign(np.pad(value, [(0, m - n) for m, n in zip(weight.shape, value.shape, strict=True)]))
    source, written = SOURCE[:1], WRITTEN[:1]
    padded = np.pad(source, ((0, 0), (0, 3)))
    np.testing.assert_allclose(
        model({"source": source, "written": written}), longer({"source": padded, "written": written}), atol=2e-5
    )


def test_scores_with_copying_are_probabilities(initial_weights):
    model = initial_weights(small_model(num_copied=3))
    chances = np.exp(model({"source": SOURCE, "written": WRITTEN}))
    np.testing.assert_allclose(chances.sum(axis=-1), 1, atol=1e-4)
    # Number 12 and 13 stand in the second source alone, 11 in none: it can be neither written nor copied.
    assert chances[1, :, 12].min() > 1e-5 > chances[0, :, 12].max()
    assert chances[:, :, 11].max() < 1e-5


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rematerialised_block_has_the_same_gradients(logical_devices, dropout):
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    gradients = []
    for remat in (False, True):
        block = TransformerBlock(2, dropout=dropout, remat=remat)
        block.build((None, 5, 16))
        generator = np.random.default_rng(1)
        for weight in block.trainable_variables:
            weight.assign(generator.normal(0, 0.3, weight.shape))
        if dropout:
            block.dropout.seed_generator.state.assign([0, 7])
        mask = ops.ones((1, 1, 5, 5), "bool")
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(block(x, attention_mask=mask, training=True)))
        gradients.append(tape.gradient(loss, [weight.value for weight in block.trainable_variables]))
    for kept, again in zip(*gradients, strict=True):
        np.testing.assert_allclose(kept, again, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_copied", [None, 3])
def test_model_is_the_same_after_saving(initial_weights, tmp_path, num_copied):
    model = initial_weights(small_model(num_copied=num_copied, dropout=0.1, remat=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    inputs = {"source": np.minimum(SOURCE, 10), "written": np.minimum(WRITTEN, 10)}
    np.testing.assert_allclose(model(inputs), loaded(inputs), atol=1e-6)


def test_width_that_heads_do_not_divide_is_refused(logical_devices):
    with pytest.raises(ValueError, match=r"`num_heads` must divide the width\. Received: num_heads=3, width=8\."):
        Attention(3).build((None, 5, 8))


def test_low_precision_keeps_scores_in_float32(logical_devices):
    layer = TransformerLanguageModel(11, max_length=7, width=32, num_blocks=1, dtype="mixed_bfloat16")
    assert layer(TOKENS).dtype == "float32"
    assert layer.blocks[0].attention.compute_dtype == "bfloat16"
