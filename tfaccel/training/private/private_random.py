"""Keras's global seed generator, from which calls of `keras.random` without a seed draw, under a strategy.

Keras keeps it in a variable of each thread, and makes it when it is first asked for. Replicas are traced in threads of
their own, where no variable can be made.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_losses import patch_lock

_NAME = "global_seed_generator"
_SEED_STRIDE = 1_000_003


def _generator() -> keras.random.SeedGenerator | None:
    from keras.src.backend.common import global_state

    return private_part(global_state, "get_global_attribute")(_NAME)


def global_seed_state() -> keras.Variable | None:
    """The generator's state (uint32, shape (2,)), or None where there is no generator."""
    generator = _generator()
    return None if generator is None else generator.state


def distribute_global_seeds(strategy: tf.distribute.Strategy) -> None:
    """Makes the generator under a strategy, so that every replica has a state of its own.

    One that was made outside of the strategy is replaced by one in the same state. Python's random numbers, which
    Keras takes a new generator's seed from, stay as they are.
    """
    from keras.src.backend.common import global_state

    state = global_seed_state()
    if state is not None and isinstance(state._value, tf.distribute.DistributedValues):
        return
    before = random.getstate()
    with tf.init_scope(), strategy.scope():
        made = keras.random.SeedGenerator()
        if state is not None:
            made.state.assign(state.numpy())
    random.setstate(before)
    private_part(global_state, "set_global_attribute")(_NAME, made)


@contextlib.contextmanager
def same_generator_in_all_threads() -> Iterator[None]:
    """While tracing replicas: their threads draw from the generator of this thread."""
    from keras.src.random import seed_generator

    generator, original = _generator(), private_part(seed_generator, _NAME)
    if generator is None:
        yield
        return
    with patch_lock:
        seed_generator.global_seed_generator = lambda: generator
        try:
            yield
        finally:
            seed_generator.global_seed_generator = original


@contextlib.contextmanager
def noting_stateful_random(used: list[bool], replica_of_thread: Callable[[], int]) -> Iterator[None]:
    """While tracing: notes in `used` that an operation is made which keeps its random state in the graph (`tf.random`).

    Args:
        used: gets an item for each such operation.
        replica_of_thread: the replica that is being traced; each draws other numbers.
    """
    from tensorflow.python.framework import random_seed

    original = private_part(random_seed, "get_seed")

    def get_seed(op_seed: int | None) -> tuple[Any, Any]:
        used.append(True)
        graph_seed, seed = original(op_seed)
        offset = replica_of_thread() * _SEED_STRIDE
        return graph_seed, seed if seed is None or not offset else (seed + offset) % (2**31 - 1)

    with patch_lock:
        random_seed.get_seed = get_seed
        try:
            yield
        finally:
            random_seed.get_seed = original
