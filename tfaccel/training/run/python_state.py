"""What a checkpoint holds of Python: callbacks, what their functions move, and the global random numbers.

A callback remembers in many ways: numbers and lists in its attributes, a dictionary that it shares with the script, a
`nonlocal` or `global` number of the function in a `LambdaCallback`, averages of the weights, a generator of its own.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import inspect
import itertools
import json
import logging
import os
import random
import sysconfig
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private.private_api import PROFILER_FLAGS
from tfaccel.training.steps.model_parts import get_variables

logger = logging.getLogger("tfaccel")

Arrays = dict[str, np.ndarray]
Place = tuple[Any, Callable[[Any], None], str]  # a value, a function that puts another one there, and the module
_CSV = "csv"
_LIBRARIES = ("keras", "tensorflow", "tfaccel")
_OF_KERAS = ("_model", "params", "validation_data")  # attributes that Keras sets
_SCALARS = (bool, int, float, str)
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "deque": collections.deque}
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_BEGINS_ANEW = "The callback %s holds another kind of %r than in the checkpoint, so that begins anew."
_SAMPLED_BYTES = 1 << 24  # of a larger array, so many bytes at equal distances tell whether it has changed


class _NotSaved(Exception):
    """A value is of a kind that no checkpoint holds."""


class CallbackStates:
    """Reads and restores the states of callbacks.

    Numbers, strings and flags in attributes are always saved, but for the strings that a callback was made with (such
    as paths), which are settings. All else that can be saved (lists, dictionaries, arrays, variables, generators, and
    what functions of the script read) is saved once it differs from what it was when training began.

    Args:
        callbacks: the n-th of each class gets the state of the n-th of that class in the checkpoint.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = callbacks
        self._as_begun: list[dict[str, str]] = [{} for _ in callbacks]

    def begin(self) -> None:
        """Notes what there is before the first step, and before anything is restored."""
        for number, callback in enumerate(self._callbacks):
            values = _values(callback, f"callback/{number}")
            self._as_begun[number] = {name: _digest(*saved) for name, _, saved in values}

    def read(self) -> tuple[list[dict[str, Any]], Arrays]:
        """The states, and the arrays in them by names that begin with "callback/"."""
        states, arrays = [], {}
        for number, callback in enumerate(self._callbacks):
            state, more = _read(callback, f"callback/{number}", self._as_begun[number])
            states.append(state)
            arrays.update(more)
        return states, arrays

    def restore(self, states: Sequence[dict[str, Any]], arrays: Arrays) -> None:
        """Restores what `read` returned.

        Callbacks without a saved state begin anew, and states without a callback are ignored; both are logged.
        """
        found = dict(_with_state(self._callbacks, states))
        for number, callback in enumerate(self._callbacks):
            if number in found:
                _restore(callback, states[found[number]], arrays, f"callback/{found[number]}")
            else:
                name = type(callback).__name__
                logger.warning("The callback %s is not in the checkpoint, so it begins anew.", name)
        left = [str(state.get("class")) for index, state in enumerate(states) if index not in found.values()]
        if left:
            logger.warning("The checkpoint has the state of callbacks that are not there now: %s.", ", ".join(left))


def cut_csv_files(callbacks: Sequence[keras.callbacks.Callback], states: Sequence[dict[str, Any]]) -> None:
    """Makes each `CSVLogger` go on in its file after the rows that it had when the checkpoint was saved.

    Call it before `on_train_begin`, which opens the files, and `CallbackStates.restore` after it.
    """
    for number, index in _with_state(callbacks, states):
        callback, saved = callbacks[number], states[index].get(_CSV)
        if not isinstance(callback, keras.callbacks.CSVLogger) or not saved:
            continue
        path, callback.append = callback.filename, True
        try:
            lacks = os.path.getsize(path) < saved["bytes"]
            os.truncate(path, min(saved["bytes"], os.path.getsize(path)))
        except OSError:
            lacks = saved["bytes"] > 0
        if lacks:
            logger.warning(
                "%s lacks rows that CSVLogger had written when the checkpoint was saved. It goes on with the rows of "
                "the next epochs; the history of the run has all of them.",
                path,
            )


def _with_state(
    callbacks: Sequence[keras.callbacks.Callback], states: Sequence[dict[str, Any]]
) -> Iterator[tuple[int, int]]:
    """Pairs of the position of a callback, and of the state that is its own."""
    left = {index: str(state.get("class")) for index, state in enumerate(states)}
    for number, callback in enumerate(callbacks):
        index = next((index for index, kind in left.items() if kind == type(callback).__name__), None)
        if index is not None:
            del left[index]
            yield number, index


