"""Keras's global seed generator under a strategy; `keras.random` functions use it if called without a seed.

Keras stores it in thread-local state and creates it on first use. Replicas are traced in separate threads, in which
variables cannot be created.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_layers import patch_lock, patched
from tfaccel.training.private.private_tensorflow import in_trace, same_trace
from tfaccel.training.steps.overrides import attributes_of_each, instance_attributes

_NAME = "global_seed_generator"
SEED_STRIDE = 1_000_003  # a prime, so that replicas' seeds do not coincide with those of other layers

_STILL = 0.9  # what is drawn from [0, 1): dropout keeps all of it
_STILL_NORMAL = 0.3
_shuffled = dict.fromkeys(("random_shuffle", "stateless_shuffle"), lambda given: tf.identity(given["value"]))


def _generator() -> keras.random.SeedGenerator | None:
    """The generator; one whose state has no value is removed.

    Keras makes it while it traces a `tf.function`. If that raises an error, the state is never initialized.
    """
    from keras.src.backend.common import global_state

    found = private_part(global_state, "get_global_attribute")(_NAME)
    if found is not None and tf.executing_eagerly() and not found.state._value.is_initialized():
        found = None
        private_part(global_state, "set_global_attribute")(_NAME, None)
    return found


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

    generator = _generator()
    original = private_part(seed_generator, _NAME)
    if generator is None:
        yield
        return
    own = in_trace(same_trace(), lambda: generator, original)
    with patched(seed_generator, **{_NAME: own}):
        yield


def noting_stateful_random(
    used: list[bool], replica_of_thread: Callable[[], int]
) -> contextlib.AbstractContextManager[None]:
    """While tracing: records operations that keep their random state in the graph (`tf.random`).

    Args:
        used: a list to which True is appended for each such operation.
        replica_of_thread: returns the index of the replica being traced; each replica draws different numbers.
    """
    from tensorflow.python.framework import random_seed

    original, traces = private_part(random_seed, "get_seed"), same_trace()

    def get_seed(op_seed: int | None) -> tuple[Any, Any]:
        if not traces():
            return original(op_seed)
        used.append(True)
        graph_seed, seed = original(op_seed)
        offset = replica_of_thread() * SEED_STRIDE
        return graph_seed, seed if seed is None or not offset else (seed + offset) % (2**31 - 1)

    return patched(random_seed, get_seed=get_seed)


@contextlib.contextmanager
def refusing_unseeded_random(
    refuse: Callable[[], NoReturn], *, when: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """While tracing: calls `refuse` where an operation draws random numbers without a `SeedGenerator` of its own.

    Args:
        when: whether the current thread may not draw such numbers at the moment.
    """
    from keras.src.random import seed_generator
    from tensorflow.python.framework import random_seed

    traces = same_trace()

    def guarded(module: Any, name: str) -> dict[str, Callable[..., Any]]:
        original = private_part(module, name)
        return {name: lambda *args, **kwargs: refuse() if traces() and when() else original(*args, **kwargs)}

    with (
        patch_lock,
        instance_attributes(seed_generator, guarded(seed_generator, _NAME)),
        instance_attributes(random_seed, guarded(random_seed, "get_seed")),
    ):
        yield


@contextlib.contextmanager
def still_random(
    used: list[bool], *, when: Callable[[], bool] = lambda: True, seeded: list[tf.Tensor] | None = None
) -> Iterator[None]:
    """While tracing: operations that draw random numbers give constants, the same ones for any number of rows.

    So do the functions of `random` and `numpy.random`, whose numbers become constants of the graph anyway. In a graph,
    an operation whose seed is the same on all replicas, such as a constant or a count of steps, draws what it does.

    Args:
        used: a list to which True is appended for each operation that gives constants.
        seeded: a list to which the results of those with such a seed are appended.
    """
    from tensorflow.python.ops import gen_random_ops, gen_stateful_random_ops, gen_stateless_random_ops
    from tensorflow.python.ops import gen_stateless_random_ops_v2 as gen_stateless_random_ops_v2

    modules = (gen_random_ops, gen_stateful_random_ops, gen_stateless_random_ops, gen_stateless_random_ops_v2)
    drawing = _Drawing(used, when, [] if seeded is None else seeded)
    next_seed = in_trace(
        drawing.traces, drawing.next_of(keras.random.SeedGenerator.next), keras.random.SeedGenerator.next
    )

    def still(module: Any) -> dict[str, Any]:
        return {name: drawing.still(getattr(module, name)) for name in dir(module) if name in _CONSTANTS}

    of_python = ((random, random.Random), (np.random, np.random.RandomState))
    with (
        patched(keras.random.SeedGenerator, next=next_seed),
        attributes_of_each((module, still(module)) for module in modules),
        attributes_of_each((module, _still_python(module, kind, used)) for module, kind in of_python),
    ):
        yield


def _still_python(module: Any, kind: type, used: list[bool]) -> dict[str, Callable[..., Any]]:
    """The functions of a module, each of which draws what a new generator of the kind draws first.

    Threads that prepare data draw what they would.
    """
    traces = same_trace()

    def still(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if not traces():
                return original(*args, **kwargs)
            used.append(True)
            return getattr(kind(0), name)(*args, **kwargs)

        return draw

    names = [name for name in dir(kind) if not name.startswith("_") and "seed" not in name and "state" not in name]
    return {name: still(name, getattr(module, name)) for name in names if callable(getattr(module, name, None))}


class _Drawing:
    """What a trace draws, and from which seeds: some are drawn themselves, others are the same on all replicas.

    Args:
        used, when, seeded: as for `still_random`.
    """

    def __init__(self, used: list[bool], when: Callable[[], bool], seeded: list[tf.Tensor]) -> None:
        self._used, self._when, self._seeded = used, when, seeded
        self._sources: set[tf.Operation] = set()
        self.traces = same_trace()

    def next_of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`SeedGenerator.next`, whose seeds are noted."""
        return lambda *args, **kwargs: self._noted(original(*args, **kwargs))

    def still(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """An operation that gives constants."""
        constants, signature = _CONSTANTS[original.__name__], inspect.signature(original)

        def draw(*args: Any, **kwargs: Any) -> Any:
            if not (self.traces() and self._when()):
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            seed = next((bound.arguments[name] for name in ("seed", "key") if name in bound.arguments), None)
            if original.__name__.startswith("stateless") and not self._is_random(seed):
                drawn = original(*args, **kwargs)
                self._seeded.append(drawn)
                return drawn
            self._used.append(True)
            return self._noted(constants(bound.arguments))

        return draw

    def _noted(self, drawn: Any) -> Any:
        if tf.is_symbolic_tensor(drawn):
            self._sources.add(drawn.op)
        return drawn

    def _is_random(self, seed: Any) -> bool:
        """Whether a seed is drawn, or may be: arguments of functions and loops, and eager tensors, do not tell."""
        if tf.executing_eagerly():
            return True
        tensors, seen = [seed], set[tf.Operation]()
        while tensors:
            tensor = tensors.pop()
            if not tf.is_symbolic_tensor(tensor) or tensor.op in seen:
                continue
            seen.add(tensor.op)
            if tensor.op in self._sources:
                return True
            if tensor.op.type != "Placeholder":
                tensors += tensor.op.inputs
                continue
            outer = [one for one, inner in getattr(tensor.graph, "captures", ()) if inner is tensor]
            if not outer:
                return True
            tensors += outer
        return False


def _filled(of: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], tf.Tensor]:
    """Constants of the shape that an operation is asked for, with a value made from its arguments."""

    def constants(given: dict[str, Any]) -> tf.Tensor:
        value = tf.convert_to_tensor(of(given))
        value = tf.cast(value, given.get("dtype", value.dtype))
        return tf.broadcast_to(value, given["shape"])

    return constants


