"""Batches of texts: full, in an order that seed and epoch decide, each row whole."""

import re

import numpy as np
import pytest

from tfaccel.errors import DataError

TOKENS = np.arange(20, dtype="int32").reshape(10, 2)


@pytest.fixture
def batches(logical_devices):
    from tfaccel.data.in_memory import TextBatches

    part = ({"a": TOKENS, "b": TOKENS + 100}, TOKENS[:, 0])
    return TextBatches(train=part, test=part)


def rows(dataset):
    return [(x["a"].tolist(), x["b"].tolist(), y.tolist()) for x, y in dataset.as_numpy_iterator()]


def test_epochs_differ_and_can_be_repeated(batches):
    first, again = (rows(batches.train(4, seed=0, epoch=0)) for _ in range(2))
    assert first == again
    assert [len(labels) for _, _, labels in first] == [4, 4]
    assert first != rows(batches.train(4, seed=0, epoch=1)) != rows(batches.train(4, seed=1, epoch=1))
    for a, b, labels in first:
        assert [row[0] for row in a] == [row[0] - 100 for row in b] == labels


def test_test_rows_are_all_there_in_order(batches):
    labels = [label for _, _, labels in rows(batches.test(4)) for label in labels]
    assert labels == TOKENS[:, 0].tolist()


def test_change_is_drawn_anew_for_each_epoch(logical_devices):
    from tfaccel.data.in_memory import TextBatches

    changed = TextBatches(TOKENS, TOKENS, change=lambda data, generator: data * 0 + generator.integers(1000))
    numbers = [next(iter(changed.train(4, seed=0, epoch=epoch)))[0, 0] for epoch in (0, 0, 1)]
    assert numbers[0] == numbers[1] != numbers[2]


LENGTHS = np.random.default_rng(0).integers(1, 41, 70)


@pytest.fixture
def grouped(logical_devices):
    from tfaccel.data.in_memory import TextBatches, filled_columns

    tokens = np.where(np.arange(40) < LENGTHS[:, np.newaxis], 1 + np.arange(70)[:, np.newaxis], 0)
    np.testing.assert_array_equal(filled_columns(tokens), LENGTHS)
    part = {"tokens": tokens, "row": np.arange(70)}
    return TextBatches(part, part, lengths={"tokens": LENGTHS, "row": None})


def test_batches_of_similar_lengths_are_cut_to_the_longest(grouped):
    for epoch in range(3):
        found = list(grouped.train(4, seed=0, epoch=epoch).as_numpy_iterator())
        seen = [row for batch in found for row in batch["row"].tolist()]
        assert len(set(seen)) == len(seen) == 68
        for batch in found:
            longest = LENGTHS[batch["row"]].max()
            assert batch["tokens"].shape == (4, -(-longest // 8) * 8)
            np.testing.assert_array_equal(np.count_nonzero(batch["tokens"], axis=1), LENGTHS[batch["row"]])
            assert set(batch["tokens"].max(axis=1)) == {row + 1 for row in batch["row"].tolist()}
    grouped_share, whole_share = grouped.shares_of_padding(4)
    assert grouped_share < 0.25 < 0.45 < whole_share


def test_grouped_batches_begin_at_any_step_and_workers_have_equal_columns(grouped):
    whole = list(grouped.train(4, seed=1, epoch=2).as_numpy_iterator())
    for start in (1, 16):
        rest = list(grouped.train(4, seed=1, epoch=2, start_step=start).as_numpy_iterator())
        assert [one["row"].tolist() for one in rest] == [one["row"].tolist() for one in whole[start:]]
    every = list(grouped.train(4, seed=1, epoch=2, every=(1, 3)).as_numpy_iterator())
    assert [one["row"].tolist() for one in every] == [one["row"].tolist() for one in whole[1::3]]
    shards = [grouped.train(4, seed=1, epoch=2, shard=(index, 2)).as_numpy_iterator() for index in range(2)]
    for one, first, second in zip(whole, *shards, strict=True):
        for name in ("tokens", "row"):
            np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), one[name])


def test_impossible_lengths_are_refused(logical_devices):
    from tfaccel.data.in_memory import TextBatches

    message = "each row of an array fills. Received: [3, 3, 3, 3, 3, 3, 3, 3, 3, 3] for an array of shape (10, 2)."
    with pytest.raises(DataError, match=re.escape(message)):
        TextBatches(TOKENS, TOKENS, lengths=np.full(10, 3))


def test_set_smaller_than_a_batch_is_refused(batches):
    message = "A batch takes 11 examples, but there are 10 to train on. Use a global batch size of at most 10."
    with pytest.raises(DataError, match=re.escape(message)):
        batches.train(11, seed=0, epoch=0)


def test_pieces_of_a_text_and_what_follows_each_token(logical_devices):
    from tfaccel.data.texts.text_data import TextPieces

    pieces = TextPieces(np.arange(101, dtype="int32"), np.arange(31, dtype="int32"), length=10, stride=5)
    starts = set()
    for epoch in range(20):
        batches = list(pieces.train(4, seed=0, epoch=epoch).as_numpy_iterator())
        assert [x.shape for x, _ in batches] == [(4, 10)] * 4
        for x, y in batches:
            np.testing.assert_array_equal(x + 1, y)
            starts |= set(x[:, 0].tolist())
    assert starts == set(range(90))
    assert [x[:, 0].tolist() for x, _ in pieces.test(2).as_numpy_iterator()] == [[0, 10], [20]]
    with pytest.raises(DataError, match=r"A text must have more than 10 tokens\. Received: 10\."):
        TextPieces(np.arange(50), np.arange(10), length=10, stride=5)
