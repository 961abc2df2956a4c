"""Keras's global seed generator under a strategy; `keras.random` functions use it if called without a seed.

Keras stores it in thread-local state and creates it on first use. Replicas are traced in separate threads, in which
variables cannot be created.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_losses import patch_lock
from tfaccel.training.steps.overrides import instance_attributes

_NAME = "global_seed_generator"
_SEED_STRIDE = 1_000_003


def _generator() -> keras.random.SeedGenerator | None:
    from keras.src.backend.common import global_state

    return private_part(global_state, "get_global_attribute")(_NAME)


def global_seed_state() -> keras.Variable | None:
    """The generator's state (uint32, shape `(2,)`), or None if there is no generator yet."""
    generator = _generator()
    return None if generator is None else generator.state


def distribute_global_seeds(strategy: tf.distribute.Strategy) -> None:
    """Creates the generator under a strategy, so that each replica has its own state.

    A generator created outside the strategy is replaced by one with the same state. The state of Python's `random`
    module, from which Keras draws the seed of a new generator, is preserved.
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
    """While tracing replicas: makes their threads use this thread's generator."""
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
    """While tracing: records operations that keep their random state in the graph (`tf.random`).

    Args:
        used: a list to which True is appended for each such operation.
        replica_of_thread: returns the index of the replica being traced; each replica draws different numbers.
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


@contextlib.contextmanager
def refusing_unseeded_random(
    refuse: Callable[[], NoReturn], *, when: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """While tracing: calls `refuse` where an operation draws random numbers without a `SeedGenerator` of its own.

    Args:
        refuse: raises an error.
        when: whether the current thread may not draw such numbers at the moment.
    """
    from keras.src.random import seed_generator
    from tensorflow.python.framework import random_seed

    def guarded(module: Any, name: str) -> dict[str, Callable[..., Any]]:
        original = private_part(module, name)
        return {name: lambda *args, **kwargs: refuse() if when() else original(*args, **kwargs)}

    with (
        patch_lock,
        instance_attributes(seed_generator, guarded(seed_generator, _NAME)),
        instance_attributes(random_seed, guarded(random_seed, "get_seed")),
    ):
        yield
