"""What a program that is timed window by window says to its parent; see `tfaccel.measuring.candidate_child`."""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_KIB = 1024


class Ended(Exception):
    """The parent wants no further window."""


class WindowAnswers:
    """The program's side of the conversation.

    Args:
        connection: to the parent.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._started = time.perf_counter()
        self._num_steps = 0

    def built(self, num_parameters: int) -> None:
        """Says that the model is there, and how many numbers the optimizer updates."""
        seconds = time.perf_counter() - self._started
        self._connection.send({"event": "built", "seconds": seconds, "num_parameters": num_parameters})

    def wait(self) -> int:
        """Waits for an order, and starts the clock; returns the number of steps.

        Raises:
            Ended: if there is no further order.
        """
        order = self._connection.recv()
        if order is None:
            raise Ended
        self._num_steps = int(order)
        self._started = time.perf_counter()
        return self._num_steps

    def done(self, loss: float) -> None:
        """Says that the steps are done, with their mean loss."""
        seconds = time.perf_counter() - self._started
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
        window = {"seconds": seconds, "num_steps": self._num_steps, "loss": loss, "peak_bytes": peak_bytes}
        self._connection.send({"event": "window", **window})


def answered(connection: Connection, run: Callable[[], None]) -> int:
    """Runs a program until there are no further orders; returns the exit status, and says why it failed if it does."""
    try:
        run()
    except (Ended, EOFError):
        return 0
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        connection.send({"event": "failed", "cause": f"{type(error).__name__}: {lines[-1]}"[:300].rstrip(": ")})
        return 1
    return 0


def in_windows(train_function: Callable[..., Any], answers: WindowAnswers) -> Callable[..., Any]:
    """A Keras model's train function, which stops after the ordered number of calls to report their time.

    A callback with batch hooks would make `Model.fit` wait at each batch, which it does not do by default.
    """
    import keras

    left = answers.wait()

    def counted(*arguments: Any) -> Any:
        nonlocal left
        result = train_function(*arguments)
        left -= 1
        if left == 0:
            logs = result[0] if isinstance(result, tuple) else result  # JAX's comes with the new state
            loss = float(keras.ops.convert_to_numpy(logs["loss"]))  # waits for the step
            answers.done(loss)
            left = answers.wait()
        return result

    return counted
