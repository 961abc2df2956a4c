"""Compile arguments between model and data, in one piece; in the place of data they are refused with the right call."""

import inspect
import operator

import numpy as np
import pytest

import tfaccel
from tfaccel.errors import WorkloadError
from tfaccel.planning.compile_arguments import data_after_model

X = np.zeros((6, 2), "float32")
Y = X[:, 0]
COMPILE_ARGS = {"optimizer": "sgd", "loss": "mse"}
VERBS = [
    ("find_fastest", {}),
    ("find_batch_size", {}),
    ("find_learning_rate", {}),
    ("estimates.estimate_memory", {}),
    ("estimates.get_cost", {}),
    ("estimates.roofline", {}),
    ("train", {"run_dir": "run"}),
    ("Workload.of", {}),
]


def compile_args():
    return dict(COMPILE_ARGS)


def verb_of(name):
    return tfaccel.Workload.of if name == "Workload.of" else operator.attrgetter(name)(tfaccel)


@data_after_model
def received(workload, x=None, y=None, **options):
    return x, y, options


def test_compile_arguments_directly_after_the_model_go_on_by_name():
    assert received(object, COMPILE_ARGS, X, Y, batch_size=3) == (X, Y, {**COMPILE_ARGS, "batch_size": 3})
    assert received(object, COMPILE_ARGS, x=X, y=Y) == (X, Y, COMPILE_ARGS)
    assert received(object, {**COMPILE_ARGS, "loss_weights": [1.0]}, X)[2]["loss_weights"] == [1.0]
    assert received(object, compile_args, X, Y) == (X, Y, {"compile_args": compile_args})
    assert received(object, X, Y, **COMPILE_ARGS) == (X, Y, COMPILE_ARGS)


def test_a_workload_of_a_dictionary_is_the_one_of_named_arguments():
    together = tfaccel.Workload.of(object, COMPILE_ARGS, X, Y, batch_size=3)
    for other in (
        tfaccel.Workload.of(object, X, Y, batch_size=3, **COMPILE_ARGS),
        tfaccel.Workload.of(object, X, Y, batch_size=3, compile_args=COMPILE_ARGS),
    ):
        assert together.compile_args() == other.compile_args() == COMPILE_ARGS
        assert together.options == other.options
    assert together.global_batch_size == 3


def test_a_workload_of_a_function_calls_it_for_each_use():
    def scheduled(num_steps):
        return {"optimizer": f"sgd for {num_steps} steps", "loss": "mse"}

    work = tfaccel.Workload.of(object, scheduled, X, Y)
    assert work.compile_args is scheduled
    assert work.options["compile_args"].endswith("scheduled")
    assert tfaccel.Workload.of(object, compile_args, X).num_train_examples == 6


