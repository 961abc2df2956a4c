"""Beam search with an encoder-decoder model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.texts.vocabulary import END, PADDING, START, UNKNOWN
from tfaccel.errors import WorkloadError
from tfaccel.graph_function import graph_function
from tfaccel.short_repr import noun

_NEVER_WRITTEN = (PADDING, UNKNOWN, START)


@noun
class BeamSearch:
    """Decodes with the encoder and decoder of a model, keeping the best hypotheses at each step.

    Args:
        beam_size: number of hypotheses per text; 1 is greedy decoding.
        length_penalty: finished texts are ranked by log-probability divided by length to this power; 0 prefers short
            ones.
        unrepeated: n-grams of this length may occur at most once in a text; 0 for no such limit.
        num_texts: batch size, in texts.

    References:
        Wu et al., Google's neural machine translation system, 2016, https://arxiv.org/abs/1609.08144 (length penalty,
            here without its constants)
        Paulus et al., A deep reinforced model for abstractive summarization, 2017, https://arxiv.org/abs/1705.04304
            (no repeated n-grams)
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    unrepeated: int = 0
    num_texts: int = 32

    def __post_init__(self) -> None:
        for name in ("beam_size", "num_texts"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise WorkloadError(f"`{name}` must be a whole number of at least 1. Received: {name}={value!r}.")

    def write(self, model: keras.Model, source: np.ndarray) -> list[list[int]]:
        """Returns the best text for each row of source tokens, without start and end tokens.

        Args:
            model: has a `TextEncoder` named "encoder" and a `TextDecoder` named "decoder".
            source: token ids (int32), of shape (num_rows, length).
        """
        step = graph_function(model.get_layer("decoder").step, reduce_retracing=True)
        found: list[list[int]] = []
        for first in range(0, len(source), self.num_texts):
            part = source[first : first + self.num_texts]
            rows = np.concatenate([part, np.repeat(part[-1:], self.num_texts - len(part), axis=0)])
            found += self._write_some(model, step, rows)[: len(part)]
        return found

    def _write_some(self, model: keras.Model, step: Any, source: np.ndarray) -> list[list[int]]:
        decoder, num_rows, size = model.get_layer("decoder"), len(source), self.beam_size
        source = np.repeat(source, size, axis=0)
        state = decoder.start(self._read(model, source), tf.constant(source))
        texts = np.full((num_rows, size, decoder.max_length + 1), START, np.int32)
        # All beams of a text start out equal, so all but one are disabled.
        scores = np.tile([0.0] + [-np.inf] * (size - 1), (num_rows, 1))
        finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(num_rows)]
        for position in range(decoder.max_length):
            tokens = tf.constant(texts[:, :, position].reshape(-1))
            logits, state = step(tokens, tf.constant(position), state)
            chances = tf.nn.log_softmax(logits).numpy().astype(np.float64).reshape(num_rows, size, -1)
            chances[:, :, list(_NEVER_WRITTEN)] = -np.inf
            if self.unrepeated:
                for row, beam in np.ndindex(num_rows, size):
                    chances[row, beam, repetitions(texts[row, beam, 1 : position + 1], self.unrepeated)] = -np.inf
            self._finish(finished, texts[:, :, : position + 1], scores + chances[:, :, END])
            chances[:, :, END] = -np.inf
            scores, beams, chosen = best(scores[:, :, None] + chances, size)
            if all(self._is_done(done, scores[row], decoder.max_length) for row, done in enumerate(finished)):
                break
            texts = np.take_along_axis(texts, beams[:, :, None], axis=1)
            texts[:, :, position + 1] = chosen
            order = tf.constant((np.arange(num_rows)[:, None] * size + beams).reshape(-1))
            state = {**state, "kept": tf.nest.map_structure(lambda kept, o=order: tf.gather(kept, o), state["kept"])}
        else:  # Max length reached: unfinished texts count as they are.
            self._finish(finished, texts, scores)
        return [max(done, key=lambda pair: pair[0])[1] for done in finished]

    def _read(self, model: keras.Model, source: np.ndarray) -> Any:
        known = np.where(source < model.get_layer("encoder").get_config()["num_tokens"], source, 1)
        return model.get_layer("encoder")(known)

    def _finish(self, finished: list[list[tuple[float, list[int]]]], texts: np.ndarray, scores: np.ndarray) -> None:
        """Adds texts of shape (rows, beams, length with the start token) to the finished ones, with their scores."""
        for row, beam in np.argwhere(np.isfinite(scores)):
            score = scores[row, beam] / texts.shape[-1] ** self.length_penalty
            finished[row].append((float(score), texts[row, beam, 1:].tolist()))
        for row in range(len(finished)):
            finished[row] = sorted(finished[row], key=lambda pair: -pair[0])[: self.beam_size]

    def _is_done(self, done: list[tuple[float, list[int]]], scores: np.ndarray, max_length: int) -> bool:
        """Whether no hypothesis can beat the best finished text, even if all its further tokens had probability 1."""
        return bool(done) and done[0][0] >= scores.max() / (max_length + 1) ** self.length_penalty


def repetitions(text: np.ndarray, length: int) -> list[int]:
    """The next tokens that would repeat an n-gram of this length.

    Example:
        >>> repetitions(np.array([4, 5, 6, 4, 5]), 3)
        [6]
    """
    tokens = text.tolist()
    end = tokens[len(tokens) - length + 1 :]
    starts = range(len(tokens) - length + 1)
    return [tokens[start + length - 1] for start in starts if tokens[start : start + length - 1] == end]


def best(scores: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best scores of each row, best first, with their beams and tokens.

    Args:
        scores: of shape (rows, beams, num_tokens).
        number: how many scores to return per row.

    Example:
        >>> [part.tolist() for part in best(np.array([[[1.0, 5.0], [4.0, 2.0]]]), 2)]
        [[[5.0, 4.0]], [[0, 1]], [[1, 0]]]
    """
    num_tokens = scores.shape[-1]
    flat = scores.reshape(len(scores), -1)
    order = np.argsort(-flat, axis=1, kind="stable")[:, :number]
    return np.take_along_axis(flat, order, axis=1), order // num_tokens, order % num_tokens
