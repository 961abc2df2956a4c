"""What a worker has in place of a slot that another worker holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.errors import PlanError


class AbsentSlot:
    """Stands for a slot that another worker holds; takes no memory while training.

    Attributes:
        copy: its value, while there is one on this worker.
    """

    device, shape = "", tf.TensorShape([0])

    def __init__(self, name: str, dtype: Any, worker: int) -> None:
        self.name, self.dtype, self.worker = name, tf.as_dtype(dtype), worker
        self.copy: np.ndarray | None = None

    def numpy(self) -> np.ndarray:
        """The copied value.

        Raises:
            PlanError: while there is none.
        """
        if self.copy is None:
            raise PlanError(
                f"The slot {self.name!r} is held by worker {self.worker}, since optimizer_state='sharded'. Read it "
                "on the chief after training, save with `tfaccel.Resume` while training, or use "
                "optimizer_state='replicated'."
            )
        return self.copy

    def assign(self, value: Any) -> None:
        """Changes the copied value, which the worker that holds the slot does not see.

        Raises:
            PlanError: always.
        """
        del value
        raise PlanError(
            f"The slot {self.name!r} is held by worker {self.worker}, since optimizer_state='sharded', so that this "
            "worker cannot assign it. Use optimizer_state='replicated'."
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del copy
        return self.numpy().astype(dtype) if dtype is not None else self.numpy()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.constant(self.numpy(), dtype or self.dtype, name=name or "slot")
