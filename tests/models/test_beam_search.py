"""Beam search finds what trying all texts finds, and keeps texts of a batch apart."""

import itertools
import re

import numpy as np
import pytest

from tfaccel.errors import WorkloadError
from tfaccel.models.beam_search import BeamSearch, repetitions

NUM_TOKENS, LENGTH, END = 7, 3, 3
SOURCE = np.array([[4, 5, 4, 0], [5, 5, 1, 4], [4, 1, 0, 0]], "int32")


@pytest.fixture(scope="module")
def model(logical_devices):
    from tfaccel.recipes.translation import build_model

    model = build_model((NUM_TOKENS, NUM_TOKENS), (4, LENGTH), width=16, num_blocks=1)
    generator = np.random.default_rng(3)
    for weight in model.trainable_variables:
        weight.assign(generator.normal(0, 0.5, weight.shape))
    return model


def best_of_all(model, source, length_penalty):
    """The best text by the probability of each one that can be written: of 4, 5 and 6, with an end or cut off."""
    texts = [text for n in range(LENGTH + 1) for text in itertools.product([4, 5, 6], repeat=n)]
    written = np.array([[2, *text, 0, 0, 0][:LENGTH] for text in texts], "int32")
    logits = model({"source": np.repeat(source[None], len(texts), axis=0), "written": written}).numpy()
    chances = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    scores = []
    for row, text in enumerate(texts):
        tokens = [*text, END][:LENGTH]
        score = sum(chances[row, place, token] for place, token in enumerate(tokens))
        scores.append(score / (len(text) + 1) ** length_penalty)
    return list(texts[int(np.argmax(scores))])


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_wide_search_finds_the_best_text(model, length_penalty):
    search = BeamSearch(beam_size=27, length_penalty=length_penalty, num_texts=2)
    assert search.write(model, SOURCE) == [best_of_all(model, source, length_penalty) for source in SOURCE]


def test_texts_differ_with_their_sources_and_penalty(model):
    found = [best_of_all(model, source, penalty) for source in SOURCE for penalty in (0.0, 2.0)]
    assert len({tuple(text) for text in found}) > 1


def test_narrowest_search_takes_the_likeliest_token_each_time(model):
    for source, found in zip(SOURCE, BeamSearch(beam_size=1, length_penalty=0.0).write(model, SOURCE), strict=True):
        text = [2]
        while len(text) <= LENGTH and (len(text) == 1 or text[-1] != END):
            written = np.array([[*text, 0, 0, 0][:LENGTH]], "int32")
            logits = model({"source": source[None], "written": written}).numpy()[0, len(text) - 1]
            logits[[0, 1, 2]] = -np.inf
            text.append(int(logits.argmax()))
        greedy = [token for token in text[1:] if token != END]
        assert found == greedy[: len(found)]


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        ([], 2, []),
        ([4], 2, []),
        ([4, 5, 4], 2, [5]),
        ([4, 4], 2, [4]),
        ([4, 5, 6, 4, 5], 3, [6]),
        ([4, 5, 6, 5], 3, []),
        ([4, 5], 1, [4, 5]),
    ],
)
def test_tokens_that_would_repeat_a_run(text, length, expected):
    assert repetitions(np.array(text, int), length) == expected


def test_search_without_repetition_repeats_no_run(model):
    plain = BeamSearch(length_penalty=2.0).write(model, SOURCE)
    found = BeamSearch(length_penalty=2.0, unrepeated=1).write(model, SOURCE)
    assert any(len(set(text)) < len(text) for text in plain)
    assert all(len(set(text)) == len(text) for text in found)


@pytest.mark.parametrize("name", ["beam_size", "num_texts"])
def test_search_without_room_is_refused(name):
    with pytest.raises(
        WorkloadError, match=re.escape(f"`{name}` must be a whole number of at least 1. Received: {name}=0.")
    ):
        BeamSearch(**{name: 0})
