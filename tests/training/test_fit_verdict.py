"""The verdict on the fit: each kind from synthetic and real histories, with its evidence."""

import doctest
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from tfaccel.errors import WorkloadError
from tfaccel.training import verdict as verdict_module
from tfaccel.training.run.result import trivial_scores
from tfaccel.training.verdict import BaselineScores, FitVerdict, verdict

EPOCHS = np.arange(20)
FALLING = np.exp(-EPOCHS / 3)
CASES = {
    "over-fitting": [
        (FALLING, 0.4 + 0.6 * FALLING + 0.02 * EPOCHS),  # falls, then rises
        (FALLING, 0.4 + 0.6 * FALLING),  # stays far above
        (1000 * FALLING, 1000 * (0.4 + 0.6 * FALLING + 0.02 * EPOCHS)),  # whatever the scale
        ([1e6, 1.0, 0.5, 0.1, 0.05], [1e6, 1.2, 1.1, 1.0, 1.0]),  # both start with one huge value
        ([17.0, 1.1, 0.5, 0.1, 0.05], [17.0, 1.2, 1.1, 1.0, 1.0]),  # a high start that hides later changes
        ([12.6, 4.75, 3.61, 3.24, 3.2, 3.2, 3.2], [574443.0, 1082.0, 76.5, 20.6, 20.5, 20.5, 20.5]),
        ([12.6, 4.75, 3.61, 3.24, 3.0, 2.9, 2.8], [574443.0, 1082.0, 76.5, 20.6, 25.0, 30.0, 35.0]),
        ([0.69, 0.65, 0.6, 0.55, 0.5], [0.69, 0.69, 0.69, 0.68, 0.69]),  # validation never moves
        (FALLING - 5 - 0.1 * EPOCHS, FALLING - 4.9 + 0.1 * EPOCHS),  # below 0
        (0.3 * FALLING, 0.5 + 0.5 * FALLING + 0.03 * EPOCHS + 0.02 * np.sin(9.0 * EPOCHS)),  # noise
    ],
    "under-fitting": [
        (1 - 0.03 * EPOCHS, 1.02 - 0.03 * EPOCHS),
        (1 - 0.03 * EPOCHS, None),
        (np.full(20, 0.693), np.full(20, 0.694)),
        (0.7 - 0.001 * EPOCHS, 0.7 - 0.001 * EPOCHS),
        ([12.6, 4.75, 3.61, 3.24], [574443.0, 1082.0, 76.5, 20.58]),  # validation far above, and still falling
        ([1e6, 2.0, 1.8, 1.6, 1.4, 1.2], [1e6, 2.0, 1.8, 1.6, 1.4, 1.2]),
        ([1.0, 0.6, 0.3], [1.0, 0.65, 0.4]),
        (np.full(4, 1.0), np.full(4, 1.0)),
        ([1.10, 1.06, 1.05, 1.05, 1.05], [1.10, 1.07, 1.06, 1.06, 1.06]),
    ],
    "unstable": [
        ([1.0, 0.5, math.nan], [1.0, 0.6, 0.5]),
        ([1.0, 0.5, None], None),
        ([1.0, 0.5, 0.3], [1.0, 0.6, math.inf]),
        (np.where(EPOCHS % 2, 0.9, 0.2) + FALLING, 0.5 + FALLING),
        ([1.0, 1.5, 2.5, 4.0], [1.0, 2.0, 3.0, 4.0]),
        ([1.0, 0.5, 0.3, 0.2, 5.0], [1.0, 0.6, 0.4, 0.3, 6.0]),  # one jump, the last
        ([1e6, 1.0, 0.5, 0.9, 0.3, 0.8, 0.2, 0.9], [1e6, 1.0, 0.6, 0.9, 0.4, 0.8, 0.4, 0.9]),
        (0.2 + FALLING, np.where(EPOCHS % 2, 4.0, 0.5) + FALLING),  # validation alone
    ],
    "sound": [
        (0.1 + FALLING, 0.12 + FALLING),
        (0.3 + FALLING, 0.2 + FALLING),  # dropout and augmentation leave the training loss above
        (0.1 + FALLING, 0.12 + FALLING + 0.01 * (-1.0) ** EPOCHS),  # a little noise
        (FALLING - 5, FALLING - 4.9),  # losses below 0, such as a likelihood's
        (FALLING - 0.5, FALLING - 0.4),
        (FALLING, 1.01 * FALLING),  # towards 0
        ([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.3, 0.29], [1.0, 0.31, 0.3]),
        ([0.7, 0.56, 0.54, 0.53, 0.53], [0.53, 0.52, 0.518, 0.517, 0.5161]),  # learnt in the first epoch
        # Nearly perfect accuracy: the training loss approaches 0, and the validation loss follows most of the way.
        ([0.5, 0.05, 0.02, 0.01, 0.008, 0.007, 0.006], [0.2, 0.1, 0.08, 0.07, 0.062, 0.061, 0.06]),
        (0.1 + FALLING, np.where(EPOCHS == 0, 574443.0, 0.12 + FALLING)),  # one huge validation loss, then none
        (0.1 + FALLING, (0.12 + FALLING)[4::5]),  # validation every five epochs
        (0.1 + FALLING, 0.12 + FALLING + 0.03 * np.sin(9.0 * EPOCHS)),  # much noise
    ],
    "unknown": [([1.0, 0.5], [1.0, 0.6]), ([], None), (0.1 + FALLING, None), (0.1 + FALLING, [0.5, 0.4])],
}


