"""Learning rates scaled with the batch size: the rate of each step, what is recorded and said, and exact resuming."""

import json
from pathlib import Path

import pytest

from tfaccel import Plan, Workload, train
from tfaccel.errors import WorkloadError
from tfaccel.planning.run_length import LearningRateScaling, scaling_advice

HERE = Path(__file__).parent

RATES = """
import json, logging, sys
from pathlib import Path
import keras
from tfaccel import train
from train_workload import plan, workload

class Rates(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        optimizers = getattr(optimizer, "optimizers", [optimizer])
        seen.append([round(float(one.learning_rate), 6) for one in optimizers])

logger, lines = logging.getLogger("tfaccel"), []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logger.addHandler(handler)
logger.setLevel("INFO")
falling = lambda: keras.optimizers.schedules.PolynomialDecay(0.1, 10, 0.0)
parts = lambda: keras.optimizers.MultiOptimizer(
    keras.optimizers.OptimizerMap(keras.optimizers.SGD(falling()), {".*bias": keras.optimizers.SGD(0.5)}))
root = Path(sys.argv[1])

def run(name, optimizer, *, plan=plan("none", global_batch_size=32), epochs=5, callbacks=(), **options):
    small = workload()
    made = type(small)("small", small.build_model, lambda: {"optimizer": optimizer(), "loss": "mse"}, small.train_data,
                       global_batch_size=8)
    global seen
    seen, lines[:] = [], []
    try:
        result = train(made, plan, run_dir=root / name, epochs=epochs, verbose=0, callbacks=[*callbacks, Rates()],
                       **options)
    except ValueError as error:
        return [str(error)]
    return [seen, result.learning_rate_scaling, lines[:], json.loads((root / name / "config.json").read_text())]

linear = {"learning_rate_scaling": "linear", "scaling_warm_up": 0.4}  # 44 rows: 2 steps in an epoch, 4 of warm-up
cases = {
    "number": lambda: run("number", lambda: keras.optimizers.SGD(0.1), **linear),
    "replicas": lambda: run("replicas", lambda: keras.optimizers.SGD(0.1),
                            plan=plan("mirrored_2", global_batch_size=32), **linear),
    "schedule": lambda: run("schedule", lambda: keras.optimizers.Adam(falling()), **linear),
    "half_precision": lambda: run("half", lambda: keras.optimizers.SGD(0.1), plan=plan("none", global_batch_size=32,
                                  dtype_policy="mixed_float16", accumulation_steps=2), **linear),
    "parts": lambda: run("parts", parts, **linear),
    "root": lambda: run("root", lambda: keras.optimizers.Adam(0.1), learning_rate_scaling="square_root",
                        scaling_warm_up=0,
                        callbacks=[keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=100)]),
    "smaller": lambda: run("smaller", lambda: keras.optimizers.SGD(0.1), plan=plan("none", global_batch_size=4),
                           epochs=1, learning_rate_scaling="linear"),
    "same": lambda: run("same", lambda: keras.optimizers.SGD(0.1), plan=plan("none"), epochs=1, **linear),
    "unasked": lambda: run("unasked", lambda: keras.optimizers.SGD(0.1), epochs=1),
    "plateau": lambda: run("plateau", lambda: keras.optimizers.SGD(0.1),
                           callbacks=[keras.callbacks.ReduceLROnPlateau()], **linear),
    "function": lambda: run("function", lambda: keras.optimizers.SGD(lambda: 0.1), **linear),
}
found = {name: cases[name]() for name in sys.argv[2:]}
with open(root / "found.json", "w") as file:
    json.dump(found, file)
model = keras.models.load_model(root / sys.argv[2] / "model.keras")
print(json.dumps(model.optimizer.get_config()["learning_rate"]["config"]["factor"]))
"""


def outcomes(run_python, folder, *names):
    child = run_python(RATES, folder, *names, cwd=HERE)
    assert float(child.stdout.splitlines()[-1]) == 4.0  # the saved model has the scaled schedule
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def found(run_python, tmp_path_factory):
    return outcomes(run_python, tmp_path_factory.mktemp("scaled"), "number", "unasked", "plateau")


@pytest.fixture(scope="module")
def more(run_python, tmp_path_factory):
    names = ("replicas", "schedule", "half_precision", "parts", "root", "smaller", "same", "function")
    return outcomes(run_python, tmp_path_factory.mktemp("more"), *names)


def test_a_number_rises_to_the_scaled_rate(found):
    seen, scaled, lines, config = found["number"]
    assert [one[0] for one in seen] == pytest.approx([0.175, 0.25, 0.325, *[0.4] * 7])  # read after steps 1 to 10
    assert scaled["factor"] == 4.0
    assert (scaled["learning_rate"], scaled["scaled_learning_rate"]) == pytest.approx((0.1, 0.4))
    assert lines[0] == (
        "The peak learning rate is scaled from 0.1 to 0.4, after 4 steps of warm-up (linear scaling: global batch size "
        "32 instead of the recommended 8)."
    )
    named = ("learning_rate_scaling", "scaling_warm_up", "recommended_batch_size", "global_batch_size")
    assert [config[name] for name in named] == ["linear", 0.4, 8, 32]


@pytest.mark.slow
def test_a_schedule_is_multiplied(more):
    expected = [(1 + 3 * min(step / 4, 1)) * 0.1 * (1 - step / 10) for step in range(1, 11)]
    assert [one[0] for one in more["schedule"][0]] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_rates_follow_optimizer_steps_if_gradients_are_accumulated(more):
    rates = [one[0] for one in more["half_precision"][0]]
    assert max(rates) <= 0.4 + 1e-6
    assert rates == sorted(rates)
    assert set(rates[:-1]) == {0.1, 0.2, 0.3, 0.4}  # 7 steps of two batches, 3 of warm-up


