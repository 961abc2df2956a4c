"""The verdict on fit: each kind from made-up histories and from real ones, with its evidence."""

import doctest
import json
import math

import numpy as np
import pytest

from tfaccel.training import fit_verdict
from tfaccel.training.fit_verdict import FitVerdict, verdict

EPOCHS = np.arange(20)
FALLING = np.exp(-EPOCHS / 3)
CASES = {
    "over-fitting": [
        (FALLING, 0.4 + 0.6 * FALLING + 0.02 * EPOCHS),  # falls, then rises
        (FALLING, 0.4 + 0.6 * FALLING),  # stays far above
        (1000 * FALLING, 1000 * (0.4 + 0.6 * FALLING + 0.02 * EPOCHS)),  # whatever the scale
    ],
    "under-fitting": [
        (1 - 0.03 * EPOCHS, 1.02 - 0.03 * EPOCHS),
        (1 - 0.03 * EPOCHS, None),
        (np.full(20, 0.693), np.full(20, 0.694)),
        (0.7 - 0.001 * EPOCHS, 0.7 - 0.001 * EPOCHS),
    ],
    "unstable": [
        ([1.0, 0.5, math.nan], [1.0, 0.6, 0.5]),
        ([1.0, 0.5, None], None),
        ([1.0, 0.5, 0.3], [1.0, 0.6, math.inf]),
        (np.where(EPOCHS % 2, 0.9, 0.2) + FALLING, 0.5 + FALLING),
        ([1.0, 1.5, 2.5, 4.0], [1.0, 2.0, 3.0, 4.0]),
    ],
    "sound": [
        (0.1 + FALLING, 0.12 + FALLING),
        (0.3 + FALLING, 0.2 + FALLING),  # dropout and augmentation leave the training loss above
        (0.1 + FALLING, 0.12 + FALLING + 0.01 * (-1.0) ** EPOCHS),  # a little noise
        (FALLING - 5, FALLING - 4.9),  # losses below 0, such as a likelihood's
    ],
    "unknown": [([1.0, 0.5], [1.0, 0.6]), ([], None), (0.1 + FALLING, None)],
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
    assert "brought 21 % of all that was learnt" in verdict({"loss": list(1 - 0.03 * EPOCHS)}).evidence[0]


def test_text_and_json():
    history = {"loss": list(FALLING), "val_loss": list(0.4 + 0.6 * FALLING)}
    text = verdict(history).text()
    assert text.startswith("There is over-fitting: the training loss (0.001776) is far below the validation loss (0.40")
    assert text.endswith("Try: stop early (--early_stopping); more dropout, weight decay or augmentation; "
                         "more data, or a smaller model.")  # fmt: skip
    data = json.loads(json.dumps(verdict(history).to_json()))
    assert FitVerdict(data["kind"], tuple(data["evidence"]), tuple(data["advice"])) == verdict(history)


def test_real_histories():
    """Boosting and networks of scikit-learn, whose losses after each round are known."""
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
    assert doctest.testmod(fit_verdict).failed == 0
