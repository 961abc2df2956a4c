"""Compile arguments in the place of data are refused with the call that is right."""

import numpy as np
import pytest

import tfaccel
from tfaccel.errors import WorkloadError

X = np.zeros((6, 2), "float32")
Y = X[:, 0]
COMPILE_ARGS = {"optimizer": "sgd", "loss": "mse"}
RECEIVED = "Received: a dictionary of compile arguments (optimizer, loss) as argument {}."


def compile_args():
    return COMPILE_ARGS


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("find_fastest", {}),
        ("find_batch_size", {}),
        ("find_learning_rate", {}),
        ("estimate_memory", {}),
        ("cost_of", {}),
        ("roofline", {}),
        ("train", {"run_dir": "run"}),
        ("Workload.of", {}),
    ],
)
def test_compile_arguments_before_data_are_refused(name, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb = tfaccel.Workload.of if name == "Workload.of" else getattr(tfaccel, name)
    for data, place in (((COMPILE_ARGS, X, Y), 2), ((X, Y, COMPILE_ARGS), 4), ((X, COMPILE_ARGS), 3)):
        with pytest.raises(WorkloadError) as error:
            verb(object, *data, **options)
        assert str(error.value) == (
            "x and y come after the model, and compile arguments are passed by name. "
            f"{RECEIVED.format(place)} Write {name}(build_model, x, y, **compile_args)."
        )
    with pytest.raises(WorkloadError, match=r"Received: the function compile_args as argument 2\. .*\*\*compile_args"):
        verb(object, compile_args, X, Y, **options)
    with pytest.raises(TypeError, match="positional arguments but"):
        verb(object, X, Y, X, **options)
    assert list(tmp_path.iterdir()) == []


def test_arrays_may_have_the_names_of_compile_arguments():
    work = tfaccel.Workload.of(object, {"loss": X, "metrics": X}, Y, **COMPILE_ARGS)
    assert work.num_train_examples == 6
    assert tfaccel.Workload.of(object, [X, X], {"loss": Y}, batch_size=3, **COMPILE_ARGS).global_batch_size == 3
