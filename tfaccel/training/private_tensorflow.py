"""Private parts of `tf.distribute`: collectives of several strategies in one process, kept apart."""

from __future__ import annotations

import itertools
import weakref

import tensorflow as tf

GROUPS_OF_A_STRATEGY = 1000

_numbers: weakref.WeakKeyDictionary[tf.distribute.Strategy, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count().__next__


def keep_collectives_apart(strategy: tf.distribute.Strategy) -> None:
    """Gives each strategy of this process collectives of its own; to be called before its first step is traced.

    TensorFlow keeps what it knows of a collective for the life of the process, under keys that begin anew with each
    strategy object. A second `MirroredStrategy`, as after running a notebook's cell twice, then fails with "Shape
    mismatch in the collective instance"; TensorFlow's own tests choose other keys (`_collective_key_base`).
    Where the private parts are gone, the strategy is left as it is.
    """
    if strategy in _numbers:
        return
    _numbers[strategy] = number = _next_number()
    extended = strategy.extended
    operations = {id(o): o for o in (getattr(extended, f"_{n}", None) for n in ("collective_ops", "cross_device_ops"))}
    for operation in operations.values():
        keys, launchers = getattr(operation, "_collective_keys", None), getattr(operation, "_launchers", ())
        groups = getattr(keys, "_instance_key_table", {})
        for launcher in launchers if number else ():
            own = launcher._group_key + number * GROUPS_OF_A_STRATEGY
            if launcher._group_key in groups:
                groups.setdefault(own, dict(groups[launcher._group_key]))
                launcher._group_key = own
