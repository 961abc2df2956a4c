"""int8 with one scale for each channel of a kernel, or for each kernel, whichever is better for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfaccel.compressing.call_signature import CallSignature
from tfaccel.compressing.litert.file import slim
from tfaccel.compressing.litert.model import LitertModel
from tfaccel.compressing.output_error import relative_error

if TYPE_CHECKING:
    from tfaccel.compressing.litert.post_training import Converter, Rows

# Per-kernel scales must make a file smaller by this fraction to be tried; the output error may grow by this factor at
# most.
_MIN_SAVING = 0.01
_MAX_ERROR = 1.1


def int8_content(converter: Converter, signature: CallSignature, rows: Rows) -> tuple[bytes, str]:
    """The model in int8, and a note on its scales.

    Per-channel scales usually keep outputs closest to the float model's, but take 24 bytes a channel, which is much
    in a small model. Per-kernel scales are used if their output error on the representative examples is at most a
    tenth larger, and the file more than 1 % smaller.

    Args:
        converter: the model's converter.
        signature: the model's call signature.
        rows: representative examples.
    """
    by_channel = converter.convert("int8", rows)
    by_kernel = converter.convert("int8", rows, one_scale=True)
    if len(slim(by_kernel)) > (1 - _MIN_SAVING) * len(slim(by_channel)):
        return by_channel, "one scale for each channel of a kernel"
    expected = _outputs(converter.float_content, signature, rows)
    errors = [relative_error(expected, _outputs(content, signature, rows)) for content in (by_kernel, by_channel)]
    told = (
        f"the outputs for representative examples move by {errors[0]:.1%} with one scale for each kernel, by "
        f"{errors[1]:.1%} with one for each channel"
    )
    if errors[0] <= _MAX_ERROR * errors[1]:
        return by_kernel, f"one scale for each kernel: {told}"
    return by_channel, f"one scale for each channel of a kernel: {told}"


def _outputs(content: bytes, signature: CallSignature, rows: Rows) -> list[dict[str, np.ndarray]]:
    model = LitertModel(content, signature)
    return [model.run(row) for row in rows]
