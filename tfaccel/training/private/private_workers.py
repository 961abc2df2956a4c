"""Private parts of TensorFlow between workers: broadcasts of values, and the address of their servers.

A broadcast from one replica to those of all workers `tf.distribute` has for initial values only; and
`MultiWorkerMirroredStrategy` broadcasts each variable from the chief when it is created, which takes some 8 ms each.
`broadcast_at_once` sends all of them together.

TensorFlow's server binds to all interfaces, whatever TF_CONFIG says. No setting of TensorFlow or gRPC changes the
address, and the server, which has no authentication, runs any graph that it is sent. So the entry for `bind` in the
loaded library's table of imported functions is replaced while the server starts, by a function that exchanges the
address "any" for 127.0.0.1. The table is described in the ELF specification (System V ABI, "Dynamic Linking").
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import math
import mmap
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.graph_function import graph_function
from tfaccel.tested_versions import private_part
from tfaccel.training.steps.overrides import instance_attributes

PIECE_BYTES = 4 << 20  # larger messages are slower, and take memory
_PACKAGE = {"package": "tensorflow"}
# What TensorFlow's broadcast takes; other floating-point dtypes travel as float32, which holds all of their values.
_DTYPES = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

logger = logging.getLogger("tfaccel")

# Packs take twice their size while they are sent; TensorFlow sends larger variables, without a copy.
_PACK_BYTES = 32 * 2**20
_LIBRARY = "libtensorflow"
_DYNAMIC_SEGMENT = 2  # PT_DYNAMIC
_STRINGS, _STRINGS_SIZE, _SYMBOLS = 5, 10, 6  # DT_STRTAB, DT_STRSZ, DT_SYMTAB
_PLT_SIZE, _PLT = 2, 23  # DT_PLTRELSZ, DT_JMPREL
_ENTRY_BYTES = 16
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_SYMBOL = np.dtype([("name", "<u4"), ("other", "V20")])
_ANY = {
    socket.AF_INET: (4, b"\0" * 4, b"\x7f\0\0\1"),
    socket.AF_INET6: (8, b"\0" * 16, b"\0" * 10 + b"\xff\xff\x7f\0\0\1"),
}
_Bind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)


def broadcast(
    strategy: tf.distribute.Strategy,
    values: Sequence[Any],
    shape: Sequence[int],
    dtype: tf.DType,
    *,
    after: Sequence[Sequence[Any]],
) -> list[Any]:
    """Sends a tensor from one replica to all others of a `MultiWorkerMirroredStrategy`. All workers call it together.

    Args:
        values: for each local replica, the tensor that it sends, or None to receive it.
        after: for each local replica, what must be there before it sends or receives.

    Returns:
        For each local replica, what it has received, or the operation that has sent.
    """
    from tensorflow.python.ops import collective_ops

    send = private_part(collective_ops, "broadcast_send_v2", **_PACKAGE)
    receive = private_part(collective_ops, "broadcast_recv_v2", **_PACKAGE)
    sent = dtype if dtype in _DTYPES else tf.float32
    results: list[Any] = []
    for launcher, value, earlier in zip(_launchers(strategy), values, after, strict=True):
        group: dict[str, Any] = {
            "group_size": launcher._group_size,
            "group_key": launcher._group_key,
            "instance_key": launcher._next_instance_key(),
            "communication_hint": launcher._options.implementation.value,
            "timeout": launcher._options.timeout_seconds or 0,
        }
        on_gpu = "GPU" in launcher._device  # where collectives must have one order on all devices
        with tf.device(launcher._device), tf.control_dependencies([*earlier, *([_touch(launcher)] if on_gpu else [])]):
            if value is None:
                done = receive(tf.constant(list(shape), tf.int32), sent, **group)
            else:
                done = send(tf.cast(value, sent), **group)
        # A graph leaves out an operation of this kind whose output nothing needs.
        with tf.device(launcher._device), tf.control_dependencies([done]):
            end = _touch(launcher) if on_gpu or value is not None else None
        results.append(end if value is not None else tf.ensure_shape(tf.cast(done, dtype), list(shape)))
    return results


def broadcast_array(
    strategy: tf.distribute.Strategy, value: Any, replica: int, shape: Sequence[int], dtype: tf.DType
) -> np.ndarray:
    """Sends a value from one replica to all workers, which call it together; not in a graph."""
    devices = [launcher._device for launcher in _launchers(strategy)]
    flat = None if value is None else tf.reshape(value, [-1])
    num_values = math.prod(shape)
    received = None if flat is not None else np.empty(num_values, dtype.as_numpy_dtype)

    @graph_function
    def all_get(piece: Any) -> list[Any]:
        values = [piece if value is not None and index == replica else None for index in range(len(devices))]
        results = broadcast(strategy, values, [size], dtype, after=[()] * len(devices))
        return [result for result in results if tf.is_tensor(result)]

    step = max(1, PIECE_BYTES // int(dtype.size))
    for start in range(0, num_values, step):
        size = min(step, num_values - start)
        results = all_get(tf.zeros([size], dtype) if flat is None else flat[start : start + size])
        if received is not None:
            received[start : start + size] = results[0].numpy()
    return np.asarray(value.numpy()) if received is None else received.reshape(shape)


def _launchers(strategy: tf.distribute.Strategy) -> list[Any]:
    """What launches the collectives of each local replica."""
    return list(private_part(strategy.extended, "_cross_device_ops._launchers", **_PACKAGE))


def _touch(launcher: Any) -> Any:
    """An operation on the variable that TensorFlow's other collectives of a device use in turn."""
    return private_part(launcher, "_ordering_token", **_PACKAGE).assign_add(0.0, read_value=False)


