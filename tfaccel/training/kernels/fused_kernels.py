"""Puts fused kernels in place of Keras's operations while a training step is traced.

The user's layers and optimizers keep their classes, weights and files: only the graph is another one. Each kernel
computes the same function as Keras, with other rounding. A layer or an optimizer whose class overrides Keras's
computation is left alone, and so is what XLA compiles: it fuses by itself. Only attention is replaced there, on GPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

from tfaccel.training.kernels.attention import fused_attention
from tfaccel.training.kernels.dense import fused_dense, fused_einsum_dense, fused_gelu
from tfaccel.training.kernels.flash_attention import flash_kernel
from tfaccel.training.kernels.normalization import fused_batch_normalization, fused_layer_normalization
from tfaccel.training.kernels.optimizer_updates import fused_update
from tfaccel.training.kernels.recurrent import fused_gru, fused_lstm
from tfaccel.training.private import private_api
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.overrides import instance_attributes

LAYER_KERNELS = (
    *(fused_dense, fused_einsum_dense, fused_gelu, fused_attention),
    *(fused_batch_normalization, fused_layer_normalization, fused_lstm, fused_gru),
)


@contextlib.contextmanager
def fused_kernels(model: keras.Model) -> Iterator[None]:
    """While tracing a training step: the model's layers and optimizers use fused kernels where there are some."""
    with contextlib.ExitStack() as stack:
        for layer in private_api.all_layers(model):
            for kernel in LAYER_KERNELS:
                stack.enter_context(instance_attributes(layer, kernel(layer)))
        for optimizer in get_optimizers(model).values():
            inner = inner_optimizer(optimizer)
            stack.enter_context(instance_attributes(inner, fused_update(inner)))
        yield


@contextlib.contextmanager
def kernels_in_xla(model: keras.Model) -> Iterator[None]:
    """While tracing a training step that XLA compiles for GPUs: attention is one kernel where it can be."""
    with contextlib.ExitStack() as stack:
        for layer in private_api.all_layers(model):
            stack.enter_context(instance_attributes(layer, flash_kernel(layer)))
        yield