@pytest.mark.parametrize(
    ("kind", "loss", "val_loss"), [(kind, *histories) for kind, cases in CASES.items() for histories in cases]
)
def test_made_up_histories(kind, loss, val_loss):
    history = {"loss": list(loss)} | ({} if val_loss is None else {"val_loss": list(val_loss)})
    found = verdict(history)
    assert found.kind == kind, found
    assert found.evidence
    assert bool(found.advice) == (kind != "sound")


def test_evidence_names_epochs_and_figures():
    history = {"loss": [1.0, 0.5, 0.2, 0.1, 0.05, 0.02], "val_loss": [1.0, 0.6, 0.5, 0.6, 0.7, 0.8]}
    assert verdict(history).evidence[0] == (
        "the validation loss was lowest in epoch 3 (0.5) and is 0.8 at the end, "
        "while the training loss fell from 0.2 to 0.02"
    )
    assert verdict({"loss": [1.0, math.nan]}).evidence == ("the training loss is not finite in epoch 2",)
    assert verdict({"loss": [1.0, 2.0, 3.0]}).evidence == ("the training loss rose from 1 to 3",)
    assert verdict({"loss": list(1 - 0.03 * EPOCHS)}).evidence == (
        "the training loss still falls: from 0.55 to 0.43 in the last 4 epochs of 20",
    )
    broken = {"loss": [12.6, 4.75, 3.61, 3.24], "val_loss": [574443.0, 1082.0, 76.5, 20.58]}
    assert verdict(broken).evidence == (
        "the training loss (3.24) is far below the validation loss (20.58)",
        "the validation loss still falls: from 76.5 to 20.58 in the last epoch of 4",
    )


def test_text_and_json():
    history = {"loss": list(FALLING), "val_loss": list(0.4 + 0.6 * FALLING)}
    text = verdict(history).text()
    assert text.startswith("There is over-fitting: the training loss (0.001776) is far below the validation loss (0.40")
    assert "Try: stop early (--early_stopping); more dropout, weight decay or augmentation; more data, or a" in text
    assert verdict({"loss": [1.0]}).text() == (
        "It is unknown whether the fit is sound: the history has 1 epoch. "
        "Try: train for at least three epochs, with validation data."
    )
    assert verdict({"generator_loss": [1.0]}).evidence == ("the history has no `loss`, only 'generator_loss'",)
    data = json.loads(json.dumps(verdict(history).to_json()))
    assert FitVerdict(data["kind"], tuple(data["evidence"]), tuple(data["advice"])) == verdict(history)


