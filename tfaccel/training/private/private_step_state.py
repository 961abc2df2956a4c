"""What the graph of a step keeps from one step to the next, although no checkpoint holds it.

Which operations of a graph write to a variable is private to TensorFlow. If its names are missing, variables are not
looked at.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.private_pipelines import get_nodes, is_python, is_random

_READS_AN_ITERATOR = re.compile(r"IteratorGetNext(Sync)?")  # the engine's own is read by `IteratorGetNextAsOptional`
_CHANGES_A_TABLE = re.compile(r"LookupTable(Insert|Import|Remove)(V2)?")

_TAKES_OR_WRITES = re.compile(
    r"IteratorGetNext(Sync|AsOptional)?|Queue(Enqueue|Dequeue)\w*|(Uns|S)tage|WriteFile|PrintV2|Write\w*Summary"
)

SCRATCH = "tfaccel_scratch"  # an attribute of variables that a resumed run may begin anew

_DRAWS = (
    "The {} draws random numbers from a state that no checkpoint holds ({}): call `keras.random` with a "
    "`keras.random.SeedGenerator` that is an attribute of the layer or model"
)
_RUNS_PYTHON = (
    "The {} runs Python code ({}), which may draw random numbers or keep a state: write it with `keras.ops` or "
    "TensorFlow's operations"
)
_READS = "The {} reads from an iterator of its own ({}), whose position no checkpoint holds: pass all data to `fit`"
_TABLE = "The {} changes a lookup table ({}), which no checkpoint holds: fill it before training"
_CHANGES = (
    "The {} changes a variable that no checkpoint holds ({}): make it with `add_weight`, or make the seed generator, "
    "layer or metric that it belongs to an attribute of the model"
)
_KINDS: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (is_random, _DRAWS),
    (is_python, _RUNS_PYTHON),
    (lambda node: _READS_AN_ITERATOR.fullmatch(node.op), _READS),
    (lambda node: _CHANGES_A_TABLE.fullmatch(node.op), _TABLE),
)


def unsaved_state(graph: Any, saved: Iterable[tf.Variable] | None, *, what: str) -> str:
    """What a traced function keeps apart from some variables, and the change that helps; "" if nothing is known.

    Args:
        graph: of the function, with the functions that it calls.
        saved: the variables that a checkpoint holds; None if other variables need not be found.
        what: what the function is, in words.
    """
    for node in get_nodes(graph.as_graph_def()):
        for is_of_kind, reason in _KINDS:
            if is_of_kind(node):
                return reason.format(what, _named(node))
    changed = next(iter(() if saved is None else _changed_variables(graph, saved)), "")
    return changed and _CHANGES.format(what, changed)


def what_cannot_run_again(graph: Any) -> str:
    """What a step takes from an iterator or a queue, or puts out, which cannot be put back; "" if nothing is known."""
    found = next((node for node in get_nodes(graph.as_graph_def()) if _TAKES_OR_WRITES.fullmatch(node.op)), None)
    return "" if found is None else f"it takes or puts out something that cannot be put back ({_named(found)})"


def changed_tables(graph: Any) -> list[LookupTable]:
    """The lookup tables that a step changes."""
    nodes = [node for node in get_nodes(graph.as_graph_def()) if _CHANGES_A_TABLE.fullmatch(node.op)]
    kinds = sorted({tuple(tf.as_dtype(node.attr[name].type).name for name in ("Tin", "Tout")) for node in nodes})
    variables = {id(variable.handle) for variable in graph.variables}
    found: list[LookupTable] = []
    for handle, _ in graph.captures if kinds else ():
        if handle.dtype != tf.resource or id(handle) in variables:
            continue
        for kind in kinds:
            table = LookupTable(handle, *kind, name=f"lookup table {len(found)}")
            with contextlib.suppress(tf.errors.OpError):  # another kind of table, or no table
                table.assign(table.numpy())
                found.append(table)
    return found


class LookupTable:
    """The contents of a mutable lookup table, which can be taken and assigned as those of a variable.

    Args:
        handle: the table's resource.
        keys, values: the types of its keys and values.
        name: what to call it.
    """

    def __init__(self, handle: tf.Tensor, keys: str, values: str, *, name: str) -> None:
        self._handle, self._types, self.name = handle, (keys, values), name
        self.shape, self.dtype = tf.TensorShape([0]), tf.resource

    def numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """Its keys in order, and their values."""
        keys, values = self._types
        found = tf.raw_ops.LookupTableExportV2(table_handle=self._handle, Tkeys=keys, Tvalues=values)
        keys, values = (one.numpy() for one in found)
        order = np.lexsort(keys.reshape(len(keys), -1).T) if len(keys) else np.zeros(0, int)
        return keys[order], values[order]

    def assign(self, contents: tuple[np.ndarray, np.ndarray]) -> None:
        """Replaces the contents."""
        keys, values = (tf.constant(one, kind) for one, kind in zip(contents, self._types, strict=True))
        tf.raw_ops.LookupTableImportV2(table_handle=self._handle, keys=keys, values=values)


def _named(node: Any) -> str:
    """The type of an operation, and where it is: `RandomUniform of model/noise/random_uniform`."""
    place = re.sub(r"^(while/)+", "", node.name).rpartition("/")[0]
    return f"{node.op} of {place}" if place else str(node.op)


def outside_variables(graph: Any, saved: Iterable[tf.Variable]) -> list[tf.Variable]:
    """The other variables that a graph reads, and does not write to, in the order in which it does."""
    return [variable for variable, writes in _other_variables(graph, saved) if not writes]


def _changed_variables(graph: Any, saved: Iterable[tf.Variable]) -> Iterator[str]:
    """The names of the other variables that a graph writes to."""
    return (variable.name.removesuffix(":0") for variable, writes in _other_variables(graph, saved) if writes)


def _other_variables(graph: Any, saved: Iterable[tf.Variable]) -> Iterator[tuple[tf.Variable, bool]]:
    """The other variables that a graph uses, each with whether the graph writes to it."""
    try:
        from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs as accesses
    except ImportError:
        return
    known = {id(variable.handle) for variable in saved}
    variables = {id(variable.handle): variable for variable in graph.variables}  # in no order, unlike the captures
    for outer, handle in graph.captures:
        variable = None if id(outer) in known else variables.get(id(outer))
        if variable is not None and not getattr(variable, SCRATCH, False):
            yield variable, any(handle is one for user in handle.consumers() for one in accesses(user)[1])
