"""The data of a workload: training and test batches that are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfaccel.data.epoch_positions import Shard


class Batches:
    """What `tfaccel.Workload(data=...)` takes. To make it imports no TensorFlow, so that a run can be planned first.

    Args:
        source: what the batches are made of, such as a table; for whoever shows results (`workload.data.source`).
        make: `make()` returns an object with `train(global_batch_size, *, seed, epoch, start_step, shard)` and
            `test(global_batch_size)`, as `tfaccel.data.Pipeline` has them. It is called once, when batches are wanted.
        num_train_examples: examples in one epoch.
        several_epochs: its `train` takes `num_epochs`, too, and gives so many epochs one behind the other.
        raw_input: what the model's tensors are made of; see `tfaccel.Workload`.

    Example:
        >>> import types
        >>> made = types.SimpleNamespace(train=print, test=lambda size: [size])
        >>> Batches("text", lambda: made, num_train_examples=8).validation_data(4)
        [4]
    """

    def __init__(
        self,
        source: Any,
        make: Callable[[], Any],
        *,
        num_train_examples: int,
        several_epochs: bool = False,
        raw_input: Any = None,
    ) -> None:
        self.source = source
        self.num_train_examples = num_train_examples
        self.raw_input = raw_input
        self.train_data = train_data_of(self.made, several_epochs=several_epochs)
        self._make, self._made = make, None

    def made(self) -> Any:
        """The object that `make` returned, the same one at every call."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def validation_data(self, global_batch_size: int) -> Any:
        """The test examples in their order."""
        return self.made().test(global_batch_size)


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