SOUND = {"loss": list(0.1 + FALLING), "val_loss": list(0.12 + FALLING)}
FLAT = {"loss": [0.05, 0.049, 0.048], "val_loss": [0.05, 0.05, 0.05]}


def scores(score, **fields):
    return BaselineScores(**{"metric": "accuracy", "score": score, "is_fraction": True, "num_examples": 1000} | fields)


@pytest.mark.parametrize(
    ("history", "baselines", "kind", "evidence"),
    [
        (SOUND, scores(0.502, baselines={"boosting": 0.601}), "worse than a baseline", "50.2 % vs. 60.1 % (boost"),
        (
            SOUND,
            scores(0.655, baselines={"boosting": 0.664, "linear": 0.61}),
            "no better than a baseline",
            "65.5 % vs. 66.4 % (boosting), a difference that may be chance",
        ),
        (SOUND, scores(0.664, baselines={"boosting": 0.655}), "sound", "66.4 % vs. 65.5 % (boosting)"),
        (SOUND, scores(0.655, baselines={"boosting": 0.655 + 1e-8}), "sound", "65.5 % vs. 65.5 % (boosting)"),
        (SOUND, scores(0.46, trivial={"most frequent class": 0.35}), "under-fitting", "hardly better than the trivial"),
        (SOUND, scores(0.46, trivial={"a": 0.35}, baselines={"b": 0.46}), "sound", "46.0 % (b), 35.0 % (a)"),
        (SOUND, scores(0.35, trivial={"a": 0.35}), "worse than a baseline", "35.0 % vs. 35.0 % (a)"),
        (SOUND, scores(0.7, trivial={"a": 0.5}, num_examples=5), "unknown", "5 examples are too few to distinguish"),
        (SOUND, scores(0.9, trivial={"a": 0.5}, num_examples=20), "sound", "90.0 % vs. 50.0 % (a)"),
        (FLAT, scores(0.98, trivial={"a": 0.5}), "sound", "98.0 %"),  # good from the first epoch on
        (FLAT, scores(0.52, trivial={"a": 0.5}), "under-fitting", "hardly fell"),
        ({"loss": [1.0]}, scores(0.3, baselines={"b": 0.6}), "worse than a baseline", "30.0 % vs. 60.0 % (b)"),
        ({"loss": [1.0]}, scores(0.8, baselines={"b": 0.6}), "unknown", "the history has 1 epoch"),
        (
            {"loss": list(FALLING), "val_loss": list(0.4 + 0.6 * FALLING)},
            scores(0.4, baselines={"b": 0.6}),
            "over-fitting",
            "accuracy 40.0 % vs. 60.0 % (b)",
        ),
    ],
)
def test_baselines_are_part_of_the_verdict(history, baselines, kind, evidence):
    found = verdict(history, baselines=baselines)
    assert found.kind == kind, found
    assert evidence in "; ".join(found.evidence)


def test_errors_and_bits_are_compared_as_well():
    bits = BaselineScores(
        metric="bits",
        score=2.27,
        baselines={"6-gram": 2.17},
        trivial={"frequencies": 4.65},
        higher_is_better=False,
        perfect=0.0,
    )
    assert verdict(SOUND, baselines=bits).evidence == ("bits 2.27 vs. 2.17 (6-gram)",)
    assert verdict(SOUND, baselines=replace(bits, score=2.16)).kind == "sound"
    assert verdict(SOUND, baselines=replace(bits, score=2.18)).text().startswith("The fit is no better than a baseline")
    assert verdict(SOUND, baselines=replace(bits, score=4.5, baselines={})).kind == "under-fitting"
    assert BaselineScores.from_json(json.loads(json.dumps(bits.to_json()))) == bits
    few = replace(bits, score=2.0, num_examples=3)
    assert verdict(SOUND, baselines=few).kind == "unknown"


