"""Synthetic examples that a model can learn, the same at every call. Needs NumPy alone."""

from __future__ import annotations

import numpy as np

NUM_CLASSES = 10


def synthetic_arrays(
    num_examples: int, input_shape: tuple[int, ...], *, num_tokens: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Examples and labels; the labels are a function of the examples.

    Args:
        num_examples: how many.
        input_shape: of one example.
        num_tokens: size of the vocabulary, for examples of token ids (int32); 0 for float32 values.

    Example:
        >>> x, y = synthetic_arrays(4, (8,), num_tokens=20)
        >>> x.shape, (y == x[:, 0] % NUM_CLASSES).all().item()
        ((4, 8), True)
    """
    generator = np.random.default_rng(7)
    shape = (num_examples, *input_shape)
    if num_tokens:
        tokens = generator.integers(0, num_tokens, shape, dtype=np.int32)
        return tokens, tokens.reshape(len(tokens), -1)[:, 0] % NUM_CLASSES
    x = generator.standard_normal(shape, dtype=np.float32)
    weights = generator.standard_normal((int(np.prod(input_shape)), NUM_CLASSES), dtype=np.float32)
    return x, (x.reshape(len(x), -1) @ weights).argmax(axis=1).astype(np.int32)
