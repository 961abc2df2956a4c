"""`train` with a user's model: the losses of `Model.fit` on the same batches, and exact resuming."""

import json
import re
from pathlib import Path

import pytest

# Ways to give data that run without --all.
QUICK = ("arrays", "a function that makes a workload", "data set, resumed", "PyDataset, resumed")
PROGRAM = Path(__file__).parent / "own_model_program.py"
REFUSED = {
    "other rows": ("RunDirError", "holds another run: options.train_data is"),
    "no seed": ("RunDirError", "cannot be resumed exactly. The dataset is shuffled without a seed"),
    "used before": ("DataError", "has been iterated over before in this process.*Create a new dataset for each run"),
    "never ends": ("DataError", r"The dataset is infinite. Pass one epoch, without `.repeat\(\)`"),
    "other batches": ("WorkloadError", "has batches of 16 rows. Received: batch_size=32"),
    "batches of the plan": ("DataError", "has batches of 16 rows, but 8 are asked for"),
    "batch size and plan": ("WorkloadError", "batch_size and the plan's global_batch_size differ"),
    "data set and y": ("DataError", "yields the targets and sample weights itself.*Leave out y"),
    "split of a data set": ("WorkloadError", "`validation_split` is for arrays. Give validation_data"),
    "workload and data": ("WorkloadError", "A Workload has its own data.*Received as well: x, y"),
    "no data": ("WorkloadError", r"must return a tfaccel.Workload, or \(model, x, y\).*Received: Sequential"),
    "no workload": ("WorkloadError", r"together with its data: train\(build_model, x, y, run_dir=...\)"),
    "no such recipe": (
        "WorkloadError",
        "There is no recipe 'image_clasification'. Did you mean 'image_class",
    ),
    "no such option": ("WorkloadError", r"make_workload.* cannot be called like this: .*Did you mean 'width'"),
    "plan": ("PlanError", r"`plan` must be a tfaccel.Plan, such as.*Received: 'mirrored'"),
    "not built": ("WorkloadError", r"The model \(Unbuilt\) is not built.*Give the function that builds it in place"),
    "not compiled": ("WorkloadError", "returns a model that is not compiled. Call `model.compile"),
    "policy": ("PlanError", "built with the dtype policy float32, which the plan cannot change"),
}


@pytest.fixture(scope="module")
def outcomes(run_python, pytestconfig, tmp_path_factory):
    names = () if pytestconfig.getoption("--all") else QUICK
    child = run_python(PROGRAM.read_text(), tmp_path_factory.mktemp("runs"), *names, timeout_seconds=900)
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_losses_are_those_of_keras_and_of_runs_without_a_stop(outcomes, pytestconfig):
    pairs = outcomes[0]
    assert len(pairs) == 11 if pytestconfig.getoption("--all") else sorted(pairs) == sorted(QUICK)
    for name, (ours, wanted) in pairs.items():
        if name.endswith("resumed"):
            assert ours == wanted, name
            continue
        assert sorted(ours) == sorted(wanted), name
        for metric, values in wanted.items():
            assert ours[metric] == pytest.approx(values, rel=1e-5), name


def test_what_cannot_be_trained_or_resumed_exactly_is_refused(outcomes):
    found = outcomes[1]
    assert sorted(found) == sorted(REFUSED)
    for name, (kind, message) in REFUSED.items():
        assert found[name][0] == kind, found[name]
        assert re.search(message, found[name][1]), found[name]


SCRIPT = """
import keras, numpy, tfaccel

x = numpy.ones((32, 4))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
result = tfaccel.train(model, x, x[:, :1], epochs=1, verbose=0, run_dir="run", resume="auto")
"""
RUN_AND_IMPORT = """
import os, pathlib, runpy, sys

os.chdir(sys.argv[1])
sys.path.insert(0, "")
pathlib.Path("digits.py").write_text(sys.argv[2])
first = runpy.run_path("digits.py", run_name="__main__")["result"]
import digits

assert first.recipe == digits.result.recipe == "digits", digits.result
"""


SENDS = """
import pickle, sys
import keras
from tfaccel.planning.own_model import Deferred, signed_by

@keras.saving.register_keras_serializable("mine")
class Falls(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak):
        self.peak = peak
    def __call__(self, step):
        return self.peak / (1 + keras.ops.cast(step, "float32"))
    def get_config(self):
        return {"peak": self.peak}

@keras.saving.register_keras_serializable("mine")
class Descent(keras.optimizers.SGD):
    pass

@keras.saving.register_keras_serializable("mine")
def distance(targets, outputs):
    return keras.ops.mean(keras.ops.abs(targets - outputs), -1)

@keras.saving.register_keras_serializable("mine")
class Twice(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs

model = keras.Sequential([keras.Input((1,)), Twice()])
with signed_by(repr), open(sys.argv[1], "wb") as file:
    pickle.dump(Deferred({"optimizer": Descent(Falls(0.5)), "loss": distance, "model": model}), file)
"""
RECEIVES = """
import pickle, sys
import keras

with open(sys.argv[1], "rb") as file:
    found = pickle.load(file).get()
again = keras.optimizers.deserialize(keras.optimizers.serialize(found["optimizer"]))
print(type(again).__name__, type(again).__mro__[1].__name__, float(again.learning_rate), found["loss"].__name__)
print(float(found["model"](keras.ops.ones((1, 1)))[0, 0]))
"""


