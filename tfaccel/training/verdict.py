"""Whether a fit is good: a diagnosis of the training history, with advice, and the scores of cheaper predictors.

A history is over-fitting, under-fitting, unstable or sound; a score may be no better than that of a baseline.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfaccel.errors import WorkloadError
from tfaccel.records import Record
from tfaccel.short_repr import noun

_MIN_EXAMPLES = 10  # with fewer, scores other than fractions are not compared
_MIN_SKILL = 0.2  # 0 is the best trivial predictor's score, 1 a perfect score
_SAME = 1e-6  # scores that differ by a smaller fraction are the same, rounded in another way
_CLOSE = 0.01  # scores that differ by a smaller fraction count as equal

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
MIN_EPOCHS = 3
# Fractions of the total decrease of the loss unless noted otherwise. A huge loss before the first updates (a constant
# offset, lagging moving statistics) would make all these fractions small, so such a first value is ignored.
_BLOW_UP = 20  # ratio of the first to the second value above which the first is ignored
_JUMP, _MANY_JUMPS = 0.25, 0.2  # _MANY_JUMPS: fraction of the epochs
_LOST_AGAIN = 0.5
_WORSE_THAN_BEST, _EPOCHS_SINCE_BEST = 0.1, 3
_NOISE = 2.0  # multiple of the noise between epochs
_FOLLOWED, _FAR_BELOW = 0.8, 0.5  # ratio of the validation to the training decrease; of training to validation loss
_HARDLY_FOLLOWED, _BELOW = 0.4, 0.85
_PLATEAU, _MEMORISED = 0.1, 0.2  # ratio of the decreases of log loss, validation to training; ratio of the losses
_STILL_FALLING = 0.03
_FALL_OF_LEVEL, _MIN_FALL = 0.1, 0.005  # fractions of the loss itself
_HARDLY_LEARNT = 0.1  # fraction of the first loss


@noun
class BaselineScores(Record):
    """A trained model's score and those of cheaper predictors on the same examples.

    A recipe's `show_result` returns it, and `verdict` accepts it.

    Args:
        metric: name of the metric.
        score: the trained model's score.
        baselines: name -> score of the strongest simple predictors on the same examples.
        trivial: name -> score of predictors that use only the targets: the most frequent class, the mean, the class
            frequencies.
        higher_is_better: whether a higher score is better.
        perfect: the best possible score; None if there is none.
        is_fraction: whether scores are fractions of the examples, such as accuracy; comparisons then account for the
            standard error.
        num_examples: number of examples scored; None if unknown.

    Raises:
        WorkloadError: if a score is not finite, or a fraction is not between 0 and 1.

    Example:
        >>> scores = BaselineScores(metric="accuracy", score=0.502, baselines={"gradient boosting": 0.601},
        ...                         trivial={"most frequent class": 0.35}, is_fraction=True, num_examples=2000)
        >>> scores.worse_than
        ('gradient boosting',)
    """

    metric: str
    score: float
    baselines: Mapping[str, float] = field(default_factory=dict)
    trivial: Mapping[str, float] = field(default_factory=dict)
    higher_is_better: bool = True
    perfect: float | None = None
    is_fraction: bool = False
    num_examples: int | None = None

    def __post_init__(self) -> None:
        for name, value in {"the model": self.score, **self.baselines, **self.trivial}.items():
            if not math.isfinite(value) or (self.is_fraction and not 0 <= value <= 1):
                wanted = "a number from 0 to 1" if self.is_fraction else "a finite number"
                raise WorkloadError(f"`{self.metric}` of {name} must be {wanted}. Received: {value!r}.")
        if self.is_fraction and self.perfect is None:
            object.__setattr__(self, "perfect", 1.0 if self.higher_is_better else 0.0)

    @property
    def worse_than(self) -> tuple[str, ...]:
        """Baselines that are better by more than the standard error, and trivial predictors that are not beaten."""
        trivial = [name for name, value in self.trivial.items() if not self._leads(self.score, value)]
        better = [name for name, value in self.baselines.items() if self._leads(value, self.score, surely=True)]
        return (*better, *trivial)

    @property
    def below(self) -> tuple[str, ...]:
        """Baselines and trivial predictors that are better, by however little."""
        sign = 1 if self.higher_is_better else -1
        found = {**self.baselines, **self.trivial}
        return tuple(name for name, value in found.items() if sign * (value - self.score) > _SAME * abs(value))

    @property
    def has_too_few_examples(self) -> bool:
        """Whether all trivial predictors are beaten, but one of them by less than the standard error."""
        leads = [
            (self._leads(self.score, value), self._leads(self.score, value, surely=True))
            for value in self.trivial.values()
        ]
        return all(lead for lead, _ in leads) and not all(surely for _, surely in leads)

    @property
    def is_hardly_better_than_trivial(self) -> bool:
        """Whether the skill is below 0.2, although baselines, if any, show that more is possible."""
        if self._skill is None or (self.baselines and not self.worse_than):
            return False
        return self._skill < _MIN_SKILL

    @property
    def is_good(self) -> bool:
        """Whether the skill is known to be at least 0.5, and no baseline is better."""
        return self._skill is not None and self._skill >= 0.5 and not self.worse_than

    @property
    def _skill(self) -> float | None:
        """The score rescaled so that the best trivial predictor has 0 and a perfect score is 1; None if unknown."""
        if self.perfect is None or not self.trivial:
            return None
        start = max(self.trivial.values()) if self.higher_is_better else min(self.trivial.values())
        whole = self.perfect - start
        return (self.score - start) / whole if abs(whole) > 1e-9 else None

    def beside(self, *names: str) -> str:
        """Compares the model's score with those of the named baselines, or of all.

        Example:
            >>> BaselineScores(metric="error", score=0.2, baselines={"ridge": 0.3}, higher_is_better=False).beside()
            'error 0.2 vs. 0.3 (ridge)'
        """
        found = {**self.baselines, **self.trivial}
        found = {name: value for name, value in found.items() if not names or name in names}
        return f"{self.metric} {self._text(self.score)} vs. " + ", ".join(
            f"{self._text(value)} ({name})" for name, value in found.items()
        )

    def _text(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.is_fraction else f"{value:.4g}"

    def _leads(self, one: float, other: float, *, surely: bool = False) -> bool:
        """Whether one score is better than another by more than 1 %; with `surely`, also beyond the standard error."""
        distance = one - other if self.higher_is_better else other - one
        least = self._error(one, other) if surely else 0.0
        return distance > max(_CLOSE * max(abs(one), abs(other)), least)

    def _error(self, one: float, other: float) -> float:
        """The standard error of the difference of two scores; 0 if unknown, infinite with too few examples."""
        if self.num_examples is None:
            return 0.0
        if not self.is_fraction:
            return math.inf if self.num_examples < _MIN_EXAMPLES else 0.0
        smoothed = [(value * self.num_examples + 1) / (self.num_examples + 2) for value in (one, other)]
        return math.sqrt(sum(value * (1 - value) for value in smoothed) / max(1, self.num_examples))


@noun(kw_only=False)
class FitVerdict(Record):
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


@dataclass(frozen=True)
class LossCurves:
    """The training loss after each epoch and the validation loss at the same epochs, all finite.

    Args:
        train: at least three values.
        validation: as many values, or none.
    """

    train: tuple[float, ...]
    validation: tuple[float, ...]

    @property
    def start(self) -> float:
        """The initial training loss: the first value, or the second if the first is more than 20 times as large."""
        first, second = self.train[:2]
        return second if second > 0 and first > _BLOW_UP * second else first

    def instabilities(self) -> list[str]:
        """Losses that jump up in many epochs, or end far above their minimum."""
        train, lowest = self.train, min(self.train)
        learnt = max(self.start - lowest, 0.0)
        if train[-1] - self.start > 0.1 * abs(self.start) and min(train[1:]) >= train[0]:
            return [f"the training loss rose from {train[0]:.4g} to {train[-1]:.4g}"]
        if train[-1] - lowest > _LOST_AGAIN * learnt and learnt > _HARDLY_LEARNT * abs(self.start):
            where = train.index(lowest) + 1
            return [f"the training loss was {lowest:.4g} in epoch {where} and is {train[-1]:.4g} at the end"]
        found = _jumps("training", train, _JUMP * max(learnt, 1e-12))
        if self.validation:
            found += _jumps("validation", self.validation, 2 * _JUMP * self._learnt_on_validation(), and_back=True)
        return found

    def over_fitting(self) -> list[str]:
        """A validation loss that rises while the training loss falls, or stays far above it."""
        if not self.validation:
            return []
        train, values = self.train, self.validation
        best = min(range(len(values)), key=values.__getitem__)
        recent = statistics.median(values[-_EPOCHS_SINCE_BEST:])
        least = max(_WORSE_THAN_BEST * self._learnt_on_validation(), _NOISE * _noise(values))
        since = len(values) - 1 - best
        found = []
        if recent - values[best] > least and since >= min(_EPOCHS_SINCE_BEST, best + 1) and train[-1] < train[best]:
            found.append(
                f"the validation loss was lowest in epoch {best + 1} ({values[best]:.4g}) and is {values[-1]:.4g} at "
                f"the end, while the training loss fell from {train[best]:.4g} to {train[-1]:.4g}"
            )
        return found + self._gap()

    def hardly_learnt(self) -> list[str]:
        """Losses that hardly fell."""
        values, name = (self.validation, "validation") if self.validation else (self.train, "training")
        fallen = [one for one in (values, self.train) if one[0] - min(one) >= _HARDLY_LEARNT * abs(one[0])]
        nothing_left = max(map(abs, values)) == 0
        if fallen or nothing_left:
            return []
        return [f"the {name} loss hardly fell, from {values[0]:.4g} to {min(values):.4g}"]

    def still_falling(self) -> list[str]:
        """Losses that are still falling at the end."""
        values, name = (self.validation, "validation") if self.validation else (self.train, "training")
        num_last = max(1, len(values) // 5)
        before = min(values[:-num_last])
        lately = before - min(values[-num_last:])
        start = min(values[0], 2 * self.start) if self.start > 0 else values[0]
        learnt = max(start - min(values), 0.0)
        far = 3 * _STILL_FALLING if len(values) < 2 * MIN_EPOCHS - 1 else _STILL_FALLING
        of_level = lately / before if before > 0 else 0.0
        is_much = lately > far * learnt or (of_level > _FALL_OF_LEVEL and values[-1] > 0.05 * start)
        if is_much and lately > max(_NOISE * _noise(values), _MIN_FALL * abs(before)):
            epochs = "epoch" if num_last == 1 else f"{num_last} epochs"
            brought = f"from {before:.4g} to {min(values[-num_last:]):.4g}"
            return [f"the {name} loss still falls: {brought} in the last {epochs} of {len(values)}"]
        return []

    def _gap(self) -> list[str]:
        """A training loss far below the validation loss; skipped for negative losses, whose ratio means nothing."""
        train, values = self.train, self.validation
        if train[-1] < 0 or values[-1] <= 0 or train[-1] >= _BELOW * values[-1]:
            return []
        quotient = train[-1] / values[-1]
        figures = f"({train[-1]:.4g}) is far below the validation loss ({values[-1]:.4g})"
        of_train, of_validation = self.start - train[-1], self.start - values[-1]
        if of_train <= _HARDLY_LEARNT * abs(self.start):
            return [f"the training loss {figures}"] if quotient < _FAR_BELOW else []
        followed = of_validation / of_train
        if (quotient < _FAR_BELOW and followed < _FOLLOWED) or followed < _HARDLY_FOLLOWED:
            return [f"the training loss {figures}"]
        second, floor = min(1, len(train) - 2), 1e-12
        memorised = math.log(max(train[second], floor) / max(train[-1], floor))
        learnt = math.log(max(values[second], floor) / values[-1])
        if quotient < _MEMORISED and learnt < _PLATEAU * memorised:
            return [
                f"since epoch {second + 1} the training loss fell from {train[second]:.4g} to {train[-1]:.4g}, but the "
                f"validation loss only from {values[second]:.4g} to {values[-1]:.4g}"
            ]
        return []

    def _learnt_on_validation(self) -> float:
        """Decrease of the validation loss from the initial loss; at least a quarter of its minimum."""
        lowest = min(self.validation)
        return max(min(self.start, self.validation[0]) - lowest, 0.25 * abs(lowest), 1e-12)


def _noise(values: tuple[float, ...]) -> float:
    """The noise of a curve between epochs, without its trend, from the median absolute second difference."""
    if len(values) < 2 * MIN_EPOCHS:
        return 0.0
    steps = [after - before for before, after in itertools.pairwise(values)]
    bends = [abs(after - before) for before, after in itertools.pairwise(steps)]
    return statistics.median(bends) / math.sqrt(6)


def _jumps(name: str, values: tuple[float, ...], least: float, *, and_back: bool = False) -> list[str]:
    """A finding if a loss jumps up in many epochs; with `and_back`, counts only jumps from which it falls again."""
    jumps = [epoch for epoch, (before, after) in enumerate(itertools.pairwise(values), 2) if after - before > least]
    if and_back:
        jumps = [epoch for epoch in jumps if values[epoch - 1] - min(values[epoch - 1 :]) > least]
    if len(jumps) <= max(1, _MANY_JUMPS * len(values)):
        return []
    return [f"the {name} loss jumped up in {len(jumps)} of {len(values)} epochs (first in epoch {jumps[0]})"]
