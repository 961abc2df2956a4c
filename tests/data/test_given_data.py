"""Data as users give them: what is accepted, what is refused, and what tells them apart. No TensorFlow here."""

import numpy as np
import pandas as pd
import pytest

from tfaccel import Workload
from tfaccel.data.given_data import GivenArrays, given_data
from tfaccel.errors import DataError, WorkloadError

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


def test_arrays_are_counted_and_split_as_by_keras():
    data = given_data({"a": X, "b": [X, X]}, Y, np.ones(10))
    assert data.num_examples == 10
    train, held_out = data.split(0.25)
    assert (train.num_examples, held_out.num_examples) == (7, 3)  # floor(10 * 0.75)
    assert (
        held_out.identity["data"] == given_data({"a": X[7:], "b": [X[7:], X[7:]]}, Y[7:], np.ones(3)).identity["data"]
    )


@pytest.mark.parametrize("weights", [[1.0, 2.0], {"cat": 1.0}, {0: "much"}, {0.5: 1.0}])
def test_class_weights_are_numbers_by_class(weights):
    with pytest.raises(DataError, match=r"`class_weight` must be a dict of numbers by the index of a class, such as"):
        Workload.of(lambda: None, X, Y, class_weight=weights, epochs=1)


def test_what_changes_the_batches_changes_the_identity():
    same = GivenArrays(X.copy(), Y).identity
    assert same == GivenArrays(X, Y).identity
    changed = X.copy()
    changed[9, 1] += 1e-9
    others = [
        GivenArrays(changed, Y),
        GivenArrays(X.astype("float32"), Y),
        GivenArrays(X.reshape(10, 1, 2), Y),
        GivenArrays(X, None, Y),
        GivenArrays(X, Y, shuffle=False),
        GivenArrays(X, Y, class_weight={0: 2.0}),
        GivenArrays(np.array([["a"] * 2] * 10, object), Y),
        GivenArrays(np.array([["b"] * 2] * 10, object), Y),
    ]
    identities = [str(same), *(str(other.identity) for other in others)]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ((i for i in range(3)),),
            r"x is a generator or an iterator \(generator\), which can be iterated over only once",
        ),
        ((iter([X]),), "x is a generator or an iterator"),
        (([1, 2, 3], Y), r"x must be arrays .* Received: int in a list. Write np.array\(x\)"),
        ((X, "labels"), r"y must be arrays .* Received: str"),
        ((object(),), r"x must be arrays .* Received: object"),
        ((X, Y[:5]), r"All arrays must have the same number of rows. Received: x \(10, 2\), y \(5,\)"),
        ((X[:0], Y[:0]), "There is no example to train on"),
        ((np.float32(1),), "x must have a first axis of examples"),
        ((pd.DataFrame({"size": [1.0], "town": ["Bonn"]}),), "Column 'town' of x holds objects that are not numbers"),
        ((np.array(["red", "blue"]),), "x has the dtype <U4, which Keras does not take. Use class indices for"),
        ((np.array([b"red", b"\xff"], object),), "x holds bytes that are no texts in UTF-8"),
        ((np.array([{}], object),), "x holds objects that are not numbers"),
        ((X, np.arange(10).astype("M8[s]")), r"y holds datetime64\[s\] values that are not numbers"),
    ],
)
def test_data_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        given_data(*arguments)


@pytest.mark.parametrize("fraction", [1.0, -0.5, 0.99, 2])
def test_split_refused(fraction):
    with pytest.raises(DataError, match="validation_split"):
        given_data(X, Y).split(fraction)


def test_workload_of_arrays_says_what_it_is():
    work = Workload.of(
        object, X, Y, validation_split=0.2, optimizer="adam", loss="mse", batch_size=4, epochs=3, name="mine"
    )
    assert (work.name, work.global_batch_size, work.epochs, work.num_train_examples) == ("mine", 4, 3, 8)
    assert work.options["optimizer"] == "adam"
    assert work.options["validation_data"] != work.options["train_data"]
    assert work.compile_args() == {"optimizer": "adam", "loss": "mse"}


def test_compile_arguments_are_fresh():
    class Optimizer:
        def __init__(self, rate=0.1):
            self.rate = rate

        def get_config(self):
            return {"rate": self.rate, "name": "optimizer_1"}

        @classmethod
        def from_config(cls, config):
            return cls(config["rate"])

    def loss(y_true, y_pred):
        return 0.0

    given = Optimizer(0.3)
    work = Workload.of(object, X, Y, optimizer=given, loss=loss, metrics=[Optimizer, "mae", loss])
    first, second = work.compile_args(), work.compile_args(num_steps=4)
    assert first["optimizer"].rate == 0.3
    assert len({id(given), id(first["optimizer"]), id(second["optimizer"])}) == 3
    assert first["loss"] is loss
    assert [type(first["metrics"][0]), *first["metrics"][1:]] == [Optimizer, "mae", loss]
    assert work.options["optimizer"] == {"class": given.__class__.__qualname__, "config": {"rate": 0.3}}
    made = Workload.of(object, X, Y, optimizer=lambda num_steps: Optimizer(num_steps), loss="mse")
    assert made.compile_args(num_steps=7)["optimizer"].rate == 7
    with pytest.raises(WorkloadError, match="optimizer takes num_steps, but the number of batches in an epoch is not"):
        made.compile_args()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimiser": "adam"}, "There is no argument 'optimiser'. Did you mean 'optimizer'"),
        ({"epoch": 3}, "There is no argument 'epoch'. Did you mean 'epochs'"),
        (
            {"strategy": "mirrored"},
            r"'strategy', since it is a field of the plan. Pass it to the verb: tfaccel.train.*strategy=\.\.\.\)",
        ),
        ({"steps_per_epoch": 3}, r"There is no argument 'steps_per_epoch'\. An epoch is all of the data: give"),
        ({"jit_compile": True}, "The plan decides jit_compile: leave it out, or set it in the plan"),
        ({"steps_per_execution": 4}, "The plan decides steps_per_execution"),
        ({"build_model": 3}, "build_model must be a Keras model, or a function that returns one.*Received: 3"),
    ],
)
def test_workload_of_refused(changed, message):
    arguments = {"build_model": object, "x": X, "y": Y, "loss": "mse", **changed}
    with pytest.raises(WorkloadError, match=message):
        Workload.of(**arguments)


def test_tensors_of_texts_are_taken_as_arrays_of_texts(logical_devices):
    import tensorflow as tf

    texts = np.array(["red", "grün", ""], object)
    for given in (texts, tf.constant(texts)):
        found, _ = given_data(given, np.zeros(3)).tensors
        assert found.numpy().tolist() == [text.encode() for text in texts]