@contextlib.contextmanager
def broadcast_at_once() -> Iterator[None]:
    """Within the block, variables take their own worker's initial values; at its end, the chief's, in few broadcasts.

    For the strategy of the scope that the block is in. Without several workers, it does nothing.
    """
    extended = tf.distribute.get_strategy().extended
    if getattr(extended, "_num_workers", 1) < 2:
        yield
        return
    created: list[Any] = []
    large: list[Any] = []  # the initial value of the variable in creation, if it is
    initial = private_part(extended, "_get_variable_creator_initial_value", **_PACKAGE)
    create = private_part(extended, "_create_variable", **_PACKAGE)

    def own_initial(*args: Any, **kwargs: Any) -> Callable[[], Any]:
        get_value: Callable[[], Any] = initial(*args, **kwargs)
        value = kwargs["initial_value"]
        is_large = tf.is_tensor(value) and value.dtype in _DTYPES and _num_bytes(value) >= _PACK_BYTES
        if is_large and not _zeros_everywhere([[value]])[0]:
            large.append(value)
            return get_value

        def own() -> Any:
            with instance_attributes(extended, {"_num_workers": 1}):
                return get_value()

        return own

    def noted(*args: Any, **kwargs: Any) -> Any:
        variable = create(*args, **kwargs)
        if not large:
            created.append(variable)
        large.clear()
        return variable

    with instance_attributes(extended, {"_get_variable_creator_initial_value": own_initial, "_create_variable": noted}):
        yield
    _give_values_of_chief(created)


def _give_values_of_chief(variables: list[Any]) -> None:
    """Gives variables the chief's values, on all replicas; those that are zero on all workers need none."""
    strategy = tf.distribute.get_strategy()
    is_chief = private_part(strategy.extended, "_is_chief", **_PACKAGE)
    zeros = _zeros_everywhere([strategy.experimental_local_results(one) for one in variables])
    for pack in _packs([one for one, is_zero in zip(variables, zeros, strict=True) if not is_zero]):
        own = [strategy.experimental_local_results(one)[0].read_value() for one in pack]
        flat = tf.concat([tf.reshape(value, [-1]) for value in own], 0)
        flat = flat if flat.dtype in _DTYPES else tf.cast(flat, tf.float32 if flat.dtype.is_floating else tf.int64)
        sent = tf.Variable(flat, trainable=False)  # TensorFlow broadcasts its initial value
        if is_chief:
            continue
        values = tf.split(strategy.experimental_local_results(sent)[0], [tf.size(value) for value in own])
        for variable, before, value in zip(pack, own, values, strict=True):
            for part in strategy.experimental_local_results(variable):
                part.assign(tf.cast(tf.reshape(value, before.shape), before.dtype))


def _zeros_everywhere(variables: Sequence[Sequence[Any]]) -> list[bool]:
    """Which variables, each as its parts on this worker's replicas, are zero on all workers, as new slots are."""
    if not variables:
        return []
    strategy = tf.distribute.get_strategy()
    nonzero = tf.constant([any(map(_has_a_nonzero, parts)) for parts in variables], tf.int32)
    per_replica = strategy.experimental_distribute_values_from_function(lambda _: nonzero)
    return [not number for number in strategy.reduce("SUM", per_replica, axis=None).numpy()]


def _has_a_nonzero(value: Any) -> bool:
    if not (value.dtype.is_floating or value.dtype.is_integer):
        return True
    return bool(tf.reduce_any(tf.cast(value, tf.bool)))


def _packs(variables: list[Any]) -> Iterator[list[Any]]:
    """The variables in groups of one dtype, none much larger than `_PACK_BYTES`; the same on all workers."""
    for _, group in itertools.groupby(sorted(variables, key=lambda one: one.dtype.name), key=lambda one: one.dtype):
        pack: list[Any] = []
        size = 0
        for variable in group:
            pack.append(variable)
            size += _num_bytes(variable)
            if size >= _PACK_BYTES:
                yield pack
                pack, size = [], 0
        if pack:
            yield pack


