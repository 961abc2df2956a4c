"""Attention by cuDNN's flash kernel, inside what XLA compiles for an NVIDIA GPU.

Keras's attention writes the scores of all pairs of a query and a key to memory, several times in both directions. The
flash kernel keeps them on the chip (Dao et al., "FlashAttention", https://arxiv.org/abs/2205.14135). XLA has it as a
custom call.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private import private_layers
from tfaccel.training.private.private_tensorflow import xla_module
from tfaccel.training.runtime import compiling

DTYPES = (tf.bfloat16, tf.float16)
_SIZE_STEP, _MAX_SIZE = 8, 128
_MAX_TRIED = 1024
_FORWARD, _BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
_TOLERANCE = 0.02  # of the largest value: 16-bit rounding
_GPU = "GPU:0"
logger = logging.getLogger("tfaccel")

# The operands of each product of matrices: axes that are summed over, and axes of batch and head.
# `rows` is (batch, position, head, size), `pairs` is (batch, head, query, key).
_Product = tuple[int, int, tuple[int, int], tuple[int, int]]
_ROWS, _PAIRS = (0, 2), (0, 1)
_FORWARD_PRODUCTS: dict[str, _Product] = {
    "bmm1": (3, 3, _ROWS, _ROWS),  # scores: queries x keys
    "bmm2": (3, 1, _PAIRS, _ROWS),  # output: shares x values
}
_BACKWARD_PRODUCTS: dict[str, _Product] = {
    "bmm1_grad_gemm1": (2, 1, _PAIRS, _ROWS),  # gradient of keys: that of scores x queries
    "bmm1_grad_gemm2": (3, 1, _PAIRS, _ROWS),  # of queries: that of scores x keys
    "bmm2_grad_gemm1": (2, 1, _PAIRS, _ROWS),  # of values: shares x that of the output
    "bmm2_grad_gemm2": (3, 3, _ROWS, _ROWS),  # of shares: that of the output x values
}


def flash_kernel(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `MultiHeadAttention` use `flash_attention` where it can; {} for other layers.

    Left to Keras are attention with a mask of its own, with dropout of scores, or over several axes, other dtypes,
    unknown shapes, calls that return scores, and GPUs on which the kernel does not work.
    """
    if not private_layers.computes_keras_attention(layer) or private_layers.drops_scores(layer):
        return {}

    def compute(query: Any, key: Any, value: Any, **given: Any) -> Any:
        is_causal = bool(given.get("use_causal_mask"))
        is_plain = given.get("attention_mask") is None and not given.get("return_attention_scores")
        fits = is_plain and private_layers.attends_over(layer, axes=(1,)) and takes_flash(query, key, value)
        if is_plain and query.shape.rank == 4 and query.shape[0] is None and query.dtype in DTYPES:
            logger.info("Keras's attention is used in %r: its kernel needs batches of one size.", layer.name)
        if not (fits and flash_works(query.dtype, (*query.shape[1::2], key.shape[1]), is_causal)):
            return private_layers.keras_attention(layer, query, key, value, **given)
        scale = private_layers.attention_scale(layer)
        return flash_attention(query, key, value, scale=scale, is_causal=is_causal), None

    return private_layers.attention_attributes(compute)


