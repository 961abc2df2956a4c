"""Vocabularies: tokens to numbers and back, to JSON and back."""

import json
import pickle
import re
import sys

import pytest

from tfaccel.data.texts.text_data import date_pairs, dates_in_words, encode_pairs, encode_pairs_to_copy, unknown_words
from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.errors import DataError

WORDS = Vocabulary(unit="words", tokens=("a", "b", ".", "("))


def test_commonest_tokens_come_first():
    vocabulary = Vocabulary.of(["b a b", "C c b d"], unit="words", least_count=1, most_tokens=3)
    assert vocabulary.tokens == ("b", "c", "a")
    assert Vocabulary.of(["b a b", "C c b d"], unit="words", least_count=2).tokens == ("b", "c")


def test_characters_are_decoded_as_they_were():
    vocabulary = Vocabulary.of(["Häuser, 3.\n"], unit="characters")
    assert vocabulary.decode([2, *vocabulary.encode("3 Häuser.\n"), 3, 4, 0]) == "3 Häuser.\n"
    assert vocabulary.encode("x") == [1]


def test_words_are_joined_and_copied_ones_put_in():
    assert WORDS.decode([4, 7, 9, 5, 6, 3, 4], extra=["y", "z"]) == "a (z b."


def test_subwords_are_the_longest_that_fit_and_decoded_as_they_were():
    vocabulary = Vocabulary(unit="subwords", tokens=("\u2581", "a", "b", "c", "ab", "\u2581ab", "abc", "\u2581c"))
    assert vocabulary.split("abc cab  a") == ["\u2581ab", "c", "\u2581c", "ab", "\u2581", "\u2581", "a"]
    for text in ("abc cab  a", "", " a", "b ", "abcabc"):
        assert vocabulary.decode(vocabulary.encode(text)) == text
    assert vocabulary.encode("ax") == [4, 5, 1]
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary


def test_subwords_are_learnt_from_texts():
    texts = ["lower lowest, newer newest."] * 5 + ["Ändere"]
    vocabulary = Vocabulary.of(texts, unit="subwords", most_tokens=60)
    assert vocabulary == Vocabulary.of(texts, unit="subwords", most_tokens=60)
    assert {"\u2581lower", "st", "\u2581newest"} <= set(vocabulary.tokens)
    assert not [token for token in vocabulary.tokens if len(token) > 1 and token[-1] in ",."]
    assert len(vocabulary.encode(texts[0])) < 12
    assert vocabulary.decode(vocabulary.encode(texts[0])) == texts[0]
    assert len(Vocabulary.of(texts, unit="subwords", most_tokens=6).tokens) <= 6


def test_subwords_need_a_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"A vocabulary of subwords needs `tokenizers`, which is not installed"):
        Vocabulary.of(["a"], unit="subwords")


def test_vocabulary_goes_to_json_and_back(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(WORDS.to_json()))
    assert Vocabulary.load(tmp_path / "a.json") == WORDS
    assert len(WORDS) == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no file"),
        ("{", "holds no vocabulary"),
        ("{}", "holds no vocabulary"),
        ('{"unit": "syllables", "tokens": []}', "A vocabulary's unit must be 'characters', 'words' or 'subwords'."),
        ('{"unit": "words", "tokens": ["a", "a"]}', "A vocabulary's tokens must differ. Received 'a' twice."),
        ('{"unit": "words", "tokens": [""]}', "A vocabulary's tokens must be texts that are not empty."),
    ],
)
def test_file_without_a_vocabulary_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=re.escape(message)):
        Vocabulary.load(tmp_path / "a.json")


def test_pairs_are_encoded_with_start_end_and_padding():
    arrays = encode_pairs([("a b a b", "b"), ("", "a b a b")], (WORDS, WORDS), (3, 3))
    assert arrays.source.tolist() == [[4, 5, 4], [3, 0, 0]]
    assert arrays.written.tolist() == [[2, 5, 0], [2, 4, 5]]
    assert arrays.labels.tolist() == [[5, 3, 0], [4, 5, 4]]
    assert arrays.weights.tolist() == [[1, 1, 0], [1, 1, 1]]


def test_unknown_words_of_a_source_have_numbers_of_their_own():
    assert unknown_words("x a y x z", WORDS, 4, 9) == ["x", "y"]
    arrays = encode_pairs_to_copy([("x a y x z", "z y x")], WORDS, (5, 4), 2)
    assert arrays.source.tolist() == [[8, 4, 9, 8, 1]]
    assert arrays.labels.tolist() == [[1, 9, 8, 3]]


def test_dates_are_known_written_variously_and_cut():
    pairs = dates_in_words(num_train=4000, num_test=100)
    assert pairs == dates_in_words(num_train=4000, num_test=100)
    assert not {iso for _, iso in pairs.train} & {iso for _, iso in pairs.test}
    assert all(re.fullmatch(r"(19|20)\d\d-[01]\d-[0-3]\d", iso) for _, iso in pairs.train)
    assert all(iso[2:4] in text and str(int(iso[-2:])) in text for text, iso in pairs.train)
    texts = " ".join(text for text, _ in pairs.train)
    assert all(word in texts for word in ("den ", "JULY", "février", "1st", "3rd", "11th", "/", "."))
    assert date_pairs(5, seed=1) != date_pairs(5, seed=2)
