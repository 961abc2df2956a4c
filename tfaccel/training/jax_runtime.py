"""`JaxRuntime`: sets up Keras on JAX in this process, for training steps that are compiled for TPUs without one."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tfaccel.errors import PlanError


class JaxRuntime:
    """A context manager that sets dtype policy and seed for Keras on JAX; leaving restores the policy.

    Args:
        dtype_policy: a dtype policy, such as "mixed_bfloat16".
        seed: seeds Python, NumPy and Keras.

    Raises:
        PlanError: on entering, if Keras has another backend.
    """

    def __init__(self, *, dtype_policy: str, seed: int) -> None:
        self._wanted = dtype_policy
        self._seed = seed
        self._dtype_policy: Any = None

    def __enter__(self) -> Self:
        import keras

        if keras.backend.backend() != "jax":
            raise PlanError(
                f"Keras runs on the backend {keras.backend.backend()!r}, not on 'jax'. Start a new process, or restart "
                "the notebook, and set KERAS_BACKEND=jax before Keras is imported."
            )
        self._dtype_policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self._wanted)
        keras.utils.set_random_seed(self._seed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import keras

        keras.config.set_dtype_policy(self._dtype_policy)