def takes_flash(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> bool:
    """Whether the kernel computes attention of these tensors: 16-bit, known shapes, heads of at most 128 values."""
    shapes = [one.shape for one in (query, key, value)]
    is_known = all(shape.rank == 4 and shape.is_fully_defined() for shape in shapes)
    if not is_known or query.dtype not in DTYPES or {key.dtype, value.dtype} != {query.dtype}:
        return False
    size = shapes[0][3]
    same_heads = all(shape[2] == shapes[0][2] and shape[3] == size for shape in shapes)
    return same_heads and size % _SIZE_STEP == 0 and size <= _MAX_SIZE


def flash_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *, scale: float, is_causal: bool = False
) -> tf.Tensor:
    """Scaled dot-product attention by cuDNN's flash kernel; only in a function that XLA compiles for an NVIDIA GPU.

    Args:
        query: shape `(batch, queries, heads, size)`, bfloat16 or float16.
        key, value: shapes `(batch, keys, heads, size)`, of the same dtype.
        scale: the factor of the scores.
        is_causal: whether a query may only use keys up to its own position.

    Returns:
        Shape `(batch, queries, heads, size)`. The softmax is computed in float32. Gradients of gradients are Keras's.
    """
    batch, queries, heads, size = query.shape
    keys = key.shape[1]
    config = functools.partial(
        _config, dims=(batch, heads, queries, keys), dtype=query.dtype, scale=scale, is_causal=is_causal
    )
    rows, columns = (tf.TensorSpec((batch, length, heads, size), query.dtype) for length in (queries, keys))
    sums = tf.TensorSpec((batch, heads, queries), tf.float32)

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Any]:
        found, log_sums = _call(_FORWARD, (query, key, value), (rows, sums), config(_FORWARD_PRODUCTS))

        def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
            return backward(query, key, value, upstream)

        @tf.custom_gradient
        def backward(query: Any, key: Any, value: Any, upstream: Any) -> tuple[list[tf.Tensor], Any]:
            given = (query, key, value, log_sums, tf.cast(upstream, query.dtype), found)
            results = _call(_BACKWARD, given, (rows, columns, columns), config(_BACKWARD_PRODUCTS))

            def of_gradients(*upstreams: tf.Tensor) -> list[tf.Tensor]:  # as for a gradient penalty; by Keras
                same = keras.ops.dot_product_attention(query, key, value, scale=scale, is_causal=is_causal)
                firsts = tf.gradients(same, [query, key, value], upstream)
                given = [query, key, value, upstream]  # the last one may depend on the others: these are partial
                return list(tf.gradients(firsts, given, list(upstreams), stop_gradients=given))

            return results, of_gradients

        return found, gradients

    return attend(query, key, value)


def _call(target: str, operands: Sequence[tf.Tensor], results: Sequence[tf.TensorSpec], config: str) -> list[tf.Tensor]:
    """Calls a kernel of XLA; returns its results without its workspace, to which XLA gives a size.

    The kernel writes rows as (batch, head, position, size), here in the memory layout of (batch, position, head, size):
    swapping the axes then costs nothing.
    """
    given = [_mlir(one.shape, one.dtype) for one in operands]
    swapped = [len(one.shape) == 4 for one in results]
    written = [
        _mlir([one.shape[axis] for axis in ((0, 2, 1, 3) if is_rows else (0, 1, 2))], one.dtype)
        for one, is_rows in zip(results, swapped, strict=True)
    ] + ["tensor<0xui8>"]
    returned = [_mlir(one.shape, one.dtype) for one in results]
    names = [f"%a{number}" for number in range(len(operands))]
    values = [f"%r{number}" if is_rows else f"%k#{number}" for number, is_rows in enumerate(swapped)]
    lines = [
        f"  %r{i} = stablehlo.transpose %k#{i}, dims = [0, 2, 1, 3] : ({written[i]}) -> {returned[i]}"
        for i, is_rows in enumerate(swapped)
        if is_rows
    ]
    arguments = ", ".join(f"{name}: {one}" for name, one in zip(names, given, strict=True))
    operand_layouts = ", ".join(_layout(range(len(one.shape))[::-1]) for one in operands)
    result_layouts = ", ".join([*(_layout((3, 1, 2, 0) if one else (2, 1, 0)) for one in swapped), _layout((0,))])
    module = f"""module @attention {{
func.func public @main({arguments}) -> ({", ".join(returned)}) {{
  %k:{len(written)} = stablehlo.custom_call @{target}({", ".join(names)}) {{api_version = 2 : i32,
    backend_config = {_quoted(config)}, operand_layouts = [{operand_layouts}], result_layouts = [{result_layouts}]}}
    : ({", ".join(given)}) -> ({", ".join(written)})
{chr(10).join(lines)}
  return {", ".join(values)} : {", ".join(returned)}
}}
}}"""
    return xla_module(module, operands, results)