def _read(callback: keras.callbacks.Callback, prefix: str, as_begun: dict[str, str]) -> tuple[dict[str, Any], Arrays]:
    """The state of a callback, and the arrays in it."""
    state: dict[str, Any] = {"class": type(callback).__name__}
    arrays: Arrays = {}
    settings = inspect.signature(type(callback).__init__).parameters
    for name, value, (saved, more) in _values(callback, prefix):
        is_setting = isinstance(value, str) and name in settings
        is_number = type(value) in _SCALARS and name in vars(callback)
        if not is_setting and (is_number or _digest(saved, more) != as_begun.get(name, _digest(None, {}))):
            state[name] = saved
            arrays.update(more)
    if isinstance(callback, keras.callbacks.History):
        rows = {name: [{"float": repr(float(value))} for value in row] for name, row in callback.history.items()}
        state["history"] = {"epoch": getattr(callback, "epoch", []), "rows": rows}
    if isinstance(callback, keras.callbacks.CSVLogger) and callback.csv_file and not callback.csv_file.closed:
        state[_CSV] = {"bytes": callback.csv_file.tell(), "columns": callback.keys}
    return state, arrays


def _restore(callback: keras.callbacks.Callback, state: dict[str, Any], arrays: Arrays, prefix: str) -> None:
    """Restores the state of a callback of the same class."""
    places = _places(callback)
    for name, saved in state.items():
        if name == "history" and isinstance(callback, keras.callbacks.History):
            callback.epoch = list(saved["epoch"])
            callback.history = {key: [float(one["float"]) for one in row] for key, row in saved["rows"].items()}
        elif name == _CSV and isinstance(callback, keras.callbacks.CSVLogger):
            callback.keys = saved["columns"]
            callback.append_header = callback.csv_file.tell() == 0 if callback.keys else callback.append_header
        elif name != "class":
            held, put, _ = places.get(name, (None, functools.partial(setattr, callback, name), ""))
            try:
                put(_restored(saved, arrays, held))
            except (AttributeError, LookupError, TypeError, ValueError):
                logger.warning(_BEGINS_ANEW, type(callback).__name__, name)
    for name, values in _lists_of_earlier_versions(state, arrays, prefix).items():
        setattr(callback, name, values)
    if getattr(callback, "monitor_op", callback) is None:  # Keras may flip its sign on first seeing the metric
        callback.min_delta = abs(callback.min_delta)


def _values(callback: keras.callbacks.Callback, prefix: str) -> Iterator[tuple[str, Any, tuple[Any, Arrays]]]:
    """The name of each place whose value can be saved, the value, and how it is saved."""
    model = getattr(callback, "model", None)
    own = set() if model is None else {id(one) for one in get_variables(model)}
    for name, (value, _, module) in _places(callback).items():
        writer = _Writer(f"{prefix}/{name}", own, module)
        with contextlib.suppress(_NotSaved):
            yield name, value, (writer.write(value), writer.arrays)


def _lists_of_earlier_versions(state: dict[str, Any], arrays: Arrays, prefix: str) -> dict[str, list[np.ndarray]]:
    """Lists of arrays as checkpoints had them that know nothing else of the kind, in the order of the arrays."""
    lists: dict[str, list[np.ndarray]] = {}
    for key in arrays:
        if key.startswith(f"{prefix}/") and (name := key.split("/")[2]) not in state and key.count("/") == 3:
            lists.setdefault(name, []).append(arrays[key])
    return lists


def _places(callback: keras.callbacks.Callback) -> dict[str, Place]:
    """Where a callback and its functions may hold something: attributes, and "function/variable"."""
    places: dict[str, Place] = {}
    others: list[Any] = []
    of_keras = {*PROFILER_FLAGS, *_OF_KERAS}
    if isinstance(callback, keras.callbacks.History):
        of_keras |= {"history", "epoch"}
    for name, value in vars(callback).items():
        is_any = _is_own(type(callback)) or type(value) in _SCALARS or isinstance(value, np.generic | list)
        if is_any and name not in of_keras:
            places[name] = value, functools.partial(setattr, callback, name), type(callback).__module__
        others.append(value)
    for kind in filter(_is_own, type(callback).__mro__):
        others += vars(kind).values()
    for name, place in _places_of_functions(others, set()):
        key, number = name, 1
        while key in places:
            number += 1
            key = f"{name}#{number}"
        places[key] = place
    return places


