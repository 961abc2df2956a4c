"""Summaries compared by ROUGE-L."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from tfaccel.training.verdict.baseline_scores import BaselineScores

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
    if find_spec("rouge_score") is None:
        logger.warning('ROUGE-L was not computed: the library rouge-score is missing. pip install "tfaccel[text]"')
        return None
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    scores = {
        name: sum(scorer.score(a, b)["rougeL"].fmeasure for a, b in zip(wanted, summaries, strict=True)) / len(wanted)
        for name, summaries in written.items()
    }
    model, *baselines = scores
    return BaselineScores(
        metric="ROUGE-L",
        score=scores[model],
        baselines={name: scores[name] for name in baselines},
        num_examples=len(wanted),
    )
