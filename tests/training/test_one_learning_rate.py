"""The learning rate is computed once per graph: fewer operations, and bit-identical results."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.training.private.private_api import one_learning_rate

pytestmark = pytest.mark.usefixtures("logical_devices")

SHAPES = ((3,), (2, 3), (4, 4), ())


def cosine():
    return keras.optimizers.schedules.CosineDecay(0.1, 5, warmup_steps=2)


OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(cosine(), use_ema=True, ema_overwrite_frequency=2),
    "accumulating": lambda: keras.optimizers.AdamW(cosine(), gradient_accumulation_steps=2),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(cosine(), weight_decay=0.1)),
    "sgd": lambda: keras.optimizers.SGD(cosine(), momentum=0.5, nesterov=True, weight_decay=0.1),
}


def updated(make, context):
    """Weights and state after five optimizer steps, and the number of operations in the graph."""
    random = np.random.default_rng(0)
    variables = [keras.Variable(random.normal(size=shape), dtype="float32") for shape in SHAPES]
    optimizer = make()
    optimizer.build(variables)

    @tf.function
    def apply(*gradients):
        with context(optimizer):
            optimizer.apply(list(gradients), variables)

    for _ in range(5):
        gradients = [tf.constant(random.normal(size=shape), tf.float32) for shape in SHAPES]
        apply(*gradients)
    graph = apply.get_concrete_function(*gradients).graph.as_graph_def()
    num_operations = len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
    return [np.asarray(v) for v in [*variables, *optimizer.variables]], num_operations


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_the_same_to_the_last_bit(name):
    plain, most = updated(OPTIMIZERS[name], lambda optimizer: contextlib.nullcontext())
    values, num_operations = updated(OPTIMIZERS[name], one_learning_rate)
    for value, wanted in zip(values, plain, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert num_operations < 0.9 * most


def test_an_optimizer_is_left_as_it_was():
    optimizer = OPTIMIZERS["adamw"]()
    before = dict(vars(optimizer))
    with one_learning_rate(optimizer):
        assert vars(optimizer).keys() != before.keys()
    assert vars(optimizer) == before
