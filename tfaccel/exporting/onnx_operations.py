"""Operations that tf2onnx does not know, in the words of ONNX."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


@functools.cache
def add_operations() -> None:
    """Tells tf2onnx how to write `Erfc`, which Keras's exact GELU uses: 1 - Erf(x).

    Source: https://github.com/onnx/tensorflow-onnx (`tf2onnx.handler.tf_op`).
    """
    from tf2onnx.handler import tf_op

    @tf_op("Erfc")
    class Erfc:
        """The complementary error function."""

        @classmethod
        def version_9(cls, context: Any, node: Any, **settings: Any) -> None:
            """Replaces a node by two."""
            del settings
            name, output = node.name, node.output[0]
            shape, dtype = context.get_shape(output), context.get_dtype(output)
            inputs = list(node.input)
            context.remove_node(name)
            kind = np.float64 if dtype == _DOUBLE else np.float32
            one = context.make_const(f"{name}_one", np.array(1.0, kind)).output[0]
            erf = context.make_node("Erf", inputs, name=f"{name}_erf", shapes=[shape], dtypes=[dtype])
            context.make_node("Sub", [one, erf.output[0]], name=name, outputs=[output], shapes=[shape], dtypes=[dtype])


_DOUBLE = 11  # by its number in ONNX
