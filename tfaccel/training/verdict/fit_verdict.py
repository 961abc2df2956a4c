"""Diagnoses a training history: over-fitting, under-fitting, unstable or sound, with advice on what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfaccel.short_repr import short_repr
from tfaccel.training.verdict.baseline_scores import BaselineScores
from tfaccel.training.verdict.curve_findings import MIN_EPOCHS, LossCurves

OVER_FITTING, UNDER_FITTING, UNSTABLE = "over-fitting", "under-fitting", "unstable"
WORSE, NO_BETTER = "worse than a baseline", "no better than a baseline"
SOUND, UNKNOWN = "sound", "unknown"

_MORE_DATA = "train for at least three epochs, with validation data"
_ADVICE = {
    OVER_FITTING: (
        "stop early (--early_stopping)",
        "more dropout, weight decay or augmentation",
        "more data, or a smaller model",
        "check that validation inputs are scaled like the training inputs",
    ),
    UNDER_FITTING: (
        "train for more epochs",
        "a higher learning rate",
        "a larger model, or less dropout and weight decay",
    ),
    UNSTABLE: (
        "a third of the learning rate",
        "a longer warm-up (--warm_up)",
        "clip gradients (--global_clipnorm=1)",
        "a larger batch",
    ),
    WORSE: ("search for better settings (tfaccel search)", "use the baseline"),
    NO_BETTER: ("search for better settings (tfaccel search)", "use the baseline, which is simpler"),
    SOUND: (),
    UNKNOWN: (_MORE_DATA,),
}


@short_repr
@dataclass(frozen=True)
class FitVerdict:
    """The diagnosis of a training history.

    Args:
        kind: "over-fitting", "under-fitting", "unstable", "worse than a baseline", "no better than a baseline",
            "sound", or "unknown" if there is too little evidence.
        evidence: findings with figures.
        advice: what to try, most promising first; empty for a sound fit.
    """

    kind: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON-serializable data."""
        return asdict(self)

    def text(self) -> str:
        """The verdict in one or two sentences.

        Example:
            >>> FitVerdict("sound", ("validation loss 0.21 at the end, its lowest",), ()).text()
            'The fit is sound: validation loss 0.21 at the end, its lowest.'
        """
        advice = f" Try: {'; '.join(self.advice)}." if self.advice else ""
        opening = f"There is {self.kind}" if self.kind in (OVER_FITTING, UNDER_FITTING) else f"The fit is {self.kind}"
        if self.kind == UNKNOWN:
            opening = "It is unknown whether the fit is sound"
        return f"{opening}: {'; '.join(self.evidence)}.{advice}"


def verdict(
    history: Mapping[str, Sequence[float | None]],
    *,
    baselines: BaselineScores | None = None,
    final_loss: float | None = None,
) -> FitVerdict:
    """Diagnoses the fit from a training history and, if given, baselines.

    It uses `loss` and, if present, `val_loss`. Differences are relative to the total decrease of the loss, so that its
    scale does not matter; a huge first value is ignored.

    * Unstable: losses are not finite, jump up in many epochs, or end far above their minimum.
    * Over-fitting: the validation loss has risen since its minimum, or stays far above the training loss.
    * Under-fitting: losses are still falling at the end, or hardly fell at all, or the score is hardly better than that
      of a trivial predictor, such as the most frequent class or the mean.
    * Worse than a baseline: none of these, but a baseline's score is better by more than the standard error.
    * No better than a baseline: none of these, but a baseline's score is better by so little that it may be chance.
    * Unknown: too few epochs, no validation loss, or too few examples to distinguish the score from the trivial one.

    Args:
        history: metric -> one value per epoch, as in `TrainResult.history` or Keras's `History.history`; None or NaN
            if a value was not finite.
        baselines: scores of the model and of simple predictors on the same examples; None to use only the curves.
        final_loss: the validation loss of the saved model. If it is the minimum, from an earlier epoch (best weights
            restored), later epochs are ignored.

    Example:
        >>> verdict({"loss": [1.0, 0.5, 0.2, 0.1, 0.05, 0.02], "val_loss": [1.0, 0.6, 0.5, 0.6, 0.7, 0.8]}).kind
        'over-fitting'
        >>> scores = BaselineScores(metric="accuracy", score=0.502, baselines={"gradient boosting": 0.601},
        ...                         is_fraction=True)
        >>> history = {"loss": [1.0, 0.5, 0.3, 0.25, 0.25], "val_loss": [1.0, 0.55, 0.35, 0.3, 0.3]}
        >>> verdict(history, baselines=scores).text()
        'The fit is worse than a baseline: accuracy 50.2 % vs. 60.1 % (gradient boosting). Try: search for better settings (tfaccel search); use the baseline.'
    """  # noqa: E501
    losses, val_losses = (_values(history.get(name, ())) for name in ("loss", "val_loss"))
    for name, values in (("training", losses), ("validation", val_losses)):
        broken = [epoch for epoch, value in enumerate(values, 1) if not math.isfinite(value)]
        if broken:
            return _found(UNSTABLE, [f"the {name} loss is not finite in epoch {broken[0]}"])
    losses, val_losses, is_best = _as_saved(losses, val_losses, final_loss)
    missing = _missing(losses, val_losses, history)
    found: dict[str, list[str]] = {}
    if not missing:
        curves = LossCurves(tuple(losses), tuple(val_losses))
        # A model that was good from the first epoch, such as a pretrained one, has little left to learn.
        hardly_learnt = [] if baselines is not None and baselines.is_good else curves.hardly_learnt()
        found = {
            UNSTABLE: curves.instabilities(),
            OVER_FITTING: curves.over_fitting(),
            UNDER_FITTING: hardly_learnt or ([] if is_best else curves.still_falling()),
        }
        if not val_losses:
            missing = "the training loss has settled, but there is no validation loss"
    return _weighed(found, baselines, missing) or _sound(losses, val_losses, baselines)


