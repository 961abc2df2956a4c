"""Optimizers that must be built before the first step is traced: the same training with and without a strategy."""

import keras
import pytest
from replica_models import X, Y, assert_equal, scope_of

from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")


class PulledBack(keras.optimizers.SGD):
    """Pulls the weights toward their first values."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.first = self.add_optimizer_variables(variables, "first")
            for slot, variable in zip(self.first, variables, strict=True):
                slot.assign(variable)

    def update_step(self, gradient, variable, learning_rate):
        first = self.first[self._get_variable_index(variable)]
        super().update_step(gradient + 0.5 * (variable - first), variable, learning_rate)


class BuiltByFirstStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def trained(optimizer, num_replicas, *, is_lazy=False, by=fit):
    keras.utils.set_random_seed(0)
    with scope_of(num_replicas):
        model = BuiltByFirstStep() if is_lazy else keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(optimizer(), "mse")
    if by is not fit:
        model.optimizer.build(model.trainable_variables)
    history = by(model, X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    return history, [variable.numpy() for variable in model.trainable_variables]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.ScheduleFreeAdamW(0.1), initial_scale=8.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
        lambda: PulledBack(0.05),
    ],
    ids=["schedule-free", "with a loss scale", "a loss scale alone", "custom"],
)
def test_optimizers_are_built_with_the_weights_under_every_strategy(optimizer):
    wanted = trained(optimizer, 0, by=keras.Model.fit)
    for num_replicas in (0, 1, 2):
        assert_equal(trained(optimizer, num_replicas), wanted)
    assert_equal(trained(optimizer, 0, is_lazy=True), wanted)
