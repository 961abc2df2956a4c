"""The recipe for autoencoders: what it builds, what it refuses, that its bound is one, and what it leaves."""

import csv
import json
import re

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.images.generative_data import unlabelled_images, unlabelled_rows
from tfaccel.data.images.image_set import digits
from tfaccel.data.tables.table_data import NumberRows
from tfaccel.errors import DataError, WorkloadError
from tfaccel.recipes import autoencoder as recipe


def test_workload_is_made_without_tensorflow(run_python):
    run_python(
        """
import sys
from tfaccel.recipes import autoencoder
autoencoder.workload(optimizer="lamb", remat=True)
sys.exit(", ".join({"tensorflow", "keras", "sklearn"} & set(sys.modules)) or 0)
""",
        fresh=True,
    )


@pytest.mark.parametrize("image_size", [8, 13, 64])
def test_images_of_every_size_come_back(logical_devices, image_size):
    model = build(unlabelled_images(digits(image_size)), latent_size=3, dropout=0.1, remat=True)
    assert model.output["reconstruction"].shape == (None, image_size, image_size, 1)


def build(examples, *, latent_size, dropout=0.0, remat=False):
    return recipe.build_model(examples, latent_size=latent_size, width=32, dropout=dropout, remat=remat)


def get_rows(num_rows, num_columns):
    values = np.random.default_rng(0).standard_normal((num_rows, num_columns)).astype(np.float32)
    return NumberRows(tuple(map(str, range(num_columns))), values, np.arange(4, num_rows), np.arange(4))


def test_loss_is_the_negative_bound(logical_devices, tmp_path):
    from tfaccel.models.losses import bounds

    values = get_rows(20, 3).values
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c", *(",".join(map(str, row)) for row in values)]))
    work = recipe.workload(data_dir=tmp_path / "rows.csv", latent_size=2)
    model = work.build_model()
    noise = np.random.default_rng(0).standard_normal((20, 2), np.float32)
    model.compile(**work.compile_args(num_steps=5))
    x, y = {"values": values, "noise": noise}, {"reconstruction": values, "divergence": 0 * noise[:, :1]}
    losses = model.evaluate(x, y, verbose=0, return_dict=True)
    assert losses["loss"] == pytest.approx(-bounds(model, values, is_image=False, num_samples=1).mean(), rel=1e-4)
    assert losses["loss"] == pytest.approx(losses["divergence_loss"] + losses["reconstruction_loss"], rel=1e-4)


def test_divergence_of_the_prior_from_itself_is_zero(logical_devices):
    rows = get_rows(20, 3)
    model = build(unlabelled_rows(rows), latent_size=2)
    for name in ("mean", "log_variance"):
        model.get_layer(name).set_weights([0 * weight for weight in model.get_layer(name).get_weights()])
    made = model.predict({"values": rows.values, "noise": np.zeros((20, 2))}, verbose=0)
    assert np.abs(made["divergence"]).max() == 0
    model.get_layer("mean").bias.assign([3.0, 0.0])
    made = model.predict({"values": rows.values, "noise": np.zeros((20, 2))}, verbose=0)
    assert made["divergence"] == pytest.approx(4.5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"latent_size": 0}, WorkloadError, "`latent_size` must be a whole number of at least 1."),
        ({"dropout": 1}, WorkloadError, "`dropout` must be a number from 0 to below 1."),
        ({"data_dir": "nowhere"}, DataError, "There is no folder or file nowhere (`data_dir`)."),
        ({"data_dir": "nowhere.csv"}, DataError, "There is no file nowhere.csv."),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recipe.workload(**options)


RUNS = """
import json, sys
from tfaccel import Plan
from tfaccel.recipes import autoencoder

one = {"strategy": "none", "devices": ("CPU:0",), "num_logical_cpus": 2}
two = {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2}
for name, plan, options in (
    ("images", two, {"epochs": 1}),
    ("rows", one, {"epochs": 40, "data_dir": sys.argv[2], "latent_size": 1, "global_batch_size": 32}),
):
    size = options.setdefault("global_batch_size", 64)
    plan = Plan(**plan, global_batch_size=size, steps_per_execution=20)
    result = autoencoder.run(run_dir=f"{sys.argv[1]}/{name}", plan=plan, verbose=0, **options)
"""


@pytest.mark.slow
def test_runs_leave_bounds_a_map_and_what_is_strange(run_python, tmp_path):
    x = np.random.default_rng(0).standard_normal(200)
    x[7] = 30.0  # far from all others
    lines = ["x,twice,half,name", *(f"{v},{2 * v + 0.01 * (i % 7)},{v / 2},n{i % 5}" for i, v in enumerate(x))]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    run_python(RUNS, tmp_path, tmp_path / "table.csv")

    bound = json.loads((tmp_path / "rows" / "elbo.json").read_text())
    assert bound["elbo"] > bound["independent"]
    ranked = list(csv.DictReader((tmp_path / "rows" / "anomalies.csv").read_text().splitlines()))
    assert len(ranked) == 200
    assert ranked[0]["example"] == "row 8"
    scores = [float(row["score"]) for row in ranked]
    assert scores == sorted(scores)

    assert sorted(json.loads((tmp_path / "images" / "elbo.json").read_text())) == sorted(bound)
    assert len((tmp_path / "images" / "anomalies.csv").read_text().splitlines()) == 1 + 1797
    for name, size in (("anomalies.png", (1008, 4 * 113 + 8)), ("latent_map.png", (1000, 880))):
        with Image.open(tmp_path / "images" / name) as picture:
            assert picture.size == size
    assert not (tmp_path / "rows" / "anomalies.png").exists()


@pytest.mark.slow
def test_digits_reach_the_expected_bound(run_python, tmp_path):
    code = "import sys; from tfaccel.recipes import autoencoder as a; a.run(run_dir=sys.argv[1], verbose=0)"
    run_python(code, tmp_path / "run", timeout_seconds=500)
    bound = json.loads((tmp_path / "run" / "elbo.json").read_text())
    assert bound["elbo"] > bound["independent"] + 2.5