def _is_own(thing: Any) -> bool:
    """Whether a class or function is the user's."""
    module = getattr(thing, "__module__", None) or "__main__"
    return module.partition(".")[0] not in _LIBRARIES


def _places_of_functions(values: Iterable[Any], seen: set[Any]) -> Iterator[tuple[str, Place]]:
    """What functions among the values read from outside, and the functions of their modules that they call."""
    for function in values:
        if isinstance(function, functools.partial):
            arguments = [list(function.args), function.keywords]
            yield "partial/arguments", (arguments, _keep, function.func.__module__)
            yield from _places_of_functions([function.func], seen)
        if isinstance(function, types.MethodType):
            yield f"{function.__name__}/self", (function.__self__, _keep, function.__module__)
            function = function.__func__
        if not isinstance(function, types.FunctionType) or not _is_own(function) or id(function) in seen:
            continue
        seen.add(id(function))
        read = list(_outer_variables(function))
        for identity, name, value, put in read:
            if identity not in seen:
                seen.add(identity)
                yield f"{function.__name__}/{name}", (value, put, function.__module__)
        values_read = (value for _, _, value, _ in read)
        same_module = [one for one in values_read if getattr(one, "__module__", None) == function.__module__]
        yield from _places_of_functions(same_module, seen)


def _outer_variables(function: types.FunctionType) -> Iterator[tuple[Any, str, Any, Callable[[Any], None]]]:
    """What tells it from others, name, value, and a function that sets it: of each variable outside of a function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield id(cell), name, cell.cell_contents, functools.partial(setattr, cell, "cell_contents")
    variables = function.__globals__
    if str(variables.get("__file__", "")).startswith(_INSTALLED):  # a library's globals are of its process
        return
    for name in sorted(_names(function.__code__) & variables.keys()):
        yield (id(variables), name), name, variables[name], functools.partial(variables.__setitem__, name)


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function reads or sets, those of functions within it among them."""
    within = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    return own.union(*within)


def _keep(value: Any) -> None:
    """For what is restored in place."""