def _num_bytes(values: Any) -> int:
    return (values.shape.num_elements() or 0) * int(values.dtype.size)


def give_values_of_chief(variable: tf.Variable) -> None:
    """Gives a plain variable, of which each worker has one, the chief's values, a part of its rows at a time.

    Call it in the scope of the workers' strategy. Without several workers, it does nothing.
    """
    strategy = tf.distribute.get_strategy()
    if getattr(strategy.extended, "_num_workers", 1) < 2:
        return
    num_rows = int(variable.shape[0])
    rows_at_once = max(1, num_rows * _PACK_BYTES // max(1, _num_bytes(variable)))
    for start in range(0, num_rows, rows_at_once):
        part = variable[start : start + rows_at_once]
        sent = tf.Variable(part if part.dtype in _DTYPES else tf.cast(part, tf.float32), trainable=False)
        received = strategy.experimental_local_results(sent)[0]
        variable[start : start + rows_at_once].assign(tf.cast(received, part.dtype))


class _ProgramHeader(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical_address", ctypes.c_uint64),
        ("file_size", ctypes.c_uint64),
        ("memory_size", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
    ]


class _LoadedObject(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.POINTER(_ProgramHeader)),
        ("num_headers", ctypes.c_uint16),
    ]


@contextlib.contextmanager
def servers_on_loopback() -> Iterator[bool]:
    """Within the block, servers that TensorFlow starts listen on 127.0.0.1 only.

    Yields:
        Whether that could be arranged; otherwise a warning was logged.
    """
    slots = _get_slots("bind")
    if not slots:
        logger.warning(
            "TensorFlow's server will listen on all network interfaces, without authentication: this build of "
            "TensorFlow does not import `bind` as expected. Let a firewall protect the ports."
        )
        yield False
        return
    real = ctypes.CDLL(None).bind
    real.argtypes, real.restype = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32], ctypes.c_int

    def bind(descriptor: int, address: int, length: int) -> int:
        family = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint16))[0]
        offset, any_address, loopback = _ANY.get(family, (0, b"", b""))
        if any_address and ctypes.string_at(address + offset, len(any_address)) == any_address:
            ctypes.memmove(address + offset, loopback, len(loopback))
        return int(real(descriptor, address, length))

    callback = _Bind(bind)
    before = [(slot, _exchanged(slot, ctypes.cast(callback, ctypes.c_void_p).value or 0)) for slot in slots]
    try:
        yield True
    finally:
        for slot, value in before:
            _exchanged(slot, value)


def _get_slots(function: str) -> list[int]:
    """The addresses of the entries for an imported function in the tables of TensorFlow's libraries."""
    found: list[int] = []

    def visit(given: Any, size: int, data: Any) -> int:
        loaded = given.contents
        if _LIBRARY in os.path.basename((loaded.name or b"").decode(errors="replace")):
            found.extend(_slots_in(loaded, function.encode()))
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CDLL(None).dl_iterate_phdr(kind(visit), None)
    return found


def _slots_in(loaded: _LoadedObject, function: bytes) -> Iterator[int]:
    """The addresses in one library. Its table has 200,000 entries, hence NumPy: a loop takes a second."""
    entries: dict[int, int] = {}
    for header in loaded.headers[: loaded.num_headers]:
        if header.type == _DYNAMIC_SEGMENT:
            raw = ctypes.string_at(loaded.base + header.address, header.memory_size)
            entries = dict(struct.iter_unpack("<qQ", raw[: len(raw) // _ENTRY_BYTES * _ENTRY_BYTES]))
    if not {_STRINGS, _STRINGS_SIZE, _SYMBOLS, _PLT_SIZE, _PLT} <= entries.keys():
        return
    strings = ctypes.string_at(entries[_STRINGS], entries[_STRINGS_SIZE])
    names = [found.start() for found in re.finditer(re.escape(function) + b"\0", strings)]
    relocations = np.frombuffer(ctypes.string_at(entries[_PLT], entries[_PLT_SIZE]), _RELOCATION)
    numbers = relocations["symbol"].astype(np.int64)
    num_symbols = int(numbers.max(initial=-1)) + 1
    symbols = np.frombuffer(ctypes.string_at(entries[_SYMBOLS], num_symbols * _SYMBOL.itemsize), _SYMBOL)
    for offset in relocations["offset"][np.isin(symbols["name"][numbers], names)]:
        yield loaded.base + int(offset)


def _exchanged(slot: int, value: int) -> int:
    """Writes a pointer into a table, which may be read-only; returns the former one."""
    page = slot - slot % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")
    place = ctypes.cast(slot, ctypes.POINTER(ctypes.c_uint64))
    before = int(place[0])
    place[0] = value
    return before
