"""The data of a workload: training and test batches, created on first use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tfaccel.data.epoch_positions import Every, Shard


class Batches:
    """The data that `tfaccel.Workload(data=...)` takes. Creating it does not import TensorFlow, so a run can be planned
    first.

    Args:
        source: the data behind the batches, such as a table; for reporting results (`workload.data.source`).
        make: `make()` returns an object with `train(global_batch_size, *, seed, epoch, start_step, shard)` and
            `test(global_batch_size)`, like `tfaccel.data.Pipeline`. It is called once, on first use.
        num_train_examples: examples in one epoch.
        several_epochs: whether `train` also takes `num_epochs`, the number of consecutive epochs.
        takes_every: whether `train` also takes `every`, so that several data workers can prepare the batches; see
            `tfaccel.Workload`.
        raw_input: the raw data behind the model's tensors; see `tfaccel.Workload`.

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
        takes_every: bool = False,
        raw_input: Any = None,
    ) -> None:
        self.source = source
        self.num_train_examples = num_train_examples
        self.raw_input = raw_input
        self.train_data = make_train_data(self.made, several_epochs=several_epochs, takes_every=takes_every)
        self._make, self._made = make, None

    def made(self) -> Any:
        """The object that `make` returned, the same at every call."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def validation_data(self, global_batch_size: int) -> Any:
        """The test examples in order."""
        return self.made().test(global_batch_size)


def make_train_data(
    batches: Callable[[], Any], *, several_epochs: bool = False, takes_every: bool = False
) -> Callable[..., Any]:
    """A `train_data` for a workload that can start at any step and be sharded across workers.

    Args:
        batches: `batches()` returns the object whose `train` makes an epoch, the same at every call; see
            `tfaccel.data.pipeline.Pipeline`. It is called only when data are needed.
        several_epochs, takes_every: as for `Batches`.

    Example:
        >>> list(inspect.signature(make_train_data(dict)).parameters)
        ['global_batch_size', 'seed', 'epoch', 'start_step', 'shard']
    """

    def train_data(
        global_batch_size: int,
        *,
        seed: int,
        epoch: int,
        start_step: int = 0,
        shard: Shard | None = None,
        num_epochs: int = 1,
        every: Every | None = None,
    ) -> Any:
        part: dict[str, Any] = {"seed": seed, "epoch": epoch, "start_step": start_step, "shard": shard}
        if several_epochs:
            part["num_epochs"] = num_epochs
        if takes_every:
            part["every"] = every
        return batches().train(global_batch_size, **part)

    absent = {"num_epochs": not several_epochs, "every": not takes_every}
    signature = inspect.signature(train_data)
    taken = [parameter for name, parameter in signature.parameters.items() if not absent.get(name)]
    train_data.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    return train_data