def _weighed(found: dict[str, list[str]], baselines: BaselineScores | None, missing: str) -> FitVerdict | None:
    """Combines the findings of the curves and the baselines into a verdict; None if nothing is wrong."""
    beside: list[str] = []
    if baselines is not None and baselines.worse_than:
        beside = [baselines.beside(*baselines.worse_than)]
    elif baselines is not None and baselines.is_hardly_better_than_trivial:
        beside = [f"the score is hardly better than the trivial one: {baselines.beside()}"]
        found = {**found, UNDER_FITTING: [*found.get(UNDER_FITTING, ()), *beside]}
    kinds = [kind for kind, evidence in found.items() if evidence]
    if UNSTABLE in kinds:
        return _found(UNSTABLE, [*found[UNSTABLE], *beside])
    if kinds:
        # If the validation loss is far above the training loss but still falling, train longer first.
        both = [text for kind in kinds for text in found[kind]]
        is_unfinished = UNDER_FITTING in kinds and "still falls" in found[UNDER_FITTING][0]
        return _found(UNDER_FITTING if is_unfinished else kinds[0], list(dict.fromkeys([*both, *beside])))
    if beside:
        return _found(WORSE, beside)
    if missing:
        return _found(UNKNOWN, [missing])
    if baselines is not None and baselines.below:
        return _found(NO_BETTER, [f"{baselines.beside(*baselines.below)}, a difference that may be chance"])
    if baselines is not None and baselines.has_too_few_examples:
        few = f"{baselines.num_examples} examples are too few to distinguish {baselines.beside(*baselines.trivial)}"
        return FitVerdict(UNKNOWN, (few,), ("more validation data",))
    return None


def _found(kind: str, evidence: Sequence[str]) -> FitVerdict:
    return FitVerdict(kind, tuple(evidence), _ADVICE[kind])


def _sound(losses: list[float], val_losses: list[float], baselines: BaselineScores | None) -> FitVerdict:
    evidence = f"validation loss {val_losses[-1]:.4g} at the end, lowest {min(val_losses):.4g}, training loss "
    beside = "no baseline to compare with" if baselines is None else baselines.beside()
    return _found(SOUND, [f"{evidence}{losses[-1]:.4g}", beside])


def _values(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _missing(losses: list[float], val_losses: list[float], history: Mapping[str, Any]) -> str:
    """What is missing for a diagnosis of the curves; "" if nothing is."""
    if history and "loss" not in history:
        return f"the history has no `loss`, only {', '.join(map(repr, history))}"
    with_validation = " with a validation loss" if val_losses else ""
    epochs = f"{len(losses)} epoch{'' if len(losses) == 1 else 's'}"
    return f"the history has {epochs}{with_validation}" if len(losses) < MIN_EPOCHS else ""


def _as_saved(
    losses: list[float], val_losses: list[float], final_loss: float | None
) -> tuple[list[float], list[float], bool]:
    """Both curves at the epochs with validation, up to the saved weights, and whether there were later epochs."""
    if val_losses and len(val_losses) < len(losses):  # validation every few epochs
        every = len(losses) / len(val_losses)
        losses = [losses[math.ceil(every * (number + 1)) - 1] for number in range(len(val_losses))]
    elif len(val_losses) > len(losses):
        val_losses = []
    if not val_losses or final_loss is None or not math.isfinite(final_loss):
        return losses, val_losses, False
    last = len(val_losses) - 1
    best = min(range(len(val_losses)), key=val_losses.__getitem__)
    saved = min((last, best), key=lambda epoch: abs(val_losses[epoch] - final_loss))
    return losses[: saved + 1], val_losses[: saved + 1], saved < last