class _Writer:
    """Writes values as JSON and arrays.

    Args:
        name: begins the names of the arrays.
        own: identities of variables that are the model's.
        module: objects of classes that are defined there are written too, attribute by attribute.
    """

    def __init__(self, name: str, own: set[int], module: str) -> None:
        self.arrays: Arrays = {}
        self._name, self._own, self._module = name, own, module
        self._within: list[int] = []  # objects that the value is in

    def write(self, value: Any) -> Any:
        """A value as JSON has it.

        Raises:
            _NotSaved: if it is of a kind that is not saved, or has only variables of the model in training.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return {"float": repr(value)}  # JSON has no infinity
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, np.random.Generator):
            return {"generator": self.write(value.bit_generator.state)}
        if isinstance(value, random.Random):
            return {"random": self.write(value.getstate())}
        variables = _variables(value)
        if variables is not None:
            apart = [(place, one) for place, one in enumerate(variables) if id(one) not in self._own]
            if not apart:
                raise _NotSaved
            kind = "variable" if isinstance(value, tf.Variable | keras.Variable) else "variables"
            return {kind: [[place, self._array(np.asarray(one.numpy()))["array"]] for place, one in apart]}
        if id(value) in self._within or isinstance(value, keras.utils.PyDataset):  # whose place the data's state says
            raise _NotSaved
        self._within.append(id(value))
        try:
            return self._container(value)
        finally:
            self._within.pop()

    def _array(self, value: Any) -> Any:
        if value.dtype.kind in "OMm" or value.dtype.fields:
            raise _NotSaved
        if isinstance(value, np.generic):
            return {"scalar": [str(value.dtype), value.tobytes().hex()]}
        self.arrays[key := f"{self._name}/{len(self.arrays)}"] = value
        return {"array": key}

    def _container(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {"dict": [[self.write(key), *self._if_saved(one)] for key, one in value.items()]}
        for kind, of_python in _SEQUENCES.items():
            if isinstance(value, of_python) and not hasattr(value, "_fields"):
                return {kind: [self.write(one) for one in value]}
        if type(value).__module__ == self._module and hasattr(value, "__dict__"):
            return {"object": [[name, *self._if_saved(one)] for name, one in vars(value).items()]}
        raise _NotSaved

    def _if_saved(self, value: Any) -> list[Any]:
        try:
            return [self.write(value)]
        except _NotSaved:
            return []


def _digest(saved: Any, arrays: Arrays) -> str:
    """What tells whether a value has changed."""
    sums = [[str(array.dtype), array.shape, _checksum(array)] for array in arrays.values()]
    return json.dumps([saved, sums])


def _checksum(array: np.ndarray) -> int:
    apart = max(array.nbytes // _SAMPLED_BYTES, 1)
    return zlib.crc32(np.ascontiguousarray(array.reshape(-1)[::apart]).tobytes())


def _variables(value: Any) -> Any:
    """The variables of a model, layer, metric, optimizer, module or variable; None for anything else."""
    if isinstance(value, tf.Variable | keras.Variable):
        return [value]
    if isinstance(value, keras.Model):
        return get_variables(value)
    kinds = (keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, tf.Module)
    return list(value.variables) if isinstance(value, kinds) else None


def _restored(saved: Any, arrays: Arrays, held: Any) -> Any:
    """The value that `_Writer` has written: in place where `held`, the value that is there, can be changed."""
    if not isinstance(saved, dict):
        return saved
    kind, content = next(iter(saved.items()))
    match kind:
        case "float":
            return float(content)
        case "scalar":
            return np.frombuffer(bytes.fromhex(content[1]), np.dtype(content[0]))[0]
        case "array":
            array = arrays[content]
            if not isinstance(held, np.ndarray) or (held.dtype, held.shape) != (array.dtype, array.shape):
                return np.array(array)
            held[...] = array
        case "variable" if held is None:
            return tf.Variable(arrays[content[0][1]])
        case "variable" | "variables":
            for place, name in content:
                _variables(held)[place].assign(arrays[name])
        case "generator":
            held.bit_generator.state = _restored(content, arrays, None)
        case "random":
            held.setstate(_restored(content, arrays, None))
        case "object":
            for name, *values in content:
                for value in values:
                    setattr(held, name, _restored(value, arrays, getattr(held, name, None)))
        case "dict":
            return _restored_dict(content, arrays, {} if held is None else held)
        case _:
            return _restored_sequence(kind, content, arrays, held)
    return held


def _restored_dict(content: list[Any], arrays: Arrays, held: dict[Any, Any]) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for saved, *of_key in content:
        key = _restored(saved, arrays, None)
        there = held.get(key)
        values[key] = _restored(of_key[0], arrays, there) if of_key else there
    held.clear()
    held.update(values)
    return held


def _restored_sequence(kind: str, content: list[Any], arrays: Arrays, held: Any) -> Any:
    there = list(held) if isinstance(held, list | tuple | collections.deque) else []
    values = [_restored(one, arrays, old) for one, old in itertools.zip_longest(content, there[: len(content)])]
    if isinstance(held, list):
        held[:] = values
    elif isinstance(held, set | collections.deque):
        held.clear()
        (held.update if isinstance(held, set) else held.extend)(values)
    else:
        return _SEQUENCES[kind](values)
    return held


_NUMPY = "MT19937"  # the only kind that NumPy's global generator has, unless a script replaces it


def random_states() -> dict[str, np.ndarray]:
    """The states of `random` and `numpy.random`, as arrays.

    Example:
        >>> before = random_states()
        >>> first = random.random(), np.random.rand()
        >>> set_random_states(before)
        >>> (random.random(), np.random.rand()) == first
        True
    """
    _, words, gauss = random.getstate()
    found: dict[str, np.ndarray] = {
        "python": np.array(words, np.uint32),
        "python_gauss": np.array([gauss is not None, gauss or 0.0], np.float64),
    }
    state: Any = np.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = state
    if kind == _NUMPY:
        found["numpy"] = np.array(keys, np.uint32)
        found["numpy_gauss"] = np.array([position, has_gauss, cached], np.float64)
    return found


def set_random_states(states: dict[str, np.ndarray]) -> None:
    """Sets what `random_states` returned; does nothing without."""
    if not states:
        return
    has_next, following = states["python_gauss"]
    random.setstate((3, tuple(int(word) for word in states["python"]), float(following) if has_next else None))
    before: Any = np.random.get_state(legacy=True)
    if "numpy" in states and before[0] == _NUMPY:
        position, has_gauss, cached = states["numpy_gauss"]
        np.random.set_state((_NUMPY, states["numpy"], int(position), int(has_gauss), float(cached)))


def with_prefix(prefix: str, arrays: Arrays) -> Arrays:
    """Arrays with "prefix/" before their names."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Arrays) -> Arrays:
    """Those whose names begin with "prefix/", without it."""
    return {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
