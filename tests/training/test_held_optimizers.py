"""Optimizers that call the `apply` of another one, or whose parts keep variables of their own, on several replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import X, Y, assert_equal, scope_of

from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")


class Lookahead(keras.optimizers.Optimizer):
    """Every second update pulls the weights halfway back to slow ones."""

    def __init__(self, fast):
        super().__init__(learning_rate=0.1)
        self.fast = fast

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.fast.build(variables)
            self.slow = self.add_optimizer_variables(variables, "slow")
            for slot, variable in zip(self.slow, variables, strict=True):
                slot.assign(variable)

    def apply(self, grads, trainable_variables=None):
        variables = list(trainable_variables or self._trainable_variables)
        self.build(variables)
        self.fast.apply(grads, variables)
        self.iterations.assign_add(1)
        pulls = keras.ops.equal(self.iterations % 2, 0)
        for slot, variable in zip(self.slow, variables, strict=True):
            between = (slot + variable) / 2
            slot.assign(keras.ops.where(pulls, between, slot))
            variable.assign(keras.ops.where(pulls, between, variable))


def trained(num_replicas, by=fit, *, outside=False):
    keras.utils.set_random_seed(0)
    fast = keras.optimizers.Adam(0.05) if outside else None
    with scope_of(num_replicas):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(Lookahead(fast or keras.optimizers.Adam(0.05)), "mse")
    if by is not fit:
        model.optimizer.build(model.trainable_variables)
    history = by(model, X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    steps = int(tf.convert_to_tensor(model.optimizer.fast.iterations))
    return (history, [np.asarray(variable) for variable in model.trainable_variables]), steps


def test_an_optimizer_that_calls_another_trains_alike_on_several_replicas():
    wanted, steps = trained(0, keras.Model.fit)
    for num_replicas, outside in ((0, False), (1, False), (2, False), (2, True)):
        found, own_steps = trained(num_replicas, outside=outside)
        assert_equal(found, wanted)
        assert own_steps == steps == 9


class Decays(keras.optimizers.schedules.LearningRateSchedule):
    """Counts its steps itself."""

    def __init__(self):
        self.steps = tf.Variable(0.0, trainable=False)

    def __call__(self, step):
        return 0.1 / self.steps.assign_add(1.0)

    def get_config(self):
        return {}


class Tightens(keras.constraints.Constraint):
    """Allows less after each step."""

    def __init__(self):
        self.bound = tf.Variable(1.0, trainable=False)

    def __call__(self, weight):
        return keras.ops.clip(weight, -1.0, self.bound.assign(0.8 * self.bound))


@pytest.mark.parametrize("num_replicas", [0, 2])
def test_variables_of_schedules_and_constraints_move_once_a_step(num_replicas):
    results = []
    for number, by in ((0, keras.Model.fit), (num_replicas, fit)):
        keras.utils.set_random_seed(0)
        with scope_of(number):
            constraint, schedule = Tightens(), Decays()
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_constraint=constraint)])
            model.compile(keras.optimizers.SGD(schedule), "mse")
        history = by(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        results.append((history, [np.asarray(variable) for variable in model.trainable_variables]))
    assert_equal(results[1], results[0])
