"""Costs by layer: operations and bytes beside closed formulas, for models of several kinds."""

import json

import numpy as np
import pytest

from tfaccel.costs.graph_costs import graph_costs
from tfaccel.costs.model_cost import LayerCost, ModelCost, StepCost
from tfaccel.errors import WorkloadError
from tfaccel.measuring.get_cost import get_cost
from tfaccel.planning.workload import Workload

ROWS = 8


def by_name(step):
    return {row.name: row for row in step.rows}


def zeros(*shape):
    return np.zeros((ROWS, *shape), "float32")


def test_dense_layers_with_their_bytes(logical_devices):
    import keras

    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(7, "relu", name="first"), keras.layers.Dense(3, name="last")]
    )
    model.compile("sgd", "mse")
    cost = get_cost(model, zeros(5), zeros(3), batch_size=ROWS)
    forward, step = by_name(cost.forward), by_name(cost.step)
    assert list(forward) == ["first", "last"]
    assert list(step) == ["first", "last", "optimizer", "loss", "other"]
    assert forward["first"].matrix_flops == 2 * ROWS * 5 * 7
    assert forward["first"].other_flops == 2 * ROWS * 7  # bias and ReLU
    # The inputs, the kernel, the bias and the result; each operation on its own, intermediate results twice more.
    least = 4 * (ROWS * 5 + 5 * 7 + 7 + ROWS * 7)
    assert forward["first"].least_bytes == least
    assert forward["first"].num_bytes == {"float32": least + 4 * 4 * ROWS * 7}
    assert step["first"].matrix_flops == 2 * 2 * ROWS * 5 * 7  # nothing goes back to the inputs
    assert step["last"].matrix_flops == 3 * 2 * ROWS * 7 * 3
    assert step["optimizer"].least_bytes >= 4 * 3 * cost.num_parameters  # gradients and weights read, weights written
    assert cost.step.matrix_flops == sum(row.matrix_flops for row in cost.step.rows)
    assert cost.num_parameters == 5 * 7 + 7 + 7 * 3 + 3
    assert ModelCost.from_json(json.loads(json.dumps(cost.to_json()))) == cost


def test_layers_inside_layers_and_loops(logical_devices):
    import keras

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.inner = keras.layers.Dense(4, name="inner")

        def call(self, x):
            return keras.ops.tanh(self.inner(x))

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.cell = keras.layers.LSTM(4, name="recurrent")
            self.block = Block()

        def call(self, x):
            x = self.cell(x)
            for _ in range(3):
                x = self.block(x)
            return x

    cost = get_cost(Subclassed, zeros(6, 5), zeros(4), batch_size=ROWS, optimizer="adam", loss="mse")
    forward = by_name(cost.forward)
    inner = next(row for name, row in forward.items() if name.endswith("inner"))
    block = next(row for name, row in forward.items() if name.endswith("block"))
    cell = next(row for name, row in forward.items() if "lstm_cell" in name)
    assert inner.matrix_flops == 3 * 2 * ROWS * 4 * 4
    assert (block.matrix_flops, block.other_flops) == (0, 3 * ROWS * 4)
    assert cell.matrix_flops == 6 * 2 * ROWS * 4 * 4 * (5 + 4)
    assert set(by_name(cost.step)) >= {*forward, "optimizer", "loss", "other"}


def test_kernels_and_bytes_of_a_loop(logical_devices):
    import tensorflow as tf

    @tf.function(autograph=False)
    def looped(a):
        return tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, tf.nn.relu(x)), [tf.constant(0), a])[1]

    found = graph_costs(looped.get_concrete_function(tf.ones((3, 7))).graph, {})
    assert found.num_kernels == 5
    assert found.num_bytes["float32"] == 5 * 2 * 4 * 21


def test_loop_whose_length_depends_on_data(logical_devices):
    import keras
    import tensorflow as tf

    class Endless(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(4, 4))

        def call(self, x):
            return tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: (y @ self.kernel,), (x,))[0]

        def compute_output_shape(self, shape):
            return shape

    model = keras.Sequential([keras.Input((4,)), Endless()])
    with pytest.raises(WorkloadError, match="cannot be counted: how often it runs depends on data"):
        get_cost(model, replica_batch_size=ROWS)


def test_model_without_data(logical_devices):
    import keras

    cost = get_cost(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), replica_batch_size=16)
    assert (cost.step, cost.forward.matrix_flops, cost.replica_batch_size) == (None, 2 * 16 * 4 * 2, 16)
    with pytest.raises(WorkloadError, match=r"get_cost takes a Keras model with known inputs .* without data\."):
        get_cost(keras.Sequential([keras.layers.Dense(2)]))


def test_arguments_that_need_data_are_refused_without(logical_devices):
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(WorkloadError, match=r"Received as well: y, replica_batchsize, loss\. Leave them out, or give"):
        get_cost(model, None, [1, 2], replica_batchsize=8, loss="nonsense")
    with pytest.raises(WorkloadError, match="y without x"):
        get_cost("image_classification", y=[1, 2])


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_accumulation_updates_the_weights_once_per_step(logical_devices, policy):
    import keras
    import tensorflow as tf

    from tfaccel.planning.plan import Plan
    from tfaccel.training.run.timed_steps import TimedSteps

    def build():
        return keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, dtype=policy)])

    def cost(accumulation_steps):
        fields = {"global_batch_size": 32, "accumulation_steps": accumulation_steps, "dtype_policy": policy}
        plan = Plan(strategy="none", devices=("CPU:0",), **fields)
        steps = TimedSteps(work, plan, tf.distribute.get_strategy(), seed=0)
        try:
            return steps.cost()
        finally:
            steps.close()

    def optimizer():
        adam = keras.optimizers.Adam()
        return keras.optimizers.LossScaleOptimizer(adam) if policy == "mixed_float16" else adam

    x = np.zeros((64, 64), "float32")
    work = Workload.of(build, x, x, batch_size=32, loss="mse", optimizer=optimizer)
    one, four = cost(1), cost(4)
    assert one.matrix_flops == four.matrix_flops
    once, in_four = (next(row for row in found.rows if row.name == "optimizer") for found in (one, four))
    gradients = 4 * (64 * 64 + 64)
    accumulated = in_four.least_bytes - once.least_bytes  # read a gradient, read and write the sum; later, clear it
    assert 6 * gradients < accumulated < 12 * gradients
    assert once.least_bytes > 7 * gradients


def test_repeated_cost():
    row = LayerCost(name="a", matrix_flops=2, other_flops=3, num_bytes={"float32": 4}, least_bytes=1, num_kernels=6)
    twice = StepCost(rows=(row,), num_unsized=5).repeated(2)
    assert (twice.flops, twice.bytes_accessed, twice.least_bytes, twice.num_kernels) == (10, 8, 2, 12)
    assert twice.num_unsized == 5


def test_what_no_layer_writes_is_of_no_layer(logical_devices):
    import tensorflow as tf

    from tfaccel.costs.graph_costs import layer_scope

    weights = [tf.Variable(tf.zeros((6, 4))) for _ in range(2)]

    def step(x):
        with tf.GradientTape() as tape:
            hidden = tf.exp(x)
            parts = []
            for number, weight in enumerate(weights):
                with tf.name_scope(layer_scope(number)):
                    parts.append(hidden @ weight)
            loss = tf.reduce_sum(parts[0] * parts[1])
        return tape.gradient(loss, weights)

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((ROWS, 6))).graph
    rows = by_name(graph_costs(graph, {0: "one", 1: "other one"}))
    assert rows["one"].least_bytes == rows["other one"].least_bytes  # whichever reads `hidden` first
