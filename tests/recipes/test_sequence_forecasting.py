"""The recipe for series: what it plans for, what it builds, and that it learns and leaves what it says."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError, WorkloadError
from tfaccel.recipes import sequence_forecasting as recipe


def test_workload_is_made_without_tensorflow(run_python):
    run_python(
        """
import sys
from tfaccel.recipes import sequence_forecasting
sequence_forecasting.workload(model="gru", optimizer="lamb", remat=True)
sys.exit(", ".join({"tensorflow", "keras", "sklearn"} & set(sys.modules)) or 0)
""",
        fresh=True,
    )


@pytest.mark.parametrize("model", ["gru", "convolution"])
def test_models_give_quantiles_that_do_not_cross(logical_devices, model, tmp_path):
    import keras

    series = recipe.workload().data.source
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        forecaster = recipe.build_model(series, model, window=40, horizon=12, width=48, dropout=0.2, remat=True)
    finally:
        keras.config.set_dtype_policy(policy)
    past = np.random.default_rng(0).normal(size=(5, 40, 2)).astype("float32")
    quantiles = np.asarray(forecaster(past))
    assert (quantiles.shape, quantiles.dtype) == ((5, 12, 2, 3), np.float32)
    assert (np.diff(quantiles, axis=-1) > 0).all()
    # Before training, the middle of the forecast is the last value, in its own unit.
    assert quantiles[..., 1] == pytest.approx(np.repeat(past[:, -1:], 12, axis=1), abs=1e-4)
    forecaster.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert np.array_equal(np.asarray(loaded(past)), quantiles)


def test_convolutions_look_back_over_the_whole_window_and_not_ahead(logical_devices):
    series = recipe.workload().data.source
    sizes = {"horizon": 2, "width": 8, "dropout": 0.0, "remat": False}
    for window in (3, 20, 64):
        model = recipe.build_model(series, "convolution", window=window, **sizes)
        dilations = [int(layer.name.split("_")[1]) for layer in model.layers if layer.name.startswith("dilation")]
        reach = 1 + sum(4 * dilation for dilation in dilations)
        assert reach >= window
        assert reach - 4 * dilations[-1] < window


def test_single_targets_take_their_own_columns(logical_devices, tmp_path):
    rows = [f"{row},{row % 7},{100 + row % 5}" for row in range(200)]
    (tmp_path / "s.csv").write_text("\n".join(["t,a,b", *rows]))
    work = recipe.workload(data_dir=tmp_path / "s.csv", time_column="t", target="b", window=10, horizon=5)
    assert (work.num_train_examples, work.data.source.target_names) == (130, ("b",))
    model = work.build_model()
    past, future = next(iter(work.validation_data(4)))
    assert np.asarray(model(past))[:, 0, 0, 1] == pytest.approx(np.asarray(past)[:, -1, 1], abs=1e-3)
    assert np.asarray(future).min() >= 100


def test_forecasts_do_not_depend_on_the_number_of_windows(logical_devices, tmp_path):
    (tmp_path / "s.csv").write_text("\n".join(["t,a", *(f"{row},{row % 7}" for row in range(100))]))
    work = recipe.workload(data_dir=tmp_path / "s.csv", time_column="t", window=10, horizon=4)
    model = work.build_model()
    past, _ = next(iter(work.train_data(8, seed=0, epoch=0)))
    whole = np.asarray(model(past))
    for num_windows in range(1, 8):  # As many as the horizon, too.
        assert np.asarray(model(past[:num_windows])) == pytest.approx(whole[:num_windows], abs=1e-6)


def test_jitter_changes_the_past_in_deviations_of_its_column(logical_devices, tmp_path):
    (tmp_path / "s.csv").write_text("\n".join(["t,a", *(f"{row},{1000 + 100 * (row % 7)}" for row in range(100))]))
    options = {"data_dir": tmp_path / "s.csv", "time_column": "t", "window": 10, "horizon": 4}
    plain, jittered = (
        next(iter(recipe.workload(**options, augmentation=name).train_data(8, seed=0, epoch=0)))
        for name in ("none", "jitter")
    )
    changes = np.abs(np.asarray(jittered[0]) - np.asarray(plain[0]))  # The deviation of the column is 200.
    assert 1 < changes.mean() < 60
    assert (np.asarray(jittered[1]) == np.asarray(plain[1])).all()
    with pytest.raises(WorkloadError, match="`augmentation` must be one of none, jitter"):
        recipe.workload(**options, augmentation="noise")


def test_quantile_loss(logical_devices):
    from tfaccel.models.losses import QuantileLoss, median_absolute_error

    generator = np.random.default_rng(0)
    true = generator.normal(5, 2, (4000, 1, 1, 1)).astype("float32")
    loss = QuantileLoss([2.0])
    best = np.quantile(true, [0.1, 0.5, 0.9]).astype("float32")
    lowest = float(loss(true, np.broadcast_to(best, (4000, 1, 1, 3))))
    for change in ([0.3, 0, 0], [-0.3, 0, 0], [0, 0.3, 0], [0, 0, 0.3], [0, 0, -0.3]):
        moved = np.broadcast_to(best + np.array(change, "float32"), (4000, 1, 1, 3))
        assert float(loss(true, moved)) > lowest
    assert np.asarray(loss.call(true, true + 1.0)).shape == (4000,)
    assert float(np.mean(median_absolute_error(true, np.stack([true[..., 0]] * 3, -1) + 0.5))) == pytest.approx(0.5)
    assert QuantileLoss.from_config(loss.get_config()).get_config() == loss.get_config()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": "adamm"}, WorkloadError, "Keras has no optimizer 'adamm'. Did you mean 'adam"),
        ({"model": "lstm"}, WorkloadError, "`model` must be one of gru, convolution. Received: model='lstm'."),
        ({"window": 0}, WorkloadError, "`window` must be a whole number of at least 1. Received: window=0."),
        ({"horizon": 900}, DataError, "a window of 64 and a horizon of 900 need 965 and 900. Make them shorter."),
        ({"dropout": 1.0}, WorkloadError, "`dropout` must be a number from 0 to below 1."),
        ({"data_dir": "nowhere.csv", "time_column": "t"}, DataError, "There is no file nowhere.csv."),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recipe.workload(**options)


RUN = """
import sys
from tfaccel import Plan
from tfaccel.recipes import sequence_forecasting

plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=64, steps_per_execution=24)
for model in ("convolution", "gru"):
    sequence_forecasting.run(run_dir=f"{sys.argv[1]}/{model}", plan=plan, epochs=1, verbose=0, model=model, window=32)
"""


@pytest.mark.slow
def test_run_learns_and_leaves_forecasts(run_python, tmp_path):
    run_python(RUN, tmp_path)
    for model in ("convolution", "gru"):
        scores = json.loads((tmp_path / model / "comparison.json").read_text())
        result = json.loads((tmp_path / model / "result.json").read_text())
        network, neighbours, ridge, naive, last = scores.values()
        assert max(neighbours["mean absolute error"], ridge["mean absolute error"]) < naive["mean absolute error"]
        assert network["mean absolute error"] < 0.8 * last["mean absolute error"]
        assert naive["mean absolute error"] > 0
        assert 0.4 < network["in 80 % interval"] < 1
        assert network["mean absolute error"] == pytest.approx(result["final"]["median_absolute_error"], rel=1e-3)
        with Image.open(tmp_path / model / "predictions.png") as picture:
            assert picture.size == (1040, 640)
        about = json.loads((tmp_path / model / "series.json").read_text())
        assert np.shape(about["interval_factors"]) == (2, 2)
        assert (about["target_names"], about["window"]) == (["upper angle", "lower angle"], 32)


@pytest.mark.slow
def test_forecasts_beat_the_seasonal_naive(run_python, tmp_path):
    code = RUN.replace("epochs=1, ", "").replace(", window=32", "")
    run_python(code, tmp_path, timeout_seconds=580)
    for model in ("convolution", "gru"):
        network, *_, naive, _ = json.loads((tmp_path / model / "comparison.json").read_text()).values()
        assert network["mean absolute error"] < 0.5 * naive["mean absolute error"]
        assert 0.6 < network["in 80 % interval"] < 0.95