def test_scores_that_are_none_are_refused():
    with pytest.raises(WorkloadError, match=r"`accuracy` of boosting must be a number from 0 to 1. Received: 60.1"):
        scores(0.5, baselines={"boosting": 60.1})
    with pytest.raises(WorkloadError, match=r"`R2` of the model must be a finite number. Received: nan"):
        BaselineScores(metric="R2", score=math.nan)


def test_what_came_after_the_weights_that_were_saved_is_left_out():
    values = 0.12 + FALLING + np.where(EPOCHS > 12, 0.1 * (EPOCHS - 12), 0)
    history = {"loss": list(0.1 + FALLING), "val_loss": list(values)}
    assert verdict(history).kind == "over-fitting"
    assert verdict(history, final_loss=float(values[-1])).kind == "over-fitting"
    assert verdict(history, final_loss=float(values.min()) + 1e-7).kind == "sound"


def test_trivial_scores_of_targets():
    def found(targets, **final):
        return trivial_scores([(None, target) for target in targets], final)

    numbers, one_hot = [np.array([0, 2, 2]), np.array([1])], [np.eye(3)[[0, 2, 2]], np.eye(3)[[1]]]
    for targets in (numbers, one_hot, [batch[:, None] for batch in numbers]):
        assert found(targets, loss=1.0, accuracy=0.75).trivial == {"most frequent class": 0.5}
        assert found(targets, loss=1.0, accuracy=0.75).num_examples == 4
    assert found(numbers, mae=0.5).trivial == {"median": 0.75}
    assert found(numbers, mean_squared_error=0.5).trivial == {"mean": 0.6875}
    assert found(numbers, loss=1.0) is None
    assert found([{"a": np.zeros(2)}], accuracy=0.5) is None
    assert found([np.full((2, 3), 0.4)], accuracy=0.5) is None  # no classes
    assert found([np.zeros((2, 3, 4))], accuracy=0.5) is None
    assert trivial_scores([np.zeros(3)], {"accuracy": 0.5}) is None  # no targets


def test_real_histories():
    """Gradient boosting of scikit-learn, with the losses after each round."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.metrics import mean_squared_error

    generator = np.random.default_rng(0)
    x = load_digits().data[:400]
    noise = generator.normal(size=400)
    signal = x[:, 10] / 16 + x[:, 30] / 16

    def history(target, learning_rate, num_rounds):
        model = GradientBoostingRegressor(
            learning_rate=learning_rate, n_estimators=num_rounds, max_depth=3, random_state=0
        )
        model.fit(x[:300], target[:300])
        parts = {"loss": slice(0, 300), "val_loss": slice(300, 400)}
        return {
            name: [float(mean_squared_error(target[rows], values)) for values in model.staged_predict(x[rows])]
            for name, rows in parts.items()
        }

    assert verdict(history(noise, 0.3, 40)).kind == "over-fitting"
    assert verdict(history(signal, 0.005, 40)).kind == "under-fitting"
    assert verdict(history(signal + 0.02 * noise, 0.2, 60)).kind == "sound"
    assert verdict(history(signal, 2.5, 10)).kind == "unstable"


def test_examples():
    assert doctest.testmod(verdict_module).failed == 0


def test_a_sound_fit_is_never_below_a_baseline():
    random = np.random.default_rng(0)
    kinds = set()
    for _ in range(2000):
        score, other, trivial = random.uniform(0.3, 1.0, 3).round(2)
        examples, fraction = int(random.integers(5, 5000)), bool(random.integers(2))
        given = scores(
            score, baselines={"b": other}, trivial={"t": trivial}, num_examples=examples, is_fraction=fraction
        )
        kind = verdict(SOUND, baselines=given).kind
        kinds.add(kind)
        assert kind != "sound" or score >= max(other, trivial)
    assert kinds >= {"sound", "no better than a baseline", "worse than a baseline"}
