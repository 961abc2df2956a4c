"""Scores of texts, and baselines without a neural network: n-grams, linear classifiers, nearest translations."""

from __future__ import annotations

import logging
import lzma
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from tfaccel.data.texts.documentation import first_sentence
from tfaccel.data.texts.text_data import DAYS, MONTHS
from tfaccel.reporting.classes import accuracy_scores, with_best_penalty
from tfaccel.training.verdict import BaselineScores

MAX_GRAM_CHARACTERS = 6
MAX_CHARACTERS = 2_000_000  # baselines use the last ones of the training text
_PENALTIES = (0.1, 0.3, 1.0, 3.0)
_LOGISTIC_C = 3.0  # chosen by cross-validation over the topics of Python's documentation


def text_bit_scores(bits: float, train_text: str, test_text: str) -> BaselineScores:
    r"""Compares bits per character with those of an n-gram model, a compressor and character frequencies.

    With $n(h)$ the count of a context $h$, $t(h)$ the number of distinct characters that follow it, and $h'$ the
    context without its first character, the n-gram model is $p(c | h) = (n(hc) + t(h) p(c | h')) / (n(h) + t(h))$. The
    context length is chosen on the last tenth of the training text. LZMA (xz) is the growth in compressed size when
    the test text is appended to the training text. Frequencies are those of single characters in the test text.

    Args:
        bits: the model's bits per character of the test text.
        train_text: the training text; at most its last two million characters are used.
        test_text: the text to predict; characters missing in the training text share one symbol.

    Source: Witten and Bell, The zero-frequency problem, 1991.

    Example:
        >>> text_bit_scores(0.5, "ababababab" * 20, "abababab" * 5).trivial
        {'frequencies': 1.0}
    """
    train_text = train_text[-MAX_CHARACTERS:]
    border = len(train_text) * 9 // 10
    held_out = _bits_by_length(train_text[:border], train_text[border:], MAX_GRAM_CHARACTERS)
    length = held_out.index(min(held_out)) + 1
    sizes = [
        len(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        for text in (train_text, train_text + test_text)
    ]
    counts = np.array(list(Counter(test_text).values()))
    return BaselineScores(
        metric="bits per character",
        score=bits,
        baselines={
            f"{length}-gram": _bits_by_length(train_text, test_text, length)[-1],
            "LZMA behind the training text": 8 * (sizes[1] - sizes[0]) / len(test_text),
        },
        trivial={"frequencies": float(-(counts / counts.sum() * np.log2(counts / counts.sum())).sum())},
        higher_is_better=False,
        num_examples=len(test_text),
    )


def _bits_by_length(train_text: str, test_text: str, num_characters: int) -> list[float]:
    """Bits per character of unigrams, bigrams and so on, each interpolated with the shorter ones."""
    known = set(train_text)
    test_text = "".join(c if c in known else "\0" for c in test_text)
    p = np.full(len(test_text), 1 / (len(known) + 1))
    bits = []
    for length in range(num_characters):
        grams = Counter(train_text[i : i + length + 1] for i in range(len(train_text) - length))
        different = Counter(gram[:-1] for gram in grams)
        seen: Counter[str] = Counter()
        for gram, count in grams.items():
            seen[gram[:-1]] += count
        for i in range(length, len(test_text)):
            context = test_text[i - length : i]
            if context in seen:
                found = grams.get(test_text[i - length : i + 1], 0) + different[context] * p[i]
                p[i] = found / (seen[context] + different[context])
        bits.append(float(-np.log2(p).sum() / max(1, len(p))))
    return bits


def text_class_scores(
    accuracy: float, train: tuple[Sequence[str], Sequence[int]], test: tuple[Sequence[str], Sequence[int]]
) -> BaselineScores:
    """Compares an accuracy with linear classifiers on TF-IDF features (unigrams and bigrams) and the most frequent
    class.

    The penalty of the SVM is chosen by cross-validation on the training texts.

    Args:
        accuracy: the model's accuracy on the test texts.
        train: texts and their class indices.
        test: other texts and their classes.

    Example:
        >>> texts = ["a red apple", "a green apple", "one red car", "one blue car"] * 4, [0, 0, 1, 1] * 4
        >>> text_class_scores(0.75, texts, texts).baselines["TF-IDF with a linear SVM"]
        1.0
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    rows, others = features.fit_transform(train[0]), features.transform(test[0])
    labels, wanted = np.asarray(train[1]), np.asarray(test[1])
    classifiers = {
        "TF-IDF with logistic regression": LogisticRegression(C=_LOGISTIC_C, max_iter=1000),
        "TF-IDF with a linear SVM": with_best_penalty(LinearSVC(), labels, _PENALTIES),
    }
    found = {name: one.fit(rows, train[1]).predict(others) for name, one in classifiers.items()}
    return accuracy_scores(accuracy, found, labels, wanted)


def central_sentence(text: str) -> str:
    """The sentence most similar to all others: TextRank, by words in common.

    Source: Mihalcea and Tarau, TextRank: bringing order into texts, 2004, https://aclanthology.org/W04-3252

    Example:
        >>> central_sentence("It rains. The red car is fast. A car is red or blue. The red car is old.")
        'The red car is fast.'
    """
    sentences = []
    while text:
        sentence, text = first_sentence(text)
        sentences.append(sentence)
    words = [set(sentence.lower().strip(".:!?").split()) for sentence in sentences]
    likeness = np.array(
        [
            [0.0 if a is b else len(a & b) / (math.log(len(a) + 1) + math.log(len(b) + 1) + 1e-9) for b in words]
            for a in words
        ]
    )
    if not sentences:
        return ""
    ranks = np.ones(len(sentences))
    outgoing = np.maximum(likeness.sum(axis=0), 1e-9)
    for _ in range(30):
        ranks = 0.15 + 0.85 * likeness @ (ranks / outgoing)
    return sentences[int(ranks.argmax())]


def exact_match_scores(
    exact_match: float, train: Sequence[tuple[str, str]], test: Sequence[tuple[str, str]], *, are_dates: bool
) -> BaselineScores:
    """Compares the fraction of test texts that a model translates exactly with those of simple baselines.

    Args:
        exact_match: the model's fraction.
        train: training texts and their translations.
        test: test texts and their translations.
        are_dates: also try a date parser, if `dateutil` is installed.

    Example:
        >>> train, test = [("2 May 1999", "1999-05-02")], [("3 May 1999", "1999-05-03")]
        >>> exact_match_scores(0.9, train, test, are_dates=True).baselines
        {'most similar training text': 0.0, 'date parser': 1.0}
    """
    texts, wanted = zip(*test, strict=True)
    found = {"most similar training text": nearest_translations(train, texts)}
    if are_dates and find_spec("dateutil") is not None:
        found["date parser"] = parsed_dates(texts)
    return BaselineScores(
        metric="exact match",
        score=exact_match,
        baselines={name: sum(map(operator.eq, made, wanted)) / len(wanted) for name, made in found.items()},
        is_fraction=True,
        num_examples=len(wanted),
    )


def nearest_translations(pairs: Sequence[tuple[str, str]], texts: Sequence[str]) -> list[str]:
    """Translates each text as its most similar training text, by TF-IDF of character 1- to 3-grams.

    Example:
        >>> nearest_translations([("2 May 1999", "1999-05-02"), ("3 June 2001", "2001-06-03")], ["2 May 1998"])
        ['1999-05-02']
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    features = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    known = features.fit_transform([source for source, _ in pairs])
    likeness = features.transform(texts) @ known.T
    return [pairs[int(row.argmax())][1] for row in likeness]


def parsed_dates(texts: Sequence[str]) -> list[str]:
    """Converts dates to ISO 8601 with `dateutil`'s parser, extended by the names of months and days in English, German
    and French; the day comes first in dates with periods. "" if it finds no date.

    Example:
        >>> parsed_dates(["May 2, 1999", "le 2 mai 1999", "2.5.1999", "le lendemain"])
        ['1999-05-02', '1999-05-02', '1999-05-02', '']
    """
    from dateutil.parser import ParserError, parse, parserinfo

    months = [(*forms, *(form[:3] for form in forms)) for forms in zip(*MONTHS.values(), strict=True)]
    names = {"MONTHS": months, "WEEKDAYS": list(zip(*DAYS.values(), strict=True))}
    names_of = type("Names", (parserinfo,), names)()
    found = []
    for text in texts:
        try:
            found.append(parse(text, names_of, fuzzy=True, dayfirst="." in text).date().isoformat())
        except (ParserError, OverflowError):
            found.append("")
    return found


logger = logging.getLogger("tfaccel")


def summary_scores(written: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> BaselineScores | None:
    """Compares the mean ROUGE-L (F1) of a model's summaries with those of simple baselines.

    Args:
        written: what wrote the summaries -> a summary of each document; the model comes first, then the baselines.
        wanted: the reference summaries.

    Returns:
        The scores; None if the library `rouge-score` is not installed, which is logged.

    Source: Lin, ROUGE: a package for automatic evaluation of summaries, 2004, https://aclanthology.org/W04-1013

    Example:
        >>> scores = summary_scores({"this model": ["the red cat"], "lead-1": ["a cat"]}, ["the cat"])
        >>> round(scores.score, 3), scores.baselines
        (0.8, {'lead-1': 0.5})
    """
    if not _is_installed("rouge_score", "ROUGE-L was not computed"):
        return None
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    scores = {
        name: sum(scorer.score(a, b)["rougeL"].fmeasure for a, b in zip(wanted, summaries, strict=True)) / len(wanted)
        for name, summaries in written.items()
    }
    return _compared("ROUGE-L", scores, len(wanted))


def translation_scores(written: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> dict[str, BaselineScores] | None:
    """Compares translations with reference translations by BLEU and chrF, both from 0 to 100.

    Args:
        written: what wrote the translations -> a translation of each text; the model comes first, then the baselines.
        wanted: the reference translations.

    Returns:
        The scores by name, "BLEU" and "chrF"; None if the library `sacrebleu` is not installed, which is logged.

    Source: Post, A call for clarity in reporting BLEU scores, 2018, https://arxiv.org/abs/1804.08771; Popovic, chrF:
    character n-gram F-score for automatic MT evaluation, 2015, https://aclanthology.org/W15-3049

    Example:
        >>> written = {"this model": ["the red cat sat down"], "nearest": ["a cat"]}
        >>> scores = translation_scores(written, ["the red cat sat there"])
        >>> round(scores["BLEU"].score, 1), round(scores["chrF"].score, 1)
        (66.9, 65.9)
    """
    if not _is_installed("sacrebleu", "BLEU and chrF were not computed"):
        return None
    from sacrebleu.metrics import BLEU, CHRF

    found = {}
    for name, metric in {"BLEU": BLEU(), "chrF": CHRF()}.items():
        of_all = {one: metric.corpus_score(list(texts), [list(wanted)]).score for one, texts in written.items()}
        found[name] = _compared(name, of_all, len(wanted), perfect=100.0)
    return found


def _is_installed(package: str, without: str) -> bool:
    if find_spec(package) is not None:
        return True
    logger.warning(f'{without}: the library {package.replace("_", "-")} is missing. pip install "tfaccel[text]"')
    return False


def _compared(metric: str, scores: Mapping[str, float], num_examples: int, *, perfect: float | None = None) -> Any:
    model, *baselines = scores
    return BaselineScores(
        metric=metric,
        score=scores[model],
        baselines={name: scores[name] for name in baselines},
        perfect=perfect,
        num_examples=num_examples,
    )
