"""Tokens drawn from logits, and texts written with a model's state kept."""

import re

import numpy as np
import pytest

from tfaccel.errors import WorkloadError
from tfaccel.models.sampling import Sampling, TokenWriter

LOGITS = np.log(np.array([[0.1, 0.2, 0.3, 0.4]]))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1, top_p=1), [0.1, 0.2, 0.3, 0.4]),
        (Sampling(temperature=1, top_p=1, top_k=2), [0, 0, 3 / 7, 4 / 7]),
        (Sampling(temperature=1, top_p=0.5), [0, 0, 3 / 7, 4 / 7]),
        (Sampling(temperature=1, top_p=0.3), [0, 0, 0, 1]),
        (Sampling(temperature=0.5, top_p=1), np.array([1, 4, 9, 16]) / 30),
        (Sampling(temperature=1, top_p=0.9, top_k=3), [0, 2 / 9, 3 / 9, 4 / 9]),
    ],
)
def test_probabilities(sampling, expected):
    np.testing.assert_allclose(sampling.probabilities(LOGITS)[0], expected, atol=1e-9)


def test_draws_follow_the_probabilities():
    logits = np.repeat(LOGITS, 4000, axis=0)
    drawn = Sampling(temperature=1, top_p=1).draw(logits, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)
    assert Sampling(temperature=0).draw(LOGITS, np.random.default_rng(0)).tolist() == [3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "`temperature` must be a number of at least 0. Received: -1."),
        ({"top_k": 0}, "`top_k` must be a whole number of at least 1, or None. Received: 0."),
        ({"top_p": 0}, "`top_p` must be a number above 0, at most 1. Received: 0."),
    ],
)
def test_impossible_sampling_is_refused(options, message):
    with pytest.raises(WorkloadError, match=re.escape(message)):
        Sampling(**options)


def test_writer_with_its_state_writes_what_the_whole_model_would(logical_devices):
    from tfaccel.models.transformer import TransformerLanguageModel

    layer = TransformerLanguageModel(11, max_length=8, width=32, num_blocks=1)
    layer(np.zeros((1, 8), "int32"))
    generator = np.random.default_rng(0)
    for weight in layer.trainable_variables:
        if weight.name in ("kernel", "embeddings"):
            weight.assign(generator.normal(0, 0.5, weight.shape))
    found = TokenWriter(layer).write([4, 5], 20, Sampling(temperature=0), forbidden=(7,))

    text, first = [4, 5], 0
    for _ in range(20):
        logits = np.array(layer(np.array([text[first:]]))[0, -1])
        logits[7] = -np.inf
        text.append(int(logits.argmax()))
        if len(text) - first > 8:  # Full: the newer half is read again.
            first = len(text) - 4
    assert found == text[2:]
    assert len(set(found)) > 2
    assert 7 not in found


def test_seed_decides_what_is_written(logical_devices):
    from tfaccel.models.transformer import LstmLanguageModel

    layer = LstmLanguageModel(30, width=8, num_layers=1)
    layer(np.zeros((1, 8), "int32"))
    texts = [TokenWriter(layer).write([4], 20, Sampling(temperature=1), seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
