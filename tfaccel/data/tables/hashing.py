"""Hash buckets of texts, so that a table of embeddings has a fixed number of rows whatever the ids are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

HASH_KEY = (0, 0)
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_State = list[np.ndarray]


def hash_buckets(texts: Sequence[str], num_buckets: int) -> np.ndarray:
    """The bucket of each text: its SipHash-2-4 modulo the number of buckets, as int64 of shape (num_texts,).

    The same text has the same bucket on every machine and in every process. In TensorFlow this is
    `tf.strings.to_hash_bucket_strong(texts, num_buckets, key=[0, 0])`.

    Source: Aumasson and Bernstein, SipHash: a fast short-input PRF, 2012, https://eprint.iacr.org/2012/351

    Example:
        >>> hash_buckets(["anna", "bert", "anna"], 1000).tolist()
        [970, 413, 970]
    """
    encoded = [text.encode("utf-8") for text in texts]
    if not encoded:
        return np.zeros(0, np.int64)
    words, num_words = _words(encoded)
    low, high = (np.full(len(encoded), part, np.uint64) for part in HASH_KEY)
    state = [one ^ np.uint64(start) for one, start in zip((low, high, low, high), _START, strict=True)]
    for place in range(words.shape[1]):
        going = place < num_words
        part = [one[going] for one in state]
        part[3] = part[3] ^ words[going, place]
        part = _rounds(part, 2)
        part[0] = part[0] ^ words[going, place]
        for one, new in zip(state, part, strict=True):
            one[going] = new
    state[2] = state[2] ^ np.uint64(0xFF)
    first, second, third, fourth = _rounds(state, 4)
    return ((first ^ second ^ third ^ fourth) % np.uint64(num_buckets)).astype(np.int64)


def _words(encoded: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The texts in words of eight bytes, the last one with the text's length; and the number of words of each."""
    lengths = np.array([len(text) for text in encoded])
    num_words = lengths // 8 + 1
    width = 8 * int(num_words.max())
    content = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in encoded), "<u8")
    words = content.reshape(len(encoded), -1).astype(np.uint64)
    words[np.arange(len(encoded)), num_words - 1] |= (lengths.astype(np.uint64) & np.uint64(0xFF)) << np.uint64(56)
    return words, num_words


def _rounds(state: _State, count: int) -> _State:
    a, b, c, d = state
    for _ in range(count):
        a, c = a + b, c + d
        b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
        a, c = _turned(a, 32) + d, c + b
        d, b = _turned(d, 21) ^ a, _turned(b, 17) ^ c
        c = _turned(c, 32)
    return [a, b, c, d]


def _turned(values: np.ndarray, bits: int) -> np.ndarray:
    """The values with their bits rotated to the left."""
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
