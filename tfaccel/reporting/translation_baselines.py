"""Translation baselines without a neural network: the most similar training text, and a date parser."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from importlib.util import find_spec

from tfaccel.data.texts.pairs import DAYS, MONTHS
from tfaccel.training.verdict.baseline_scores import BaselineScores


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

    Args:
        pairs: training texts and their translations.
        texts: the texts to translate.

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
