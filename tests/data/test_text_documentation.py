"""CPython's documentation: no text in two topics or on both sides of a cut, and much the same in every Python."""

from collections import Counter

from tfaccel.data.texts.documentation import GROUP_NAMES, documentation_text, documentation_topics
from tfaccel.data.texts.files import documentation_passages
from tfaccel.data.texts.text_data import documentation_summaries


def test_topics_are_all_there_and_held_out_ones_are_of_every_group():
    topics = documentation_topics()
    assert len(topics) == 79
    assert {topic.group for topic in topics if topic.is_held_out} == set(GROUP_NAMES)
    assert {topic.name for topic in topics if topic.is_held_out} >= {"lambda", "with", "truth", "identifiers"}


def test_no_paragraph_is_in_two_topics():
    counts = Counter(" ".join(text.split()) for topic in documentation_topics() for text in topic.paragraphs)
    assert max(counts.values()) == 1


def test_shorter_topics_have_the_text_that_longer_ones_share():
    topics = {topic.name: "\n".join(topic.paragraphs) for topic in documentation_topics()}
    assert 'The "while" statement' in topics["while"]
    assert 'The "while" statement\n' not in topics["compound"]


def test_passages_and_text_to_test_with_are_no_part_of_those_to_train_on():
    passages = documentation_passages()
    assert not set(passages.train_texts) & set(passages.test_texts)
    # Python 3.11, 3.12 and 3.13 have 735 to 798 passages to train on, 184 to 187 to test with.
    assert 700 < len(passages.train_texts) < 850
    assert 170 < len(passages.test_texts) < 200
    assert all(len(text.split()) >= 30 for text in passages.train_texts + passages.test_texts)
    assert set(passages.train_labels) == set(passages.test_labels) == set(range(len(GROUP_NAMES)))
    train, test = (set(documentation_text(held_out=held_out).split("\n\n")) for held_out in (False, True))
    assert not {text.strip() for text in train} & {text.strip() for text in test} - {""}


def test_summaries_are_not_in_their_documents():
    pairs = documentation_summaries()
    assert len(pairs.train) > 600
    assert 50 < len(pairs.test) < 70
    assert not set(pairs.train) & set(pairs.test)
    assert all(summary and not document.startswith(summary) for document, summary in pairs.train + pairs.test)
    assert all(len(document.split()) >= 12 for document, _ in pairs.train + pairs.test)
    firsts = [summary for _, summary in pairs.test]
    assert "A lambda expression yields a function object." in firsts or len(set(firsts)) == len(firsts)


def test_headings_and_grammar_are_in_no_passage_or_entry():
    topic = next(topic for topic in documentation_topics() if topic.name == "while")
    assert not any("*****" in text for text in topic.passages())
    assert not any("::=" in text for pair in topic.entries() for text in pair)
