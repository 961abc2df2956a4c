"""The checksum of TFRecord files, computed by numpy for many pieces of the data at once."""

import functools
from collections.abc import Sequence

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with its bits reversed
_PIECE = 64  # bytes
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C of the data, turned and shifted as TFRecord files have it.

    Source: RFC 3720, appendix B.4; G. Castagnoli et al., Optimization of cyclic redundancy-check codes, 1993.

    Example:
        >>> hex(crc32c(b"123456789")), hex(masked_crc32c(b"123456789"))
        ('0xe3069283', '0xc78ab0e5')
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The CRC-32C of the data.

    A CRC is linear: that of a whole follows from those of its pieces, each of which begins with 0, by shifting what
    came before past the next piece.
    """
    num_pieces = len(data) // _PIECE
    head = len(data) - num_pieces * _PIECE
    table = _table_as_list()
    state = 0xFFFFFFFF
    for byte in data[:head]:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    if num_pieces:
        shifts = _shifts()
        for piece in _of_pieces(np.frombuffer(data, np.uint8, offset=head).reshape(num_pieces, _PIECE)):
            moved = shifts[0][state & 0xFF] ^ shifts[1][state >> 8 & 0xFF] ^ shifts[2][state >> 16 & 0xFF]
            state = moved ^ shifts[3][state >> 24] ^ piece
    return state ^ 0xFFFFFFFF


def _of_pieces(pieces: np.ndarray) -> Sequence[int]:
    """The state behind each piece, beginning with 0."""
    table = _table()
    states = np.zeros(len(pieces), np.uint32)
    for column in np.ascontiguousarray(pieces.T):
        states = table[(states ^ column) & 0xFF] ^ (states >> 8)
    return states.tolist()


@functools.cache
def _table() -> np.ndarray:
    """The state behind each byte."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, states >> 1 ^ np.uint32(_POLYNOMIAL), states >> 1)
    return states


@functools.cache
def _table_as_list() -> list[int]:
    return [int(state) for state in _table()]


@functools.cache
def _shifts() -> list[list[int]]:
    """For each of the four bytes of a state, what is left of it behind a piece of zeros."""
    states = np.arange(256, dtype=np.uint32)[np.newaxis] << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(_PIECE):
        states = _table()[states & 0xFF] ^ (states >> 8)
    shifts: list[list[int]] = states.tolist()
    return shifts
