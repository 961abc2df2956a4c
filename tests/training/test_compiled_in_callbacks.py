"""Callbacks that compile the model again, or replace its optimizer, while it trains."""

import keras
import pytest
from replica_models import X, Y, assert_equal, scope_of

from tfaccel.errors import CoupledRowsError, WorkloadError
from tfaccel.training.evaluate import evaluate
from tfaccel.training.fit import fit
from tfaccel.training.run.resume import Resume

pytestmark = pytest.mark.usefixtures("logical_devices")


class CompilesAgain(keras.callbacks.Callback):
    """Compiles before the second epoch. Keras's loop also needs its functions, which `compile` deletes."""

    def __init__(self, change, *, makes_functions, hook="on_epoch_begin"):
        super().__init__()
        self.change, self.makes_functions = change, makes_functions
        setattr(self, hook, self.at)

    def at(self, epoch, logs=None):
        if epoch == 1:
            self.change(self.model)
            if self.makes_functions:
                self.model.make_train_function()
                self.model.make_test_function()


def new_loss(model):
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.05), "mae", metrics=["mse"], loss_weights=0.5)


def same_optimizer(model):
    model.compile(model.optimizer, "mae")


def new_optimizer(model):
    model.optimizer = keras.optimizers.Adam(0.01)


def compiled(num_replicas):
    keras.utils.set_random_seed(0)
    with scope_of(num_replicas):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def trained(num_replicas, change, by, **options):
    model = compiled(num_replicas)
    callback = CompilesAgain(change, makes_functions=by is keras.Model.fit and change is not new_optimizer, **options)
    data = {"validation_data": (X[:8], Y[:8]), "batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    history = by(model, X, Y, callbacks=[callback], **data).history
    return history, model.get_weights()


@pytest.mark.parametrize("change", [new_loss, pytest.param(same_optimizer, marks=pytest.mark.slow), new_optimizer])
def test_what_a_callback_compiles_trains_as_with_keras(change):
    wanted = trained(0, change, keras.Model.fit)
    assert_equal(trained(0, change, fit), wanted)
    assert_equal(trained(2, change, fit), wanted)


@pytest.mark.slow
def test_a_model_compiled_in_a_batch_hook_and_one_compiled_before_the_first_step_train():
    for hook in ("on_epoch_end", "on_train_batch_end"):
        assert_equal(trained(2, new_loss, fit, hook=hook), trained(0, new_loss, fit, hook=hook))
    by_hook = []
    for num_replicas in (0, 2):
        model = compiled(num_replicas)
        starts = keras.callbacks.LambdaCallback(on_train_begin=lambda logs, one=model: new_loss(one))
        history = fit(model, X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[starts]).history
        by_hook.append((history, [*model.get_weights(), *map(float, evaluate(model, X, Y, verbose=0))]))
    assert_equal(by_hook[1], by_hook[0])


def centred_outputs(model):
    model.layers[1].activation = lambda x: x - keras.ops.mean(x, axis=0, keepdims=True)
    model.compile("sgd", "mse")


def test_what_a_callback_compiles_is_checked_as_well():
    with pytest.raises(CoupledRowsError):
        trained(2, centred_outputs, fit)


@pytest.mark.parametrize("change", [new_loss, new_optimizer])
def test_training_that_a_callback_compiles_again_is_not_resumed(change, tmp_path):
    again = CompilesAgain(change, makes_functions=False)
    with pytest.raises(WorkloadError, match=r"A callback compiles the model or replaces its optimizer"):
        fit(compiled(0), X, Y, epochs=3, verbose=0, callbacks=[again, Resume(tmp_path / "run")])
