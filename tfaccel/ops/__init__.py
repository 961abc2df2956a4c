"""Operations for losses and layers that look across the rows of a batch, right under every strategy."""

from tfaccel.training.steps.gather_rows import all_gather_rows

__all__ = ["all_gather_rows"]
