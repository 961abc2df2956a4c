"""`ReduceClock`: its sum grows in a graph, and is none of the variables whose values a step is compared by."""

import tensorflow as tf

from tfaccel.training.steps.clocks import ReduceClock


def test_a_time_is_no_variable_of_the_graph(logical_devices):
    clock, weight = ReduceClock(), tf.Variable(2.0)
    step = tf.function(lambda x: clock.timed([x], lambda: x * weight)).get_concrete_function(tf.constant(1.0))
    assert [one is weight for one in step.graph.variables] == [True]
    assert float(step(tf.constant(3.0))) == 6.0
    assert clock.seconds > 0.0
