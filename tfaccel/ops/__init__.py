"""Operations for losses and layers that combine the rows of a batch, correct under every strategy."""

from tfaccel.training.steps.gather_rows import all_gather_rows

__all__ = ["all_gather_rows"]
