"""Keeps TensorFlow's server on the loopback interface: it binds to all interfaces, whatever TF_CONFIG says.

No setting of TensorFlow or gRPC changes the address, and the server, which has no authentication, runs any graph that
it is sent. So the entry for `bind` in the loaded library's table of imported functions is replaced while the server
starts, by a function that exchanges the address "any" for 127.0.0.1. The table is described in the ELF specification
(System V ABI, "Dynamic Linking").
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

logger = logging.getLogger("tfaccel")

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
