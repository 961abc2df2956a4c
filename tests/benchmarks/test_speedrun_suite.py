"""The speedrun: what its rows learn, how it goes on where it stopped, its figures."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tfaccel.benchmarks import speedrun_suite
from tfaccel.benchmarks.speedrun_picture import main, picture
from tfaccel.benchmarks.speedrun_program import Images, accuracy
from tfaccel.benchmarks.speedrun_rows import FASTEST, ROWS, STOCK, TORCH
from tfaccel.benchmarks.speedrun_suite import TARGET, run_speedrun_suite, speedrun_figures
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.scripts import benchmark

ROOT = Path(__file__).parents[2]
OPTIONS = SuiteOptions(repetitions=2, progress=lambda text: None)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Images of two classes, dark and bright, in an .npz file."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 400)
    x = (random.integers(0, 128, (400, 28, 28)) + 100 * y[:, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    return path


CHILD = """
import json
from tfaccel.benchmarks.speedrun_program import load_images, run
from tfaccel.benchmarks.speedrun_rows import ROWS

found = {}
for name in ("stock", "viewed"):
    task = {**ROWS[name].task(93, 0), "epochs": 6}
    task["recipe"].update(batch_size=32, is_whitened=name == "viewed", precision="float32")
    found[name] = run(task, data=DATA, is_held_out=True, max_images=None)["accuracy"]
images = load_images(DATA, is_held_out=True)
found["sizes"] = [len(images.x), len(images.test_x), images.num_classes]
print(json.dumps(found))
"""


def test_rows_learn(run_python, arrays):
    found = json.loads(run_python(CHILD.replace("DATA", repr(str(arrays)))).stdout.splitlines()[-1])
    assert found["sizes"] == [240, 60, 2]
    assert found["stock"] > 0.9 and found["viewed"] > 0.9


def test_pytorch_is_measured_without_tensorflow(run_python):
    """Whose threads and memory are its own; and PyTorch's Triton crashes where TensorFlow is loaded."""
    code = "import sys, tfaccel.benchmarks.speedrun_program; print(*{'tensorflow', 'keras'} & {*sys.modules})"
    assert run_python(code, fresh=True).stdout.strip() == ""


NETWORK = """
import keras
import numpy as np
from tfaccel.benchmarks.speedrun_network import Triangle, build_network
from tfaccel.benchmarks.speedrun_program import whitening_kernel

random = np.random.default_rng(0)
images = np.cumsum(random.normal(size=(500, 12, 12, 1)), axis=1).astype(np.float32)
kernel = whitening_kernel(images)
seen = keras.ops.convert_to_numpy(keras.ops.conv(images, kernel, 1, "valid")).reshape(-1, kernel.shape[-1])
half = kernel.shape[-1] // 2
assert np.allclose(seen[:, :half], -seen[:, half:], atol=1e-4)
covariance = np.cov(seen[:, :half], rowvar=False)
assert np.all(np.abs(covariance - np.diag(np.diag(covariance))) < 0.2)
assert covariance[0, 0] > 0.8 and np.all(np.diag(covariance) < 1.2)

recipe = {"network": "plain", "is_flipped": False, "erased": 0.0}
plain = build_network((28, 28, 1), 10, recipe, None)
pooled = build_network((28, 28, 1), 10, {**recipe, "network": "pooled"}, kernel[:, :, :1])
convolutions = lambda model: [layer.output.shape[1:] for layer in model.layers if "conv" in layer.name]
assert convolutions(plain) == [(28, 28, 32)] * 2 + [(14, 14, 64)] * 2 + [(7, 7, 128)] * 2
assert convolutions(pooled) == [(14, 14, 32), (14, 14, 64), (7, 7, 64), (7, 7, 128), (3, 3, 128)]
assert len(pooled.trainable_weights) == len(pooled.weights) - 1 - 2 * 5

rates = [float(Triangle(0.5, 10, 0.2)(step)) for step in range(10)]
assert np.argmax(rates) in (1, 2) and max(rates) <= 0.5 and 0 < rates[-1] < 0.1
"""


def test_whitened_images_the_networks_and_the_rate(run_python):
    run_python(NETWORK)


@pytest.fixture
def trained(monkeypatch):
    """What would have been trained, in order; each training takes a second more than the one before."""
    calls = []

    def in_new_process(function, arguments, *, limit_seconds):
        task = arguments["task"]
        calls.append((task["program"], task["epochs"], task["seed"]))
        return {"seconds": float(len(calls)), "accuracy": 0.95}

    monkeypatch.setattr(speedrun_suite, "in_new_process", in_new_process)
    return calls


def test_rows_take_turns_and_go_on_where_they_stopped(trained, arrays):
    saved = []
    machine = {"data": str(arrays)}
    report = run_speedrun_suite(
        [STOCK, "fused"],
        OPTIONS,
        machine=machine,
        done={},
        save=lambda report: saved.append(json.loads(json.dumps(report.raw))),
    )
    (first,) = ROWS[STOCK].epochs.values()
    others = list(ROWS["fused"].epochs.values())
    of_seeds = [[("keras", first, seed), *(("tfaccel", one, seed) for one in others)] for seed in (0, 1)]
    assert trained == [*of_seeds[0], *of_seeds[1]]
    assert len(saved) == len(trained)
    trained.clear()
    again = run_speedrun_suite(
        [STOCK, "fused"], OPTIONS, machine=machine, done=saved[len(of_seeds[0]) - 1], save=lambda report: None
    )
    assert trained == of_seeds[1]
    assert [figure.name for figure in again.figures] == [figure.name for figure in report.figures]


