"""The private API of TensorFlow: collectives, functions, graphs and what they keep, kernels, converters, saved models.

Which operations of a graph write to a variable is private to TensorFlow. If its names are missing, variables are not
looked at.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.private_pipelines import get_nodes, is_python, is_random
from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_layers import patched
from tfaccel.training.steps.overrides import attributes_of_each

GROUPS_PER_STRATEGY = 1000
_MODULE_VERSION = 5  # of TensorFlow's XlaCallModule: the first that takes StableHLO

logger = logging.getLogger("tfaccel")

_numbers: weakref.WeakKeyDictionary[tf.distribute.Strategy, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count(1).__next__  # not 0: `Model.fit` under a strategy of its own may have used those keys
_KEPT = ("tfaccel", "tensorflow")  # packages whose functions do not wait for other replicas
_XLA_IS_OFF = (
    "XLA stays off for %s: with several replicas, a tf.function in a step is traced as part of the step, and XLA "
    "cannot compile sums over the replicas."
)
_said: set[str] = set()
_READS_AN_ITERATOR = re.compile(r"IteratorGetNext(Sync)?")  # the engine's own is read by `IteratorGetNextAsOptional`
_CHANGES_A_TABLE = re.compile(r"LookupTable(Insert|Import|Remove)(V2)?")
_VALUES_OF_TABLES = ("int64", "int32", "float32", "float64", "string", "bool")
_TAKES_OR_WRITES = re.compile(
    r"IteratorGetNext(Sync|AsOptional)?|Queue(Enqueue|Dequeue)\w*|(Uns|S)tage|WriteFile|PrintV2|Write\w*Summary"
)
_WRITES_A_VARIABLE = re.compile(r"(assign(_add|_sub)?_variable_op|resource_scatter_(nd_)?[a-z]+)")
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


def global_seed() -> int | None:
    """The seed passed to `tf.random.set_seed`, or None; there is no public getter."""
    from tensorflow.python.eager import context

    return context.global_seed()


def keep_collectives_apart(strategy: tf.distribute.Strategy) -> None:
    """Gives each strategy of this process separate collectives. Call it before the strategy's first step is traced.

    TensorFlow keeps a collective's parameters for the lifetime of the process, under keys that restart with each
    strategy object. A second `MirroredStrategy`, for example after running a notebook cell twice, then fails with
    "Shape mismatch in the collective instance". TensorFlow's own tests set other keys (`_collective_key_base`).
    If the private names are missing, the strategy is left unchanged.
    """
    if strategy in _numbers:
        return
    _numbers[strategy] = number = _next_number()
    extended = strategy.extended
    operations = {id(o): o for o in (getattr(extended, f"_{n}", None) for n in ("collective_ops", "cross_device_ops"))}
    for operation in operations.values():
        groups = getattr(getattr(operation, "_collective_keys", None), "_instance_key_table", {})
        for launcher in getattr(operation, "_launchers", ()):
            own = launcher._group_key + number * GROUPS_PER_STRATEGY
            if launcher._group_key in groups:
                groups.setdefault(own, dict(groups[launcher._group_key]))
                launcher._group_key = own


def convert_to_numbers() -> None:
    """Lets `int()` and `float()` take a distributed variable as any other: `float(model.optimizer.learning_rate)`."""
    from tensorflow.python.distribute import values

    kind = private_part(values, "DistributedVariable", package="tensorflow")
    for name, convert in {"__int__": int, "__float__": float}.items():
        if not hasattr(kind, name):
            setattr(kind, name, lambda self, convert=convert: convert(self.numpy()))


def without_recording() -> contextlib.AbstractContextManager[None]:
    """A context in which no `tf.GradientTape` records; the public way needs the tape."""
    from tensorflow.python.eager import record

    return private_part(record, "stop_recording", package="tensorflow")()


def update_context(replica: int) -> contextlib.AbstractContextManager[None]:
    """A context in which distributed variables are those of one local replica, as within `strategy.extended.update`.

    What an optimizer's schedule or constraint assigns to a variable of its own then changes that replica's only.
    """
    from tensorflow.python.distribute import distribute_lib

    return private_part(distribute_lib, "UpdateContext", package="tensorflow")(replica)


def updates_of_copies() -> contextlib.AbstractContextManager[None]:
    """While tracing one device outside of strategies: an update of a distributed variable updates each of its copies.

    `tf.train.ExponentialMovingAverage`, for example, updates its averages so.
    """
    from tensorflow.python.distribute import distribute_lib, values

    kind = private_part(distribute_lib, "_DefaultDistributionExtended", package="tensorflow")
    original, distributed = private_part(kind, "_update", package="tensorflow"), values.DistributedVariable

    def update(self: Any, variable: Any, *args: Any) -> Any:
        copies = variable.values if isinstance(variable, distributed) else [variable]
        results = [original(self, one, *args) for one in copies]
        return results[0]

    return patched(kind, _update=update)


def operations_of_xla() -> frozenset[str] | None:
    """The names of the TensorFlow operations that XLA can compile; None if this TensorFlow build does not list them.

    With public API, compilation reports only the first unsupported operation; this list makes it possible to name all.
    """
    try:
        from tensorflow.python.framework import kernels

        registered = kernels.get_all_registered_kernels().kernel
    except (ImportError, AttributeError):
        return None
    return frozenset(kernel.op for kernel in registered if kernel.device_type == "XLA_CPU_JIT") or None


def one_scale_per_kernel(converter: Any) -> None:
    """Makes a LiteRT converter quantize weights per tensor instead of per channel; there is no public option."""
    private_part(converter, "_experimental_disable_per_channel", package="tensorflow")
    converter._experimental_disable_per_channel = True


@contextlib.contextmanager
def variables_in_float32(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Temporarily replaces float16, bfloat16 and float64 variables by float32 copies."""
    others = [one for one in variables if one.dtype in ("float16", "bfloat16", "float64")]
    copies = ((one, tf.Variable(tf.cast(one._value, tf.float32), name=one.name)) for one in others)
    with attributes_of_each((one, {"_value": copy, "_dtype": "float32"}) for one, copy in copies):
        yield


