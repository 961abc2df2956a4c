"""Logits in chunks: the last matrix product and its cross-entropy for a part of the tokens at a time.

The logits of a language model, (batch, length, vocabulary), are often its largest tensor, and the backward pass holds
several of that size. While a step is traced, functions of single rows of logits (Keras's sparse cross-entropy, `argmax`
and `in_top_k`, and losses with `is_by_token`) are replaced: they follow the graph from the logits back to the matrix
product that made them, and repeat it for one chunk of rows after the other; the backward pass does so once more.
Nothing then reads the logits of all rows, so TensorFlow leaves them out. What else reads them gets them, whole.

The model stays as it is: `predict`, files and exports have the usual logits.

Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024, https://arxiv.org/abs/2411.09009
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_api
from tfaccel.training.private.private_layers import functions_of_logits, patched
from tfaccel.training.private.private_tensorflow import without_recording
from tfaccel.training.steps.overrides import attributes_of_each, left_by_user

RowFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # labels (rows,), logits (rows, vocabulary) -> (rows,)


@dataclass(frozen=True)
class Product:
    """Logits that are one matrix product, and what follows it row by row.

    Attributes:
        key: of the product's operation: its graph, and its name there.
        hidden: the rows that are multiplied, of shape (..., width).
        kernel: a matrix of shape (width, vocabulary), or transposed.
        is_transposed: whether `kernel` has shape (vocabulary, width), as an embedding has.
        following: functions of logits and operands, such as the addition of a bias, each with its operands.
        leading: the shape of the logits without the last axis.
    """

    key: tuple[int, str]
    hidden: tf.Tensor
    kernel: tf.Tensor
    is_transposed: bool
    following: tuple[tuple[Callable[..., tf.Tensor], tuple[tf.Tensor, ...]], ...]
    leading: Any

    @property
    def operands(self) -> list[tf.Tensor]:
        """The tensors beside the rows that logits depend on."""
        return [self.kernel, *(operand for _, operands in self.following for operand in operands)]

    def logits(self, rows: tf.Tensor, kernel: tf.Tensor, *operands: tf.Tensor) -> tf.Tensor:
        """The logits of some rows, of shape (num_rows, width), with `operands` in the order of `self.operands`."""
        made, rest = tf.matmul(rows, kernel, transpose_b=self.is_transposed), iter(operands)
        for function, own in self.following:
            made = function(made, *(next(rest) for _ in own))
        return made


def find_product(logits: Any) -> Product | str:
    """The product that made logits in a graph; the type of the operation that stands in the way, if there is none."""
    if not isinstance(logits, tf.Tensor) or tf.executing_eagerly() or logits.shape.rank in (None, 0, 1):
        return "eager"
    following: list[tuple[Callable[..., tf.Tensor], tuple[tf.Tensor, ...]]] = []
    leading, width, operation = None, logits.shape[-1], logits.op
    while operation.type not in ("MatMul", "BatchMatMulV2"):
        inputs, kind = list(operation.inputs), operation.type
        if kind == "Reshape" and width is not None and inputs[0].shape.rank and inputs[0].shape[-1] == width:
            leading = inputs[1][:-1] if leading is None else leading
        elif kind in ("BiasAdd", "AddV2", "Add") and _is_by_column(inputs[1], width):
            following.insert(0, (tf.add, (inputs[1],)))
        elif kind in ("Mul", "RealDiv") and _is_by_column(inputs[1], width):
            following.insert(0, (tf.multiply if kind == "Mul" else tf.divide, (inputs[1],)))
        elif kind == "Cast":
            following.insert(0, (partial(tf.cast, dtype=operation.outputs[0].dtype), ()))
        elif kind in ("Softmax", "Tanh"):
            following.insert(0, (tf.nn.softmax if kind == "Softmax" else tf.tanh, ()))
        elif kind != "Identity":
            return str(kind)
        operation = inputs[0].op
    hidden, kernel = operation.inputs
    first, second = ("transpose_a", "transpose_b") if operation.type == "MatMul" else ("adj_x", "adj_y")
    if operation.get_attr(first) or kernel.shape.rank != 2:
        return str(operation.type)
    is_transposed = bool(operation.get_attr(second))
    leading = tf.shape(hidden)[:-1] if leading is None else leading
    return Product((id(operation.graph), operation.name), hidden, kernel, is_transposed, tuple(following), leading)


def _is_by_column(operand: tf.Tensor, width: int | None) -> bool:
    """Whether an operand is a number, or has one for each column."""
    return operand.shape.rank == 0 or (operand.shape.rank == 1 and operand.shape[0] in (1, width))


def by_chunks(
    function: RowFunction, labels: tf.Tensor | None, product: Product, num_chunks: int, *, dtype: tf.DType
) -> tf.Tensor:
    """What a function of single rows gives for all rows, whose logits are made for one chunk after the other.

    Args:
        function: takes labels of shape (rows,) and logits of shape (rows, vocabulary), and returns shape (rows,).
        labels: one for each row of the product; None if the function takes no notice of them.
        product: what makes the logits.
        num_chunks: number of chunks; all have the same size, and the last one is filled up.
        dtype: of the values.

    Returns:
        The values of all rows, of shape (num_rows,); their gradients are those of a plain call up to rounding.
    """
    size = int(product.kernel.shape[1 if product.is_transposed else 0])
    rows = _Rows(tf.reshape(product.hidden, [-1, size]), num_chunks)
    by_chunk = rows.divided(tf.zeros([rows.number]) if labels is None else tf.reshape(labels, [-1]))

    @tf.custom_gradient
    def run(hidden: tf.Tensor, *operands: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], Any]]:
        hidden_by_chunk = rows.divided(hidden)

        def forward(chunk: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            values = function(by_chunk[chunk], product.logits(hidden_by_chunk[chunk], *operands))
            return chunk + 1, found.write(chunk, tf.cast(values, dtype))

        def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
            upstream_by_chunk = rows.divided(upstream)

            def backward(chunk: tf.Tensor, found: tf.TensorArray, *sums: tf.Tensor) -> tuple[Any, ...]:
                sources = [hidden_by_chunk[chunk], *operands]
                with tf.GradientTape() as tape:
                    tape.watch(sources)
                    values = function(by_chunk[chunk], product.logits(*sources))
                made = tape.gradient(values, sources, upstream_by_chunk[chunk], tf.UnconnectedGradients.ZERO)
                added = [total + tf.cast(one, total.dtype) for total, one in zip(sums, made[1:], strict=True)]
                return chunk + 1, found.write(chunk, made[0]), *added

            found = tf.TensorArray(rows.all.dtype, num_chunks, element_shape=[rows.static_size, size])
            half = (tf.bfloat16, tf.float16)  # whose sums over the chunks are in float32
            zeros = [tf.zeros(tf.shape(one), tf.float32 if one.dtype in half else one.dtype) for one in operands]
            found, *sums = _loop(backward, num_chunks, found, *zeros)
            cast = [tf.cast(total, one.dtype) for total, one in zip(sums, operands, strict=True)]
            return [rows.joined(found.stack()), *cast]

        with without_recording():
            found = tf.TensorArray(dtype, num_chunks, element_shape=[rows.static_size])
            return rows.joined(_loop(forward, num_chunks, found)[0].stack()), gradients

    return run(rows.all, *product.operands)


class _Rows:
    """The rows of a tensor, and how they are divided into chunks of one size.

    Args:
        rows: of shape (num_rows, width).
        num_chunks: number of chunks; zeros fill up the last one.
    """

    def __init__(self, rows: tf.Tensor, num_chunks: int) -> None:
        self.all, self.num_chunks = rows, num_chunks
        self.number = tf.shape(rows)[0] if rows.shape[0] is None else rows.shape[0]
        self.size = (self.number + num_chunks - 1) // num_chunks
        self.static_size = self.size if isinstance(self.size, int) else None

    def divided(self, values: tf.Tensor) -> tf.Tensor:
        """Values of all rows, of shape (num_rows, ...), as (num_chunks, size, ...)."""
        inner = values.shape[1:].as_list()
        padding = [[0, self.num_chunks * self.size - self.number], *([0, 0] for _ in inner)]
        is_even = isinstance(self.number, int) and self.number % self.num_chunks == 0
        filled = values if is_even else tf.pad(values, padding)
        return tf.reshape(filled, [self.num_chunks, self.size, *inner])

    def joined(self, values: tf.Tensor) -> tf.Tensor:
        """The reverse of `divided`."""
        return tf.reshape(values, [self.num_chunks * self.size, *values.shape[2:]])[: self.number]


def _loop(body: Callable[..., Any], num_chunks: int, *first: Any) -> list[Any]:
    """Runs the body for each chunk, one at a time."""
    done = tf.while_loop(lambda chunk, *rest: chunk < num_chunks, body, (tf.constant(0), *first), parallel_iterations=1)
    return list(done[1:])


@contextlib.contextmanager
def logits_in_chunks(model: keras.Model, *, num_chunks: int, trains: bool = True) -> Iterator[None]:
    """While tracing a step: sparse cross-entropies, and metrics of the same logits, are computed by chunks of rows.

    Args:
        model: what is trained or evaluated.
        num_chunks: number of chunks that a replica's tokens are divided into.
        trains: whether a model without such a loss is refused.

    Raises:
        PlanError: if no loss of a training step could be computed in chunks; the message says what is in the way.
    """
    in_chunks: set[tuple[int, str]] = set()  # keys of the products whose cross-entropy is in chunks
    in_the_way: list[str] = []  # operations between other logits and their product

    def row_function(function: RowFunction, labels: Any, logits: Any, *, dtype: tf.DType | None = None) -> Any:
        if labels is not None and not _fits(labels := tf.convert_to_tensor(labels), logits):
            return None
        product = find_product(logits)
        if isinstance(product, str):
            in_the_way.extend([product] if dtype is None else [])
            return None
        if dtype is None:
            in_chunks.add(product.key)
        elif product.key not in in_chunks:
            return None
        values = by_chunks(function, labels, product, num_chunks, dtype=dtype or logits.dtype)
        made = tf.reshape(values, product.leading)
        made.set_shape(logits.shape[:-1])
        return made

    plain = attributes_of_each((head, {"call": left_by_user(head, "call")}) for head in _heads(model))
    with plain, functions_of_logits(row_function), _losses_by_token(row_function):
        yield
    if trains and not in_chunks:
        ways = ", ".join(dict.fromkeys(in_the_way))
        reason = (
            f"{ways} stands between its logits and their matrix product (IdentityN: a function with its own gradient)"
            if ways
            else "none of its losses is a sparse categorical cross-entropy, or a loss with is_by_token = True"
        )
        raise PlanError(
            f"logit_chunks divides the logits of a last Dense layer and their sparse categorical cross-entropy, but "
            f"for model {model.name!r} {reason}. Use logit_chunks=1."
        )


def _heads(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers that make a model's outputs by a matrix product: not to be recomputed, nor replaced by kernels."""
    makers = {private_api.name_of_maker(output) for output in getattr(model, "outputs", None) or []}
    kinds = (keras.layers.Dense, keras.layers.EinsumDense)
    return [layer for layer in model.layers if layer.name in makers and isinstance(layer, kinds)]


def _fits(labels: Any, logits: Any) -> bool:
    """Whether there is a label for each row of the logits; Keras refuses others."""
    if not all(isinstance(one, tf.Tensor) and one.shape.rank for one in (labels, logits)):
        return False
    rows = logits.shape[:-1]
    return bool(labels.shape.is_compatible_with(rows) or labels.shape.is_compatible_with([*rows, 1]))


def _losses_by_token(row_function: Callable[..., Any]) -> contextlib.ExitStack:
    """Patches the `call` of each loss class that says `is_by_token`."""
    stack, waiting = contextlib.ExitStack(), [keras.losses.Loss]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if vars(kind).get("is_by_token") and "call" in vars(kind):

            def call(self: keras.losses.Loss, y_true: Any, y_pred: Any, original: Any = kind.call) -> Any:
                values = row_function(partial(original, self), y_true, y_pred)
                return original(self, y_true, y_pred) if values is None else values

            stack.enter_context(patched(kind, call=call))
    return stack
