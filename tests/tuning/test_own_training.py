"""What a fit or run_trial of one's own is called with, and what executions of a trial make together."""

import numpy as np
import pytest
import search_cases

from tfaccel import Workload
from tfaccel.errors import SearchError
from tfaccel.tuning.objective import Objective, written_objective


class Fits:
    """Functions that train, in the ways in which people write them."""

    def passes_on(self, hp, model, *args, **kwargs):
        return self.other(*args, **kwargs)

    def gives_some(self, hp, model, *args, **kwargs):
        return self.other(*args, batch_size=3, epochs=4, **kwargs)

    def takes_callbacks_out(self, hp, model, *args, **kwargs):
        callbacks = kwargs.pop("callbacks")
        return self.other(*args, **kwargs), callbacks

    def names_arrays(self, hp, model, x, y, validation_data=None, **kwargs):
        return self.other(x, y, validation_data=validation_data, **kwargs)

    def takes_batches(self, hp, model, x, epochs):
        return x, epochs

    def by_name(self, hp, model, **kwargs):
        return kwargs

    def takes_nothing(self, hp, model):
        return 0.0

    def needs_more(self, hp, model, train_ds, *, other):
        return train_ds, other

    def other(self, *args, **kwargs):
        return args, kwargs


def arguments(name, workload=None, **options):
    from tfaccel.tuning.own_training import OwnArguments

    workload = workload or search_cases.workload()
    return OwnArguments(getattr(Fits(), name), given=2).of(workload, batch_size=8, seed=1, epochs=2, **options)


def test_functions_get_what_they_take(logical_devices):
    position, names = arguments("passes_on", callbacks=["mine"])
    assert [part.shape for part in position] == [(32, 1), (32, 1)]
    assert set(names) == {"batch_size", "epochs", "callbacks", "validation_data", "verbose"}
    assert names["callbacks"] == ["mine"]
    np.testing.assert_array_equal(names["validation_data"][1], 2 * names["validation_data"][0] + 1)
    assert set(arguments("gives_some")[1]) == {"callbacks", "validation_data", "verbose"}
    assert "callbacks" in arguments("takes_callbacks_out")[1]
    position, names = arguments("names_arrays")
    assert (position, names["x"].shape, names["y"].shape, names["batch_size"]) == ((), (32, 1), (32, 1), 8)
    position, names = arguments("takes_batches")
    assert set(names) == {"x", "epochs"}
    assert len(list(names["x"])) == 8  # four batches of each of two epochs
    names = arguments("by_name", initial_epoch=1)[1]
    assert (names["steps_per_epoch"], names["initial_epoch"], len(list(names["x"]))) == (4, 1, 4)
    assert arguments("takes_nothing") == ((), {})
    with pytest.raises(SearchError, match=r"Fits\.needs_more needs 'train_ds', 'other', which a search cannot pass"):
        arguments("needs_more")


def test_inputs_of_several_parts_and_weights_become_arrays(logical_devices):
    import tensorflow as tf

    def data(batch_size, **place):
        rows = {"a": tf.range(5.0), "b": (tf.range(5), tf.constant(list("abcde")))}
        return tf.data.Dataset.from_tensor_slices((rows, tf.range(5.0), tf.ones(5))).batch(batch_size)

    workload = Workload("parts", object, dict, data, None, global_batch_size=2)
    position, names = arguments("passes_on", workload)
    assert position[0]["a"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert position[0]["b"][1].tolist() == [b"a", b"b", b"c", b"d", b"e"]
    assert names["sample_weight"].shape == (5,)
    assert "validation_data" not in names


def test_a_class_that_cannot_run_trials_is_refused(logical_devices):
    import keras_tuner

    from tfaccel.tuning.own_training import check_tuner

    class Starts(keras_tuner.RandomSearch):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)

    for given, message in (
        (3, "A tuner must be a subclass of keras_tuner.Tuner. Received: 3"),
        (Starts, "Starts overrides __init__, which a search never calls"),
        (keras_tuner.SklearnTuner, "SklearnTuner is not a subclass of keras_tuner.Tuner, and may tune other models"),
    ):
        with pytest.raises(SearchError, match=message):
            check_tuner(given)
    check_tuner(keras_tuner.RandomSearch)


def test_objectives_of_keras_tuner_are_taken(logical_devices):
    import keras_tuner

    one = keras_tuner.Objective("val_mine", "max")
    assert Objective.of(written_objective(one)).parts == (("val_mine", "max"),)
    assert written_objective([one, "val_loss"]) == ("val_mine:max", "val_loss")


def test_one_name_under_several_conditions_keeps_its_value(tmp_path, logical_devices):
    import keras_tuner

    from tfaccel.tuning.options import SearchOptions
    from tfaccel.tuning.oracles import make_oracle

    hp = keras_tuner.HyperParameters()
    hp.Choice("kind", ["a", "b"])
    for kind in ("a", "b"):
        with hp.conditional_scope("kind", [kind]):
            hp.Int("size", 1, 9)
    oracle = make_oracle(
        hp.get_config(),
        SearchOptions(max_trials=8),
        Objective((("val_loss", "min"),)),
        run_dir=tmp_path,
        epochs=1,
        on_row=lambda row: None,
    )
    oracle._set_project_dir(str(tmp_path), "tuner")
    values = [oracle.create_trial(f"worker-{n}").hyperparameters.values for n in range(8)]
    assert {one["kind"] for one in values} == {"a", "b"}
    assert all(set(one) == {"kind", "size"} for one in values)  # without this care one kind has no size