def _mlir(shape: Any, dtype: tf.DType) -> str:
    """The type of a tensor in StableHLO."""
    name = {tf.bfloat16: "bf16", tf.float16: "f16", tf.float32: "f32"}[dtype]
    return f"tensor<{'x'.join(str(size) for size in shape)}x{name}>"


def _layout(axes: Iterable[int]) -> str:
    """A memory layout in StableHLO: axes from the fastest to the slowest."""
    axes = list(axes)
    return f"dense<{axes if len(axes) > 1 else axes[0]}> : tensor<{len(axes)}xindex>"


def _quoted(text: str) -> str:
    """A string in MLIR."""
    quotes = text.replace('"', "\\22")
    return f'"{quotes}"'


def _config(
    products: dict[str, _Product], *, dims: tuple[int, ...], dtype: tf.DType, scale: float, is_causal: bool
) -> str:
    """XLA's `GpuBackendConfig` of a call, as JSON; int64 fields are strings."""
    attention: dict[str, Any] = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": scale,
        "intermediate_tensor_shape": {
            "element_type": {tf.bfloat16: "BF16", tf.float16: "F16"}[dtype],
            "dimensions": [str(one) for one in dims],
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * len(dims),
        },
        "is_flash_attention": True,
        "mask_type": "CAUSAL" if is_causal else "NO_MASK",
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    for name, (left, right, left_batch, right_batch) in products.items():
        attention[f"{name}_dot_dimension_numbers"] = {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": [str(one) for one in left_batch],
            "rhs_batch_dimensions": [str(one) for one in right_batch],
        }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": attention})


@functools.cache
def flash_works(dtype: tf.DType, lengths: tuple[int, int, int], is_causal: bool) -> bool:
    """Whether the GPU computes attention and its gradients with the kernel as without it; tried, and remembered.

    Args:
        dtype: of query, key and value.
        lengths: the number of queries, the size of a head, and the number of keys. Longer sequences than 1,024 are
            tried with as many positions in their last block of 64.
        is_causal: whether a query may only use keys up to its own position.

    Example:
        >>> flash_works(tf.bfloat16, (512, 64, 512), False)  # without an NVIDIA GPU
        False
    """
    if not tf.config.list_logical_devices("GPU"):
        return False
    random = np.random.default_rng(0)
    with tf.init_scope(), tf.device(_GPU):
        queries, size, keys = lengths
        rows, columns = (length if length <= _MAX_TRIED else _MAX_TRIED + length % 64 for length in (queries, keys))
        sizes = [(2, length, 2, size) for length in (rows, columns, columns, rows)]
        given = [tf.constant(random.normal(size=one), dtype) for one in sizes]
        try:
            run = tf.function(attention_and_gradients, jit_compile=True, autograph=False)
            with compiling():
                flash = run(*given, is_causal=is_causal, is_flash=True)
                plain = run(*(tf.cast(one, tf.float32) for one in given), is_causal=is_causal, is_flash=False)
                found, expected = ([tf.cast(one, tf.float32).numpy() for one in some] for some in (flash, plain))
        except tf.errors.OpError as error:
            logger.warning("cuDNN's flash attention does not work here, so Keras's is used: %s", str(error)[:300])
            return False
    for one, other in zip(found, expected, strict=True):
        difference = float(np.abs(one - other).max() / np.abs(other).max())
        if not difference < _TOLERANCE:
            logger.warning("cuDNN's flash attention differs by %.2g here, so Keras's is used.", difference)
            return False
    return True


def attention_and_gradients(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, upstream: tf.Tensor, *, is_causal: bool, is_flash: bool
) -> list[tf.Tensor]:
    """Attention by the flash kernel or by Keras, and its gradients with respect to query, key and value."""
    scale = query.shape[-1] ** -0.5
    attend = flash_attention if is_flash else keras.ops.dot_product_attention
    found = attend(query, key, value, scale=scale, is_causal=is_causal)
    return [found, *tf.gradients(found, [query, key, value], upstream)]
