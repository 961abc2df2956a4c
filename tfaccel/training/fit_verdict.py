"""What a training history says of the fit: over-fitting, under-fitting, unstable or sound, and what to try."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

OVER_FITTING, UNDER_FITTING, UNSTABLE, SOUND, UNKNOWN = KINDS = (
    "over-fitting", "under-fitting", "unstable", "sound", "unknown",
)  # fmt: skip

_FEWEST_EPOCHS = 3
# An epoch jumps where its training loss is higher than the one before by this part of all that was learnt.
_JUMP, _MANY_JUMPS = 0.25, 0.2  # the second: as a part of the epochs
_WORSE_THAN_BEST = 0.1  # the last validation loss over the best, as a part of all that was learnt
_EPOCHS_SINCE_BEST = 3
_FAR_BELOW = 0.5  # the training loss over the validation loss
_STILL_FALLING = 0.03  # part of all that was learnt that the last fifth of the epochs brought
_HARDLY_LEARNT = 0.1  # part of the first loss that was learnt

_ADVICE = {
    OVER_FITTING: (
        "stop early (--early_stopping)", "more dropout, weight decay or augmentation", "more data, or a smaller model",
    ),
    UNDER_FITTING: (
        "train for more epochs", "a higher learning rate", "a larger model, or less dropout and weight decay",
    ),
    UNSTABLE: (
        "a third of the learning rate", "a longer warm-up (--warm_up)", "clip gradients (--global_clipnorm=1)",
        "a larger batch",
    ),
    SOUND: (),
    UNKNOWN: ("train for at least three epochs, with validation data",),
}  # fmt: skip


@dataclass(frozen=True)
class FitVerdict:
    """What a training history says of the fit.

    Arguments:
        kind: "over-fitting", "under-fitting", "unstable", "sound", or "unknown" where the history is too short.
        evidence: what in the history says so, with figures.
        advice: what to try, the most likely first; empty for a sound fit.
    """

    kind: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON-serialisable data."""
        return asdict(self)

    def text(self) -> str:
        """The verdict in one or two sentences.

        Example:
            >>> FitVerdict("sound", ("validation loss 0.21 at the end, its lowest",), ()).text()
            'The fit is sound: validation loss 0.21 at the end, its lowest.'
        """
        advice = f" Try: {'; '.join(self.advice)}." if self.advice else ""
        is_noun = self.kind.endswith("fitting")
        opening = f"There is {self.kind}" if is_noun else f"The fit is {self.kind}"
        return f"{opening}: {'; '.join(self.evidence)}.{advice}"


def verdict(history: Mapping[str, Sequence[float | None]]) -> FitVerdict:
    """What a training history says of the fit.

    It looks at `loss` and, where there is one, `val_loss`. How far a loss has fallen from the first epoch to its lowest
    is "all that was learnt", and differences are taken as parts of it, so that the scale of the loss does not matter.

    * Unstable: losses that are not finite, or jump up in many epochs.
    * Over-fitting: the validation loss has risen since its lowest, or stays far above the training loss.
    * Under-fitting: losses still fall at the end, or hardly fell at all.

    Arguments:
        history: metric -> one value an epoch, as in `TrainResult.history` or Keras's `History.history`; None or NaN
            where a value was not finite.

    Example:
        >>> verdict({"loss": [1.0, 0.5, 0.2, 0.1, 0.05, 0.02], "val_loss": [1.0, 0.6, 0.5, 0.6, 0.7, 0.8]}).kind
        'over-fitting'
    """
    losses, val_losses = _values(history.get("loss", ())), _values(history.get("val_loss", ()))
    found = _unstable(losses, val_losses)
    if found:
        return FitVerdict(UNSTABLE, tuple(found), _ADVICE[UNSTABLE])
    if len(losses) < _FEWEST_EPOCHS:
        return FitVerdict(UNKNOWN, (f"the history has {len(losses)} epochs",), _ADVICE[UNKNOWN])
    found = _over_fitting(losses, val_losses)
    if found:
        return FitVerdict(OVER_FITTING, tuple(found), _ADVICE[OVER_FITTING])
    found = _under_fitting(losses, val_losses)
    if found:
        return FitVerdict(UNDER_FITTING, tuple(found), _ADVICE[UNDER_FITTING])
    if not val_losses:
        return FitVerdict(UNKNOWN, ("the training loss has settled, but there is no validation loss",),
                          _ADVICE[UNKNOWN])  # fmt: skip
    evidence = f"validation loss {val_losses[-1]:.4g} at the end, lowest {min(val_losses):.4g}, training loss "
    return FitVerdict(SOUND, (f"{evidence}{losses[-1]:.4g}",), ())


