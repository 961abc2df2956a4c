"""Operations for losses, layers and steps that combine the rows of a batch, correct under every strategy."""

from typing import Any

from tfaccel.known_names import no_attribute
from tfaccel.training.steps.all_reduce import mean_over_replicas, sum_over_replicas
from tfaccel.training.steps.gather_rows import all_gather_rows

__all__ = ["all_gather_rows", "mean_over_replicas", "sum_over_replicas"]


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name, __all__)
