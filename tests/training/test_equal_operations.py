"""What is put into a graph once: fewer operations, and the same numbers to the last bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.training import private_api
from tfaccel.training.private_tensorflow import equal_operations_once

pytestmark = pytest.mark.usefixtures("logical_devices")

SHAPES = ((3,), (2, 3), (4, 4), ())
OPTIMIZERS = {
    "adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.1, amsgrad=True, use_ema=True, ema_overwrite_frequency=2),
    "adamax": lambda: keras.optimizers.Adamax(0.1, clipnorm=1.0),
    "adamw": lambda: keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.1, 5, warmup_steps=2)),
    "accumulating": lambda: keras.optimizers.AdamW(0.1, gradient_accumulation_steps=2),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lamb": lambda: keras.optimizers.Lamb(0.1),
    "lion": lambda: keras.optimizers.Lion(0.1, weight_decay=0.1),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1, weight_decay=0.1)),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.5, nesterov=True, weight_decay=0.1),
}
REPEATS_LITTLE = ("adagrad", "sgd")  # has few operations that are the same for all variables


def updated(make, *, once):
    """Weights and state after five steps of an optimizer, and the number of operations of its graph."""
    random = np.random.default_rng(0)
    variables = [keras.Variable(random.normal(size=shape), dtype="float32") for shape in SHAPES]
    optimizer = make()
    optimizer.build(variables)

    @tf.function
    def apply(*gradients):
        if not once:
            optimizer.apply(list(gradients), variables)
            return
        with private_api.calculated_once(optimizer):
            optimizer.apply(list(gradients), variables)

    for _ in range(5):
        gradients = [tf.constant(random.normal(size=shape), tf.float32) for shape in SHAPES]
        apply(*gradients)
    graph = apply.get_concrete_function(*gradients).graph.as_graph_def()
    num_operations = len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
    return [np.asarray(v) for v in [*variables, *optimizer.variables]], num_operations


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_the_same_to_the_last_bit(name):
    plain, most = updated(OPTIMIZERS[name], once=False)
    values, num_operations = updated(OPTIMIZERS[name], once=True)
    for value, wanted in zip(values, plain, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert num_operations < most if name in REPEATS_LITTLE else num_operations < 0.9 * most


def kinds(function, *arguments):
    return [operation.type for operation in function.get_concrete_function(*arguments).graph.get_operations()]


def test_a_variable_is_read_again_after_it_changed():
    variable = tf.Variable(1.0)

    @tf.function
    def values(x):
        with equal_operations_once():
            before, same = x * variable, x * variable
            variable.assign_add(1.0)
            after = x * variable
        return before, same, after

    assert [float(value) for value in values(tf.constant(2.0))] == [2, 2, 4]
    assert kinds(values, tf.constant(2.0)).count("Mul") == 2
    assert kinds(values, tf.constant(2.0)).count("ReadVariableOp") == 2


def test_a_variable_is_read_again_after_a_branch_changed_it():
    variable = tf.Variable(1.0)

    @tf.function
    def values(x):
        with equal_operations_once():
            before = x * variable
            tf.cond(x > 1, lambda: variable.assign(5.0), lambda: variable)
            return before, x * variable

    assert [float(value) for value in values(tf.constant(2.0))] == [2, 10]


def test_operations_differ_that_wait_for_others_or_lie_on_another_device():
    @tf.function
    def values(x, y):
        with equal_operations_once():
            first = x + x
            with tf.control_dependencies([first]):
                later = x + x
            with tf.device("CPU:1"):
                elsewhere = x + x
            return first, x + x, later, elsewhere, x + y, tf.cast(x, tf.float64), tf.cast(x, tf.int32)

    one, two = tf.constant(1.0), tf.constant(2.0)
    function = values.get_concrete_function(one, two)
    additions = [operation for operation in function.graph.get_operations() if operation.type == "AddV2"]
    assert len(additions) == 4
    assert additions[1].control_inputs == [additions[0]]
    assert "CPU:1" in additions[2].device
    assert [float(value) for value in values(one, two)] == [2, 2, 2, 2, 3, 1, 1]


def test_operations_differ_on_one_device_after_the_other():
    @tf.function
    def values(x):
        sums = []
        with equal_operations_once():
            for number in (0, 1, 0, 1):
                with tf.device(f"CPU:{number}"):
                    sums.append(x + x)
        return sums

    graph = values.get_concrete_function(tf.constant(1.0)).graph
    devices = [operation.device[-1] for operation in graph.get_operations() if operation.type == "AddV2"]
    assert devices == ["0", "1", "0", "1"]


def test_random_numbers_are_drawn_each_time():
    @tf.function
    def values():
        with equal_operations_once():
            return tf.random.uniform([8]), tf.random.uniform([8])

    first, second = values()
    assert not np.array_equal(first, second)


def test_each_operation_stays_where_gradients_are_recorded():
    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with equal_operations_once():
                y = x * x + x * x
        return tape.gradient(y, x)

    assert float(slope(tf.constant(3.0))) == 12
    assert kinds(slope, tf.constant(3.0)).count("Mul") > 2


def test_a_graph_is_left_as_it_was():
    @tf.function
    def values(x):
        graph = tf.compat.v1.get_default_graph()
        before = graph._create_op_internal
        with equal_operations_once():
            inside = graph._create_op_internal
            with equal_operations_once():
                assert graph._create_op_internal is inside
            assert graph._create_op_internal is inside
        assert inside != before
        assert graph._create_op_internal == before
        return x + 1.0, x + 1.0

    assert kinds(values, tf.constant(1.0)).count("AddV2") == 2


def test_nothing_changes_in_eager_mode():
    with equal_operations_once():
        assert float(tf.constant(1.0) + 1.0) == 2
