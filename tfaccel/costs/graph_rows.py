"""To which row of a table an operation belongs by its name: a layer, the optimizer, the loss, or none.

Layers are found by name scopes that were opened around their `call` while tracing (`layer_scope`). Operations of the
backward pass carry the name of the forward operation that they differentiate, and so the same scope.
"""

from __future__ import annotations

import re

from tfaccel.costs.model_cost import LOSS, OPTIMIZER

_SCOPE = re.compile(r"tfaccel_layer\.(\d+)")
_NUMBER = re.compile(r"_\d+$")


def layer_scope(index: int) -> str:
    """The name scope that marks the operations of layer number `index`."""
    return f"tfaccel_layer.{index}"


def row_of_name(name: str, optimizers: tuple[str, ...]) -> int | str | None:
    """The number of the innermost layer whose scope is in an operation's name; else "optimizer", "loss" or None.

    Args:
        name: of the operation.
        optimizers: names of the optimizers, which open name scopes of that name.

    Example:
        >>> row_of_name("tfaccel_layer.1/tfaccel_layer.4/MatMul", ("adam",)), row_of_name("adam_2/Mul", ("adam",))
        (4, 'optimizer')
    """
    scopes = _SCOPE.findall(name)
    if scopes:
        return int(scopes[-1])
    parts = [_NUMBER.sub("", part) for part in name.split("/")]
    if any(part in (one, _NUMBER.sub("", one)) for part in parts[:-1] for one in optimizers):
        return OPTIMIZER
    return LOSS if "compile_loss" in parts else None