def test_another_process_knows_the_classes_that_a_script_registers(run_python, tmp_path):
    run_python(SENDS, str(tmp_path / "sent"))
    assert run_python(RECEIVES, str(tmp_path / "sent")).stdout.split() == ["Descent", "SGD", "0.5", "distance", "2.0"]


def test_a_script_that_is_imported_continues_its_own_run(run_python, tmp_path):
    run_python(RUN_AND_IMPORT, tmp_path, SCRIPT)


def test_a_model_is_recreated_with_the_states_of_its_recurrent_layers(logical_devices):
    import keras
    import numpy as np

    from tfaccel.planning.own_model import RebuiltModel

    model = keras.Sequential([keras.Input((3, 2), batch_size=4), keras.layers.LSTM(5, stateful=True)])
    model.compile("sgd", "mse")
    model.predict(np.ones((4, 3, 2)), verbose=0)
    again = RebuiltModel(model)()
    states = [[value.numpy() for value in one.layers[0].states] for one in (model, again)]
    assert np.abs(states[0][0]).max() > 0.01
    np.testing.assert_array_equal(*states)


def test_fields_of_the_plan_are_arguments_of_train(logical_devices, tmp_path):
    import keras
    import numpy as np

    import tfaccel
    from tfaccel.planning.placements import SET_BY_YOU

    def build_model():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    x = np.ones((32, 4), "float32")
    data = {"optimizer": "sgd", "loss": "mse", "epochs": 1, "verbose": 0, "run_dir": tmp_path / "run"}
    chosen = {"strategy": "one_device", "dtype_policy": "mixed_bfloat16", "global_batch_size": 16}
    plan = tfaccel.train(build_model, x, x[:, :1], **data, **chosen).plan
    assert {name: getattr(plan, name) for name in chosen} == chosen
    assert {dict(plan.reasons)[name] for name in chosen} == {SET_BY_YOU}
    again = tfaccel.train(build_model, x, x[:, :1], **data, **chosen, resume="must")
    assert again.plan == plan
    with pytest.raises(
        tfaccel.errors.WorkloadError, match=r"batch_size=8, global_batch_size=16\. Leave out batch_size"
    ):
        tfaccel.train(build_model, x, x[:, :1], **data, **chosen, batch_size=8)
    with pytest.raises(tfaccel.errors.WorkloadError, match=r"optimizer identifier: adamm\. Did you mean 'adam'"):
        tfaccel.train(build_model, x, x[:, :1], **{**data, "optimizer": "adamm", "run_dir": tmp_path / "other"})


def test_train_says_plan_place_verdict_and_ends_with_one_line(logical_devices, tmp_path, capsys):
    import keras
    import numpy as np

    import tfaccel

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise ZeroDivisionError

    def build_model():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def said(**options):
        x = np.ones((32, 4), "float32")
        result = tfaccel.train(
            build_model, x, x[:, :1], optimizer="sgd", loss="mse", epochs=3, run_dir=tmp_path, **options
        )
        return capsys.readouterr().err.replace(result.verdict.text(), "VERDICT")

    with pytest.raises(ZeroDivisionError):
        said(callbacks=[Stop()])
    first = capsys.readouterr().err
    assert first.startswith("Plan (by rules") and "Plan(strategy='none', devices=('CPU:0',)" in first
    resumed = said(resume="auto")
    assert f"The run in {tmp_path} continues from the newest checkpoint (epoch 2, step 1).\n" in resumed
    *_, last = resumed.splitlines()
    page = f"The model is in {tmp_path}; its page: tfaccel report {tmp_path}"
    assert re.fullmatch(rf"loss [\d.e-]+\. {re.escape(page)}", last), last
    assert f"The run in {tmp_path} is complete; there is nothing to train.\n" in said(resume="auto")
    assert said(resume="auto", verbose=0) == ""


def test_fit_says_where_it_continues(logical_devices, tmp_path, capsys):
    import keras
    import numpy as np

    import tfaccel

    x = np.ones((32, 4), "float32")

    def said(epochs, verbose):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        tfaccel.fit(model, x, x[:, :1], epochs=epochs, callbacks=[tfaccel.Resume(tmp_path)], verbose=verbose)
        return capsys.readouterr().err

    assert "continues" not in said(1, 2)
    assert f"Training continues in epoch 2 after step 0: {tmp_path}.\n" in said(2, 2)
    assert "continues" not in said(3, 0)
    assert f"The training in {tmp_path} is complete after epoch 3.\n" in said(3, 2)


RUNS_IN_ONE_PROCESS = """
import sys
import keras, numpy as np, tfaccel

def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

x = np.ones((32, 4), "float32")
for number in range(6):
    options = {"optimizer": "sgd", "loss": "mse", "validation_data": (x, x[:, :1]), "epochs": 1, "verbose": 0}
    tfaccel.train(build_model, x, x[:, :1], run_dir=f"{sys.argv[1]}/{number}", jit_compile=bool(number % 2), **options)
"""


def test_several_runs_in_one_process_give_no_warning_of_retracing(run_python, tmp_path):
    assert "retracing" not in run_python(RUNS_IN_ONE_PROCESS, tmp_path).stderr
