"""Slots of the user's own optimizers: sharded, on the host and in bfloat16, or refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import PlanError
from tfaccel.training.fit import plan_of_model
from tfaccel.training.private.private_slots import shared_variables

pytestmark = pytest.mark.usefixtures("logical_devices")
BATCH = 8
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(20, 6)).astype("float32")  # the last batch is smaller
Y = X[:, :2]
ROUNDED = {"optimizer_slots_dtype": "bfloat16"}


class NormOfAll(keras.optimizers.Optimizer):
    """Divides gradients by a running norm over all weights."""

    def __init__(self, learning_rate=0.05, **options):
        super().__init__(learning_rate=learning_rate, **options)

    def build(self, variables):
        super().build(variables)
        self.norm = self.add_variable(shape=(), initializer="ones", name="norm")

    def update_step(self, gradient, variable, learning_rate):
        self.norm.assign(0.9 * self.norm + 0.1 * keras.ops.sum(keras.ops.square(gradient)))
        self.assign_sub(variable, learning_rate * gradient / keras.ops.sqrt(self.norm))


class NormInList(NormOfAll):
    """Keeps the same norm once for each weight."""

    def build(self, variables):
        super().build(variables)
        self.norms = [self.norm for _ in variables]


class NormOfEach(NormOfAll):
    """Divides momentum by a running norm of each weight, and assigns slots directly."""

    def build(self, variables):
        keras.optimizers.Optimizer.build(self, variables)
        self.norms = [self.add_variable(shape=(), initializer="ones", name="norm") for _ in variables]
        self.momentums = [self.add_variable_from_reference(one, name="momentum") for one in variables]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        norm, momentum = self.norms[index], self.momentums[index]
        norm.assign(0.9 * norm + 0.1 * keras.ops.sum(keras.ops.square(gradient)))
        momentum.assign(0.9 * momentum + gradient / keras.ops.sqrt(norm))
        self.assign_sub(variable, learning_rate * keras.ops.multiply(momentum, 1.0))


class Noisy(NormOfAll):
    """Adds noise to the weights, as Langevin dynamics does."""

    def build(self, variables):
        keras.optimizers.Optimizer.build(self, variables)
        self.momentums = [self.add_variable_from_reference(one, name="momentum") for one in variables]
        self.generator = keras.random.SeedGenerator(5)

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, 0.9 * momentum + gradient)
        noise = keras.random.normal(variable.shape, seed=self.generator)
        self.assign_sub(variable, learning_rate * (momentum + 0.1 * noise))


class Unseeded(Noisy):
    """Draws its noise from Keras's global generator, or from TensorFlow's."""

    def __init__(self, normal=keras.random.normal, **options):
        super().__init__(**options)
        self.normal = normal

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * (gradient + 0.1 * self.normal(variable.shape)))


def trained(make_optimizer, how, devices=("CPU:0", "CPU:1"), **fields):
    """The weights and the optimizer's variables after an epoch."""
    keras.utils.set_random_seed(1)
    several = len(devices) > 1
    with (tf.distribute.MirroredStrategy(devices) if several else tf.distribute.OneDeviceStrategy(*devices)).scope():
        layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(make_optimizer(), "mse")
    plan = plan_of_model(model, batch_size=BATCH, optimizer_state=how, **fields)
    tfaccel.fit(model, X, Y, batch_size=BATCH, verbose=0, shuffle=False, check_rows=False, plan=plan)
    local = model.distribute_strategy.experimental_local_results
    for first, *others in (local(weight.value) for weight in model.weights):
        for other in others:
            np.testing.assert_array_equal(first.numpy(), other.numpy())
    return [np.asarray(one.numpy(), "float32") for one in (*model.weights, *model.optimizer.variables)]


@pytest.mark.parametrize(
    ("make_optimizer", "how", "fields"),
    [
        (NormOfAll, "host", {}),
        pytest.param(NormOfEach, "sharded", {}, marks=pytest.mark.slow),
        (NormOfEach, "sharded", ROUNDED),
        pytest.param(NormOfEach, "host", ROUNDED, marks=pytest.mark.slow),
        pytest.param(Noisy, "host", {}, marks=pytest.mark.slow),
    ],
)
def test_slots_elsewhere_give_the_weights_of_replicated_ones(make_optimizer, how, fields):
    for one, other in zip(
        trained(make_optimizer, "replicated", **fields), trained(make_optimizer, how, **fields), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [(NormOfAll, "norm for several weights"), (NormInList, "norm for several"), (Noisy, "seed_generator_state for")],
)
def test_what_is_kept_for_all_weights_is_not_sharded(make_optimizer, message):
    with pytest.raises(PlanError, match=f"Received: .*, which keeps .*{message}.*Use optimizer_state='host' or 'repl"):
        trained(make_optimizer, "sharded")


def test_no_optimizer_of_keras_is_refused_for_that():
    weights = [keras.Variable(np.ones(shape)) for shape in ((3, 4), (4,), (4, 2))]
    every = [one for one in vars(keras.optimizers).values() if isinstance(one, type)]
    kinds = [one for one in every if issubclass(one, keras.optimizers.Optimizer)]
    for kind in [one for one in kinds if one.__name__ not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")]:
        optimizer = kind(use_ema=True, gradient_accumulation_steps=2)
        optimizer.build(weights)
        assert shared_variables(optimizer) == [], kind


@pytest.mark.slow
def test_replicas_draw_the_noise_of_one_device():
    for one, other in zip(trained(Noisy, "replicated", ("CPU:0",)), trained(Noisy, "replicated"), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_bfloat16_slots_draw_new_noise_for_each_weight_and_step():
    exact, rounded = (trained(Noisy, "replicated", ("CPU:0",), **fields) for fields in ({}, ROUNDED))
    for one, other in zip(exact, rounded, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.02, atol=0.005)


def test_bfloat16_slots_keep_what_an_update_assigns_directly():
    exact, rounded = (trained(NormOfAll, "replicated", ("CPU:0",), **fields) for fields in ({}, ROUNDED))
    for one, other in zip(exact, rounded, strict=True):  # it has no slots that are rounded
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("normal", [keras.random.normal, pytest.param(tf.random.normal, marks=pytest.mark.slow)])
def test_noise_without_a_seed_of_its_own_is_refused_on_replicas(normal):
    message = "draws random numbers without a seed of its own, .* Give the optimizer a keras.random.SeedGenerator"
    with pytest.raises(PlanError, match=message):
        trained(lambda: Unseeded(normal), "replicated")
    trained(lambda: Unseeded(normal), "replicated", ("CPU:0",))
    trained(lambda: Unseeded(normal), "host")