def _most_likely(given: dict[str, Any]) -> tf.Tensor:
    best = tf.argmax(given["logits"], axis=-1, output_type=given["output_dtype"])
    return tf.repeat(best[:, None], given["num_samples"], axis=1)


def _by_parameter(given: dict[str, Any]) -> tf.Tensor:
    """Gamma and Poisson numbers for each parameter: the shape of the parameters comes last."""
    parameter = tf.convert_to_tensor(next(given[name] for name in ("alpha", "rate") if name in given))
    value = tf.cast(parameter, given.get("dtype", parameter.dtype))
    return tf.broadcast_to(value, tf.concat([given["shape"], tf.cast(tf.shape(value), given["shape"].dtype)], axis=0))


def _between(given: dict[str, Any]) -> Any:
    low, high = (tf.convert_to_tensor(given[name]) for name in ("minval", "maxval"))
    return low + (high - low) * 9 // 10


_normal = _filled(lambda given: _STILL_NORMAL)
_uniform = _filled(lambda given: _STILL)
_any_number = _filled(lambda given: 9)
_CONSTANTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **dict.fromkeys(("random_standard_normal", "truncated_normal"), _normal),
    **dict.fromkeys(("stateless_random_normal", "stateless_random_normal_v2"), _normal),
    **dict.fromkeys(("stateless_truncated_normal", "stateless_truncated_normal_v2"), _normal),
    **dict.fromkeys(("stateful_standard_normal_v2", "stateful_truncated_normal"), _normal),
    **dict.fromkeys(("random_uniform", "stateless_random_uniform", "stateless_random_uniform_v2"), _uniform),
    "stateful_uniform": _uniform,
    **dict.fromkeys(("random_uniform_int", "stateless_random_uniform_int"), _filled(_between)),
    **dict.fromkeys(("stateless_random_uniform_int_v2", "stateful_uniform_int"), _filled(_between)),
    **dict.fromkeys(("stateless_random_uniform_full_int", "stateless_random_uniform_full_int_v2"), _any_number),
    **dict.fromkeys(("stateful_uniform_full_int", "non_deterministic_ints"), _any_number),
    **dict.fromkeys(("multinomial", "stateless_multinomial"), _most_likely),
    **dict.fromkeys(("random_gamma", "random_poisson_v2"), _by_parameter),
    **dict.fromkeys(("stateless_random_gamma_v2", "stateless_random_gamma_v3"), _filled(lambda given: given["alpha"])),
    "stateless_random_poisson": _filled(lambda given: given["lam"]),
    **dict.fromkeys(
        ("stateless_random_binomial", "stateful_random_binomial"),
        _filled(lambda given: tf.math.floor(given["counts"] * given["probs"])),
    ),
    **dict.fromkeys(
        ("parameterized_truncated_normal", "stateless_parameterized_truncated_normal"),
        _filled(lambda given: given["means"]),
    ),
    **_shuffled,
    "rng_read_and_skip": lambda given: tf.zeros([3], tf.int64),  # of a `tf.random.Generator`, whose state stays
}
