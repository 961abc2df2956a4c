"""A workload's training data from an object with batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfaccel.data.epoch_positions import Shard


def train_data_of(batches: Callable[[], Any], *, several_epochs: bool = False) -> Callable[..., Any]:
    """A `train_data` for a workload, which is entered at any step and shared among workers.

    Args:
        batches: `batches()` returns the object whose `train` makes an epoch, the same one at every call; see
            `tfaccel.data.pipeline.Pipeline`. It is called when data are wanted, and not before.
        several_epochs: whether `train` also takes `num_epochs`, the number of consecutive epochs.

    Example:
        >>> import inspect
        >>> list(inspect.signature(train_data_of(dict)).parameters)
        ['global_batch_size', 'seed', 'epoch', 'start_step', 'shard']
    """

    def train_data(
        global_batch_size: int, *, seed: int, epoch: int, start_step: int = 0, shard: Shard | None = None
    ) -> Any:
        return batches().train(global_batch_size, seed=seed, epoch=epoch, start_step=start_step, shard=shard)

    def train_data_of_epochs(
        global_batch_size: int,
        *,
        seed: int,
        epoch: int,
        start_step: int = 0,
        shard: Shard | None = None,
        num_epochs: int = 1,
    ) -> Any:
        return batches().train(
            global_batch_size, seed=seed, epoch=epoch, start_step=start_step, shard=shard, num_epochs=num_epochs
        )

    return train_data_of_epochs if several_epochs else train_data