@pytest.mark.parametrize(("name", "options"), VERBS)
def test_compile_arguments_in_the_place_of_data_are_refused(name, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb, right = verb_of(name), rf"Write {name.removeprefix('estimates.')}\(build_model, compile_args, x, y\)\."
    dictionary = r"a dictionary of compile arguments \(optimizer, loss\)"
    for data, place in (((X, Y, COMPILE_ARGS), 4), ((X, COMPILE_ARGS), 3), ((COMPILE_ARGS, X, COMPILE_ARGS), 4)):
        with pytest.raises(WorkloadError, match=rf"Received: {dictionary} as argument {place}\. {right}"):
            verb(object, *data, **options)
    with pytest.raises(WorkloadError, match=rf"Received: the function compile_args as argument 3\. {right}"):
        verb(object, X, compile_args, **options)
    with pytest.raises(
        WorkloadError, match=rf"come with the data of a model\. Received: {dictionary} without x\. {right}"
    ):
        verb(object, COMPILE_ARGS, **options)
    with pytest.raises(WorkloadError, match=r"loss is given twice.*Received: 'mse' and 'mae'\. Leave out one of them"):
        verb(object, COMPILE_ARGS, X, Y, loss="mae", **options)
    with pytest.raises(WorkloadError, match=r"Model\.compile has no argument 'optimiser'\. Did you mean 'optimizer'"):
        verb(object, {"optimiser": "sgd", "loss": "mse"}, X, Y, **options)
    with pytest.raises(WorkloadError, match=r"compile_args returns all compile arguments\. Received as well: loss"):
        verb(object, compile_args, X, Y, loss="mae", **options)
    with pytest.raises(TypeError, match="positional arguments but"):
        verb(object, X, Y, X, **options)
    assert "compile_args" not in inspect.signature(verb).parameters or name == "Workload.of"
    assert list(tmp_path.iterdir()) == []


def test_compile_args_of_another_kind_are_refused():
    with pytest.raises(WorkloadError, match=r"a dict of arguments of Model\.compile, or a function.*Received.*='adam'"):
        tfaccel.Workload.of(object, X, Y, compile_args="adam")


def test_data_may_have_the_names_of_compile_arguments():
    work = tfaccel.Workload.of(object, {"loss": X, "metrics": X}, Y, **COMPILE_ARGS)
    assert work.num_train_examples == 6
    assert tfaccel.Workload.of(object, [X, X], {"loss": Y}, batch_size=3, **COMPILE_ARGS).global_batch_size == 3
    assert received(object, {"loss": [1.0, 2.0]}, Y) == ({"loss": [1.0, 2.0]}, Y, {})


CALLS = """
import keras, numpy as np, tfaccel

def build_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

rates = []

def scheduled(num_steps):
    rates.append(num_steps)
    return {"optimizer": keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, num_steps)), "loss": "mse"}

def without_schedule():
    return {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"}

x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
y = x[:, 0]
together = {"optimizer": "sgd", "loss": "mse"}
losses = {}
for name, given in (("dict", together), ("scheduled", scheduled), ("named", {})):
    options = together if name == "named" else {}
    places = () if name == "named" else (given,)
    result = tfaccel.train(build_model, *places, x, y, batch_size=16, epochs=3, verbose=0, run_dir=name, **options)
    losses[name] = result.history["loss"]
assert losses["dict"] == losses["named"] != losses["scheduled"], losses
assert rates and set(rates) == {12}, rates
resumed = {"run_dir": "scheduled", "resume": "auto"}
again = tfaccel.train(build_model, scheduled, x, y, batch_size=16, epochs=3, verbose=0, **resumed)
assert again.history["loss"] == losses["scheduled"]

for given in (together, without_schedule):
    assert tfaccel.estimates.get_cost(build_model, given, x, y).num_parameters == 3
    assert tfaccel.find_learning_rate(build_model, given, x, y, batch_size=16).suggestion
model = build_model()
model.compile("adam", "mae")
before = model.get_weights()
test = tfaccel.options.LearningRateTest(num_steps=20)
given = (together, without_schedule)
reports = [tfaccel.find_learning_rate(model, one, x, y, batch_size=16, test=test) for one in given]
assert [one.optimizer for one in reports] == ["SGD", "SGD"]
assert all((a == b).all() for a, b in zip(before, model.get_weights()))
"""


def test_verbs_train_with_compile_arguments_in_one_piece(run_python, tmp_path):
    run_python(CALLS, cwd=tmp_path)


SEARCH = """
import keras, numpy as np, tfaccel

def build_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

def compile_args(num_steps):
    return {"optimizer": keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, num_steps)), "loss": "mse"}

if __name__ == "__main__":
    x = np.ones((64, 2), "float32")
    y = x[:, 0]
    measure = tfaccel.options.MeasureOptions(max_candidates=1)
    for given in (compile_args, {"optimizer": "sgd", "loss": "mse"}):
        report = tfaccel.find_fastest(build_model, given, x, y, measure=measure)
        assert report.plan.dtype_policy == "float32" and not report.from_cache
        assert tfaccel.find_fastest(build_model, given, x, y, measure=measure).from_cache
"""


@pytest.mark.slow  # without it: the test above, and tests/measuring/test_find_fastest.py
def test_find_fastest_sends_a_function_of_compile_arguments(run_python, tmp_path):
    (tmp_path / "script.py").write_text(SEARCH)
    run_python(f"import runpy; runpy.run_path({str(tmp_path / 'script.py')!r}, run_name='__main__')", cwd=tmp_path)