@pytest.mark.slow
def test_each_part_of_a_multi_optimizer_is_scaled(more):
    of_bias, of_rest = zip(*more["parts"][0], strict=True)
    assert of_bias == pytest.approx([0.5 * (1 + 3 * min(step / 4, 1)) for step in range(1, 11)])
    assert of_rest[4] == pytest.approx(4 * 0.05)


@pytest.mark.slow
def test_without_a_warm_up_a_number_stays_one_that_callbacks_can_change(more):
    seen, scaled, _, _ = more["root"]
    assert seen[0][0] == pytest.approx(0.2)
    assert seen[-1][0] < 0.2
    assert scaled["warm_up_steps"] == 0


@pytest.mark.slow
def test_a_smaller_batch_has_the_smaller_rate_from_the_start(more):
    assert {one[0] for one in more["smaller"][0]} == {0.05}


def test_a_run_that_could_be_scaled_says_so(found):
    seen, scaled, lines, config = found["unasked"]
    assert {one[0] for one in seen} == {0.1}
    assert scaled is None
    assert "learning_rate_scaling" not in config
    assert lines[0] == scaling_advice(8, 32)
    assert "recommended global batch size of 8, and the batch size is 32: learning_rate_scaling='linear'" in lines[0]


@pytest.mark.slow
def test_the_recommended_batch_is_not_scaled_and_says_so(more):
    assert {one[0] for one in more["same"][0]} == {0.1}
    assert more["same"][2][0] == "The learning rate is not scaled: 8 is the recommended global batch size."


@pytest.mark.slow
def test_replicas_have_the_same_rates(more):
    assert [one[0] for one in more["replicas"][0]] == pytest.approx([0.175, 0.25, 0.325, *[0.4] * 7])


def test_a_rate_that_a_callback_sets_is_refused(found):
    assert (
        "ReduceLROnPlateau sets the learning rate, which learning_rate_scaling scales. Set scaling_warm_up=0"
        in (found["plateau"][0])
    )


@pytest.mark.slow
def test_a_rate_that_is_a_function_is_refused(more):
    assert "The learning rate of SGD cannot be scaled: it is a function" in more["function"][0]


RESUMED = """
import sys
from pathlib import Path
import keras
from tfaccel import train
from train_workload import plan, workload

class Stop(keras.callbacks.Callback):
    tfaccel_windows = True
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt

def run(folder, *callbacks, rule="linear", resume="auto"):
    result = train(workload(), plan("none", global_batch_size=16), run_dir=folder, epochs=4, resume=resume, verbose=0,
                   learning_rate_scaling=rule, scaling_warm_up=0.5, callbacks=callbacks, checkpoint_interval=1)
    weights = keras.models.load_model(Path(folder) / "model.keras", compile=False).get_weights()
    return [result.history, [weight.tobytes() for weight in weights]]

stopped = sys.argv[1] + "/stopped"
try:
    run(stopped, Stop(), resume="never")
except KeyboardInterrupt:
    print("stopped")
for rule in ("square_root", None):
    try:
        run(stopped, rule=rule)
    except ValueError as error:
        print(error)
print(run(stopped) == run(sys.argv[1] + "/whole"))
"""


@pytest.mark.slow
def test_a_resumed_run_has_the_same_rates_to_the_last_bit(run_python, tmp_path):
    lines = run_python(RESUMED, tmp_path, cwd=HERE).stdout.splitlines()
    assert lines[0] == "stopped"
    assert "learning_rate_scaling is 'linear' there and 'square_root' here" in lines[1]
    assert "learning_rate_scaling is 'linear' there and None here" in lines[2]
    assert lines[3] == "True"


def test_scaling_goes_through_json():
    scaling = LearningRateScaling(rule="linear", recommended_batch_size=64, global_batch_size=96, warm_up=0.1)
    assert LearningRateScaling.from_json(scaling.to_json()) == scaling
    assert scaling.factor == 1.5
    assert scaling.warm_up_steps(100) == 10


def test_invalid_scaling_is_refused(tmp_path):
    sizes = {"recommended_batch_size": 8, "global_batch_size": 32}
    with pytest.raises(WorkloadError, match=r"no rule 'liner' for learning_rate_scaling\. Did you mean 'linear'\?"):
        LearningRateScaling(rule="liner", **sizes)
    with pytest.raises(
        WorkloadError, match=r"`scaling_warm_up` must be a number from 0 to below 1\. Received: .*=1\.5"
    ):
        LearningRateScaling(rule="linear", warm_up=1.5, **sizes)
    with pytest.raises(WorkloadError, match=r"Give the dataset a length .* or set scaling_warm_up=0"):
        LearningRateScaling(rule="linear", **sizes).warm_up_steps(None)
    with pytest.raises(WorkloadError, match=r"not known for a model and its data\. Received: learning_rate_scaling='l"):
        train(object, [1.0], [1.0], run_dir=tmp_path / "run", learning_rate_scaling="linear")
    work = Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=32)
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=64)
    with pytest.raises(WorkloadError, match=r"no rule 'cubic' for learning_rate_scaling\. Rules: linear, square_root"):
        train(work, plan, epochs=1, run_dir=tmp_path / "run", learning_rate_scaling="cubic")
    with pytest.raises(WorkloadError, match="`scaling_warm_up` must be"):
        train(work, plan, epochs=1, run_dir=tmp_path / "run", scaling_warm_up=-1)
    assert not (tmp_path / "run").exists()