def metric_directions(model: keras.Model) -> list[tuple[str, str]]:
    """Pairs of a metric's name and its better direction, "up" or "down", if the metric's class defines it."""
    metrics = [inner for one in model.metrics for inner in (one, *getattr(one, "metrics", ()))]
    return [(one.name, one._direction) for one in metrics if getattr(one, "_direction", None) in ("up", "down")]


def parse_saved_model(content: bytes) -> Any:
    """Parses the content of a `saved_model.pb` file; its protocol buffer class has no public name."""
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel.FromString(content)


def xla_module(module: str, operands: Sequence[tf.Tensor], results: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Calls the function `main` of a StableHLO module, which XLA compiles for NVIDIA GPUs.

    Args:
        module: as text.
        operands, results: the arguments, and the shapes and dtypes of what is returned.
    """
    from tensorflow.compiler.tf2xla.python import xla

    call = private_part(xla, "call_module", package="tensorflow")
    shapes, dtypes = [one.shape for one in results], [one.dtype for one in results]
    return list(call(operands, version=_MODULE_VERSION, module=module, Sout=shapes, Tout=dtypes, platforms=("CUDA",)))


def functions_inlined(where: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
    """While tracing: calls of `tf.function`s become part of the graph that they are called in, where `where()` holds.

    In a graph of its own, a replica cannot wait for the others (`merge_call`), and its tensors cannot be used outside.
    """
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.eager.polymorphic_function import autograph_util, polymorphic_function

    kind = private_part(polymorphic_function, "Function", package="tensorflow")
    original, converted = kind.__call__, private_part(autograph_util, "py_func_from_autograph", package="tensorflow")

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        python = self.python_function
        if not where() or getattr(python, "__module__", "").partition(".")[0] in _KEPT:
            return original(self, *args, **kwargs)
        name = getattr(python, "__qualname__", "a function")
        if getattr(self, "_jit_compile", None) and name not in _said:
            _said.add(name)
            logger.warning(_XLA_IS_OFF, name)
        if tf.executing_eagerly() or not getattr(self, "_autograph", True):
            return python(*args, **kwargs)
        with private_part(ag_ctx, "ControlStatusCtx", package="tensorflow")(ag_ctx.Status.ENABLED):
            return converted(python)(*args, **kwargs)

    return patched(kind, __call__=call)


@contextlib.contextmanager
def unoptimized_calls() -> Iterator[None]:
    """Within the block, TensorFlow does not optimize the graphs that this thread calls: that pays off in many calls."""
    from tensorflow.python.eager import context

    settings = private_part(context, "context", package="tensorflow")()
    before = private_part(settings, "function_call_options", package="tensorflow")
    options = private_part(context, "FunctionCallOptions", package="tensorflow")
    config = tf.compat.v1.ConfigProto.FromString(before.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    settings.function_call_options = options(before.executor_type, config)
    try:
        yield
    finally:
        settings.function_call_options = before


@contextlib.contextmanager
def captures_replaced(function: Any, captures: Mapping[int, tf.Tensor]) -> Iterator[None]:
    """Within the block, a concrete function takes other tensors in place of those that it captured.

    Args:
        captures: by the id of what they replace.
    """
    before = private_part(function, "captured_inputs", package="tensorflow")
    function.set_external_captures([captures.get(id(one), one) for one in before])
    try:
        yield
    finally:
        function.set_external_captures(before)


@contextlib.contextmanager
def writes_undone() -> Iterator[None]:
    """While tracing: what the block writes to plain variables is taken back at its end."""
    from tensorflow.python.ops import gen_resource_variable_ops as of_variables
    from tensorflow.python.ops import gen_state_ops as of_slices

    graph, traces = tf.compat.v1.get_default_graph(), same_trace()
    before: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}

    def writing(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(handle: tf.Tensor, *args: Any, **kwargs: Any) -> Any:
            value = next(reversed([one for one in (*args, *kwargs.values()) if isinstance(one, tf.Tensor)]), None)
            if traces() and id(handle) not in before and value is not None:
                outside = contextlib.nullcontext() if tf.executing_eagerly() else graph.as_default()  # of a condition
                with outside, tf.device(handle.device):
                    before[id(handle)] = handle, of_variables.read_variable_op(handle, value.dtype)
            return original(handle, *args, **kwargs)

        return write

    with contextlib.ExitStack() as stack:
        for module in (of_variables, of_slices):
            names = [name for name in vars(module) if _WRITES_A_VARIABLE.fullmatch(name)]
            stack.enter_context(patched(module, **{name: writing(getattr(module, name)) for name in names}))
        yield
    for handle, value in before.values():
        with tf.device(handle.device):
            of_variables.assign_variable_op(handle, value)


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
    changed = [] if saved is None else outside_variables(graph, saved, written=True)
    return _CHANGES.format(what, changed[0].name.removesuffix(":0")) if changed else ""


def what_cannot_run_again(graph: Any) -> str:
    """What a step takes from an iterator or a queue, or puts out, which cannot be put back; "" if nothing is known."""
    found = next((node for node in get_nodes(graph.as_graph_def()) if _TAKES_OR_WRITES.fullmatch(node.op)), None)
    return "" if found is None else f"it takes or puts out something that cannot be put back ({_named(found)})"


def changed_tables(graph: Any) -> list[LookupTable]:
    """The lookup tables that a step changes."""
    nodes = [node for node in get_nodes(graph.as_graph_def()) if _CHANGES_A_TABLE.fullmatch(node.op)]
    kinds = sorted({(_dtype(node, "Tin"), _dtype(node, "Tout") or one) for node in nodes for one in _VALUES_OF_TABLES})
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


def _dtype(node: Any, name: str) -> str:
    return tf.as_dtype(node.attr[name].type).name if node.attr[name].type else ""  # of what is removed, no values


class LookupTable:
    """The contents of a mutable lookup table, which can be taken and assigned as those of a variable."""

    def __init__(self, handle: tf.Tensor, keys: str, values: str, *, name: str) -> None:
        self._handle, self._types, self.name = handle, {"Tkeys": keys, "Tvalues": values}, name
        self.shape, self.dtype = tf.TensorShape([0]), tf.resource

    def numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """Its keys and their values; of a `DenseHashTable` all buckets, which must be assigned in this order."""
        keys, values = tf.raw_ops.LookupTableExportV2(table_handle=self._handle, **self._types)
        return keys.numpy(), values.numpy()

    def assign(self, contents: tuple[np.ndarray, np.ndarray]) -> None:
        """Replaces the contents."""
        keys, values = (tf.constant(one, kind) for one, kind in zip(contents, self._types.values(), strict=True))
        tf.raw_ops.LookupTableImportV2(table_handle=self._handle, keys=keys, values=values)

    @staticmethod
    def in_order(contents: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The keys in order, and their values, without buckets that are empty: those have a key in common."""
        keys, first, counts = np.unique(contents[0], axis=0, return_index=True, return_counts=True)
        return keys[counts == 1], contents[1][first[counts == 1]]


def _named(node: Any) -> str:
    """The type of an operation, and where it is: `RandomUniform of model/noise/random_uniform`."""
    place = re.sub(r"^(while/)+", "", node.name).rpartition("/")[0]
    return f"{node.op} of {place}" if place else str(node.op)


def outside_variables(graph: Any, saved: Iterable[tf.Variable], *, written: bool = False) -> list[tf.Variable]:
    """The other variables that a graph reads, and does not write to, or those that it writes to, in its order."""
    try:
        from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs as accesses
    except ImportError:
        return []
    known = {id(variable.handle) for variable in saved}
    variables = {id(variable.handle): variable for variable in graph.variables}  # in no order, unlike the captures
    found = []
    for outer, handle in graph.captures:
        variable = None if id(outer) in known else variables.get(id(outer))
        if variable is not None and not getattr(variable, SCRATCH, False):
            writes = any(handle is one for user in handle.consumers() for one in accesses(user)[1])
            if writes == written:
                found.append(variable)
    return found


def same_trace() -> Callable[[], bool]:
    """A function that says whether the thread that calls it is this one, or traces for this one.

    What is replaced while tracing is replaced in the whole process. A strategy traces its replicas in threads of their
    own, inside the graph of the thread that runs them; a thread that prepares data has graphs of its own.
    """
    thread, graph = threading.get_ident(), _outermost_graph()
    return lambda: threading.get_ident() == thread or _outermost_graph() is graph


def in_trace(traces: Callable[[], bool], replaced: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """A function that calls `replaced` where `traces()` holds, which `same_trace` returned, and else `original`."""
    return lambda *args, **kwargs: (replaced if traces() else original)(*args, **kwargs)


def _outermost_graph() -> tf.Graph:
    """The graph around all that this thread is tracing; each thread begins with one of its own."""
    graph = tf.compat.v1.get_default_graph()
    while (outer := getattr(graph, "outer_graph", None)) is not None:
        graph = outer
    return graph