def test_missing_data_are_an_error(tmp_path):
    with pytest.raises(TfaccelError, match=r"--data: .*/nothing does not exist\. Name a folder with the idx files of"):
        run_speedrun_suite([STOCK], OPTIONS, machine={"data": str(tmp_path / "nothing")}, done={}, save=pytest.fail)


def test_missing_pytorch_is_left_out_with_a_note(monkeypatch, arrays):
    monkeypatch.setattr(speedrun_suite, "how_to_install", lambda package: f"{package} is not there")
    report = run_speedrun_suite([*TORCH], OPTIONS, machine={"data": str(arrays)}, done={}, save=pytest.fail)
    assert report.warnings == [f"{name}: not measured; torch is not there" for name in TORCH]


def test_figures_compare_with_stock_keras_and_the_faster_pytorch():
    def runs(*seconds, accuracy=0.941):
        return [{"seconds": one, "accuracy": accuracy} for one in seconds]

    target = str(TARGET)
    raw = {
        STOCK: {"93": runs(90.0, 110.0, accuracy=0.92)},
        FASTEST: {target: runs(18.0, 22.0), "93": runs(9.0, accuracy=0.92)},
        TORCH[0]: {target: runs(50.0)},
        TORCH[1]: {target: runs(40.0)},
    }
    figures = {(figure.name, figure.quantity): figure for figure in speedrun_figures(raw)}
    assert figures[STOCK, "accuracy in percent, to reach 93"].at_least is None
    assert figures[FASTEST, "accuracy in percent, to reach 93"].met is False
    assert figures[FASTEST, "accuracy in percent, to reach 94"].met
    assert figures[FASTEST, "seconds to 94 % (mean of 2)"].values == (20.0,)
    assert figures[FASTEST, "seconds to 94 % / those of stock Keras to 93 % or its best"].values == (0.2,)
    assert figures[FASTEST, "seconds to 94 % / those of PyTorch"].values == (0.5,)


def test_a_test_image_is_classified_by_all_its_views():
    image = np.zeros((1, 5, 5, 1), np.float32)
    image[0, 2, 1] = 1
    images = Images(x=image, y=np.array([1]), test_x=image, test_y=np.array([1]), num_classes=2)
    seen = []

    def predict(x):
        seen.append(tuple(map(int, np.argwhere(x[0, :, :, 0])[0])))
        return np.float32([[0.1, 0.0]] if seen[-1] == (2, 1) else [[0.0, 0.2]])

    assert [accuracy(images, {"views": views}, predict) for views in (1, 2, 10)] == [0.0, 1.0, 1.0]
    around = [(row + 2, column + 2) for row, column in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))]
    mirrored = {(row, column + side) for row, column in around for side in (-1, 1)}
    assert len(seen[3:]) == 10 and {*seen[3:]} == mirrored


def test_the_picture_has_a_bar_for_each_row():
    raw = {
        STOCK: {"93": [{"seconds": 90.0, "accuracy": 0.931}, {"seconds": 110.0, "accuracy": 0.933}]},
        FASTEST: {"93": [{"seconds": 10.0, "accuracy": 0.93}], "94": [{"seconds": 20.0, "accuracy": 0.94}]},
    }
    drawn = ElementTree.fromstring(picture(raw, title="<A & B>"))
    texts = ["".join(one.itertext()) for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "<A & B>" and {"100 s · 93.2 %", "20 s · 94.0 %"} <= {*texts}
    bars = [float(one.get("width")) for one in drawn.iter("{http://www.w3.org/2000/svg}rect")][-2:]
    assert bars[1] == pytest.approx(bars[0] / 5, abs=0.1)


def test_a_row_says_what_it_changes():
    assert {FASTEST, STOCK, *TORCH} <= {*ROWS}
    assert all(row.change and row.epochs for row in ROWS.values())
    assert {ROWS[name].recipe.batch_size for name in TORCH} == {ROWS[FASTEST].recipe.batch_size}
    assert all(ROWS[name].recipe == ROWS[FASTEST].recipe for name in TORCH)
    assert all(ROWS[name].epochs[TARGET] == ROWS[FASTEST].epochs[TARGET] for name in TORCH)


def test_picture_of_the_readme_shows_the_kept_report(tmp_path):
    assert main([str(ROOT / "benchmarks/speedrun.json"), str(tmp_path / "drawn.svg")]) == 0
    assert (ROOT / "docs/pictures/speedrun.svg").read_text() == (tmp_path / "drawn.svg").read_text()


def test_further_seeds_continue_a_report_but_not_trainings_of_other_epochs(trained, arrays, tmp_path, capsys):
    out = tmp_path / "speedrun.json"

    def seeds_of(repetitions):
        trained.clear()
        options = [f"--{repetitions=}", "--figures=fused", f"--data={arrays}", f"--out={out}"]
        benchmark.run(["benchmark", "speedrun", *options])
        capsys.readouterr()
        report = json.loads(out.read_text())
        assert report["machine"]["versions"]["keras"]
        assert len(report["raw"]["fused"]["93"]) == repetitions
        return [seed for *_, seed in trained], report

    assert seeds_of(1)[0] == [0]
    seeds, report = seeds_of(3)
    assert seeds == [1, 2]
    for run in report["raw"]["fused"]["93"]:
        run["epochs"] += 1
    report["raw"]["fused"]["91"] = report["raw"]["fused"]["93"]
    report["raw"]["scheduled"] = {"93": report["raw"]["fused"]["93"]}
    out.write_text(json.dumps(report))
    seeds, report = seeds_of(2)
    assert seeds == [0, 1] and list(report["raw"]) == ["fused"] and list(report["raw"]["fused"]) == ["93"]