def _values(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _unstable(losses: list[float], val_losses: list[float]) -> list[str]:
    for name, values in (("training", losses), ("validation", val_losses)):
        broken = [epoch for epoch, value in enumerate(values, 1) if not math.isfinite(value)]
        if broken:
            return [f"the {name} loss is not finite in epoch {broken[0]}"]
    if len(losses) < _FEWEST_EPOCHS:
        return []
    if losses[-1] > losses[0] and min(losses[1:]) >= losses[0]:
        return [f"the training loss rose from {losses[0]:.4g} to {losses[-1]:.4g}"]
    learnt = max(losses[0] - min(losses), 1e-12)
    jumps = [
        epoch for epoch, (before, after) in enumerate(itertools.pairwise(losses), 2) if after - before > _JUMP * learnt
    ]
    if len(jumps) > max(1, _MANY_JUMPS * len(losses)):
        return [f"the training loss jumped up in {len(jumps)} of {len(losses)} epochs (first in epoch {jumps[0]})"]
    return []


def _over_fitting(losses: list[float], val_losses: list[float]) -> list[str]:
    if len(val_losses) != len(losses):
        return []
    found = []
    best = min(range(len(val_losses)), key=val_losses.__getitem__)
    learnt = max(val_losses[0] - val_losses[best], losses[0] - min(losses))
    recent = sorted(val_losses[-_EPOCHS_SINCE_BEST:])[len(val_losses[-_EPOCHS_SINCE_BEST:]) // 2]
    since = len(val_losses) - 1 - best
    has_risen = recent - val_losses[best] > _WORSE_THAN_BEST * learnt and since >= min(_EPOCHS_SINCE_BEST, best + 1)
    if has_risen and losses[-1] < losses[best]:
        found.append(
            f"the validation loss was lowest in epoch {best + 1} ({val_losses[best]:.4g}) and is {val_losses[-1]:.4g} "
            f"at the end, while the training loss fell from {losses[best]:.4g} to {losses[-1]:.4g}"
        )
    gap = val_losses[-1] - losses[-1]
    if gap > 2 * _WORSE_THAN_BEST * learnt and 0 <= losses[-1] < _FAR_BELOW * val_losses[-1]:
        found.append(f"the training loss ({losses[-1]:.4g}) is far below the validation loss ({val_losses[-1]:.4g})")
    return found


def _under_fitting(losses: list[float], val_losses: list[float]) -> list[str]:
    values, name = (val_losses, "validation") if len(val_losses) == len(losses) else (losses, "training")
    learnt = values[0] - min(values)
    if learnt < _HARDLY_LEARNT * abs(values[0]) and losses[0] - min(losses) < _HARDLY_LEARNT * abs(losses[0]):
        return [f"the {name} loss hardly fell, from {values[0]:.4g} to {min(values):.4g}"]
    num_last = max(1, len(values) // 5)
    lately = min(values[:-num_last]) - min(values[-num_last:])
    if len(values) >= 2 * _FEWEST_EPOCHS - 1 and lately > _STILL_FALLING * learnt:
        return [
            f"the {name} loss still falls: the last {num_last} of {len(values)} epochs brought "
            f"{100 * lately / learnt:.0f} % of all that was learnt"
        ]
    return []
