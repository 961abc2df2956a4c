"""Makes attention masks quantizable: replaces huge masking constants by small ones.

Attention adds a number such as -1e9 at masked positions. In int8, one scale has to cover this number and the other
logits, which then all collapse to one value. -16 usually masks a position just as well.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.training.private.private_tensorflow import parse_saved_model

# Constants of this magnitude and above are masks; these replacements are tried.
_MIN_HUGE = 1e6
MASK_VALUES = (16.0, 32.0, 64.0)
_GRAPH = "saved_model.pb"
COPY = "masks_at_"  # prefix of the folders of copies


def has_huge_constants(folder: Path) -> bool:
    """Whether a SavedModel has a constant too large to share a quantization range with others."""
    return any(_is_huge(array).any() for _, array in _constants(_read(folder)))


def copy_with_mask_value(folder: Path, target: Path, value: float) -> None:
    """Copies a SavedModel; huge constants in its graph become `value`, keeping their sign."""
    ignored = shutil.ignore_patterns(f"{COPY}*", _GRAPH)
    shutil.copytree(folder, target, ignore=ignored, copy_function=os.link)  # Weights are linked, not copied.
    model = _read(folder)
    for node, array in _constants(model):
        huge = _is_huge(array)
        if huge.any():
            changed = np.where(huge, np.sign(array) * value, array).astype(np.float32)
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(changed, shape=array.shape))
    (target / _GRAPH).write_bytes(model.SerializeToString())


def best_mask_value(get_error: Callable[[float | None], float]) -> tuple[float | None, str]:
    """The mask value with the smallest output error, and why; None to leave masks unchanged.

    Args:
        get_error: the output error with a value; see `output_error.relative_error`.

    Example:
        >>> best_mask_value({None: 0.9, 16.0: 0.02, 32.0: 0.03, 64.0: 0.05}.get)
        (16.0, 'masks are at -16, which a range can hold: outputs move by 2.0%, with the masks as they were by 90.0%')
    """
    errors: dict[float | None, float] = {value: get_error(value) for value in (None, *MASK_VALUES)}
    best = min(errors, key=lambda value: errors[value])
    if best is None:
        return None, ""
    return best, (
        f"masks are at -{best:g}, which a range can hold: outputs move by {errors[best]:.1%}, with the masks as they "
        f"were by {errors[None]:.1%}"
    )


def _read(folder: Path) -> Any:
    return parse_saved_model((folder / _GRAPH).read_bytes())


def _constants(model: Any) -> Sequence[tuple[Any, np.ndarray]]:
    """The float32 constants of a SavedModel's graph and functions, with their values."""
    graph = model.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    found = [node for node in nodes if node.op == "Const" and node.attr["dtype"].type == tf.float32.as_datatype_enum]
    return [(node, tf.make_ndarray(node.attr["value"].tensor)) for node in found]


def _is_huge(array: np.ndarray) -> np.ndarray:
    return np.abs(array) >= _MIN_HUGE
