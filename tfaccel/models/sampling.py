"""Sampling of tokens from logits, and text generation token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfaccel.errors import WorkloadError
from tfaccel.graph_function import graph_function
from tfaccel.planning.option_checks import check_counts
from tfaccel.short_repr import noun


@noun
class Sampling:
    """How to sample the next token.

    Args:
        temperature: divisor of the logits; 0 is greedy decoding.
        top_k: sample from this many most likely tokens only; None for all.
        top_p: sample from the most likely tokens whose probabilities sum to this; 1 for all.

    Raises:
        WorkloadError: for values out of range.

    Example:
        >>> Sampling(temperature=0).draw(np.array([[0.0, 2.0, 1.0]]), np.random.default_rng(0)).tolist()
        [1]
    """

    temperature: float = 0.7
    top_k: int | None = None
    top_p: float = 0.95

    def __post_init__(self) -> None:
        if type(self.temperature) not in (int, float) or not 0 <= self.temperature < float("inf"):
            raise WorkloadError(f"`temperature` must be a number of at least 0. Received: {self.temperature!r}.")
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise WorkloadError(f"`top_k` must be a whole number of at least 1, or None. Received: {self.top_k!r}.")
        if type(self.top_p) not in (int, float) or not 0 < self.top_p <= 1:
            raise WorkloadError(f"`top_p` must be a number above 0, at most 1. Received: {self.top_p!r}.")

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """The probability of each token, for a temperature above 0; of shape (batch, num_tokens), like the logits."""
        scaled = logits.astype(np.float64) / self.temperature
        values = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
        values /= values.sum(axis=-1, keepdims=True)
        order = np.argsort(-values, axis=-1, kind="stable")
        ranked = np.take_along_axis(values, order, axis=-1)
        dropped = np.cumsum(ranked, axis=-1) - ranked >= self.top_p
        dropped[..., 0] = False
        if self.top_k is not None:
            dropped[..., self.top_k :] = True
        np.put_along_axis(values, order, np.where(dropped, 0.0, ranked), axis=-1)
        return values / values.sum(axis=-1, keepdims=True)

    def draw(self, logits: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Samples one token per row of logits of shape (batch, num_tokens)."""
        if self.temperature == 0:
            return logits.argmax(axis=-1)
        chances = self.probabilities(logits)
        return np.array([generator.choice(len(row), p=row) for row in chances])


class TokenWriter:
    """Continues a prompt with a language model, keeping its state from token to token.

    Args:
        model: a `TransformerLanguageModel` or `LstmLanguageModel`. When the context of the first is full, it restarts
            from the more recent half.
    """

    def __init__(self, model: Any) -> None:
        import tensorflow as tf

        self._model = model
        self._step = graph_function(model.step, reduce_retracing=True)
        self._constant = tf.constant

    def write(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        sampling: Sampling,
        *,
        seed: int = 0,
        forbidden: Sequence[int] = (),
    ) -> list[int]:
        """Returns the continuation of a prompt of at least one token; forbidden tokens are never sampled."""
        check_counts(num_tokens=num_tokens)
        generator, text = np.random.default_rng(seed), list(prompt)
        logits, position, state = self._read(text)
        for _ in range(num_tokens):
            logits = np.array(logits)
            logits[:, list(forbidden)] = -np.inf
            text.append(int(sampling.draw(logits, generator)[0]))
            if position == self._model.max_length:
                logits, position, state = self._read(text)
            else:
                logits, state = self._next(text[-1], position, state)
                position += 1
        return text[len(prompt) :]

    def _read(self, text: Sequence[int]) -> tuple[Any, int, Any]:
        """Processes a text, or its end if it is too long; returns logits, the next position and the state."""
        limit = self._model.max_length
        if limit is not None and len(text) >= limit:
            text = text[-max(1, limit // 2) :]
        state, logits = self._model.start(1), None
        for position, token in enumerate(text):
            logits, state = self._next(token, position, state)
        return logits, len(text), state

    def _next(self, token: int, position: int, state: Any) -> tuple[Any, Any]:
        logits, state = self._step(self._constant([token]), self._constant(position), state)
        return logits.numpy(), state
