"""What the Python code of a step draws from `random` and `numpy.random`: constants of the graph being traced.

Keras traces a step once for batches of one kind, on one device. tfaccel traces it on each replica, and in several
graphs: all of them draw what the first trace has drawn. Threads that prepare data meanwhile draw what they would.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tfaccel.training.private.private_tensorflow import same_trace
from tfaccel.training.steps.overrides import attributes_of_each

_KINDS: tuple[tuple[Any, type], ...] = ((random, random.Random), (np.random, np.random.RandomState))
_current = threading.local()  # the innermost `_Drawn` of the thread that traces


class PythonNumbers:
    """The numbers of a step that is traced several times.

    Example:
        >>> numbers, drawn = PythonNumbers(), []
        >>> for _ in range(2):
        ...     with numbers.drawn_again():
        ...         drawn.append((random.random(), np.random.normal()))
        >>> drawn[0] == drawn[1]
        True
        >>> random.random() == drawn[0][0]
        False
    """

    def __init__(self) -> None:
        self._states: Any = None

    def drawn_again(self) -> contextlib.AbstractContextManager[None]:
        """While tracing: what is drawn in the first such block is drawn in all of them."""
        is_first = self._states is None
        if is_first:
            self._states = _get_states()
        return _drawn_from(self._states, goes_on=is_first)


def numbers_not_used_up() -> contextlib.AbstractContextManager[None]:
    """While tracing a graph that Keras does not trace: what it draws is drawn again after the block."""
    return _drawn_from(_get_states(), goes_on=False)


@contextlib.contextmanager
def numbers_kept() -> Iterator[None]:
    """While tracing a part of a step that one device does not run: what it draws is drawn again after the block."""
    drawn = _get_current()
    states = None if drawn is None else drawn.get_states()
    try:
        yield
    finally:
        if drawn is not None:
            drawn.set_states(states)


def same_numbers_on_replicas(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function for `strategy.run`, in which all replicas draw what one device draws; call it where they are run."""
    drawn = _get_current()
    if drawn is None:
        return run
    start, ended = drawn.get_states(), []

    def on_replica(*args: Any) -> Any:
        with drawn.thread_begins_at(start):
            result = run(*args)
            ended.append(drawn.get_states())
        drawn.set_states(ended[0])
        return result

    return on_replica


class _Drawn:
    """The generators from which the threads of one trace draw.

    Attributes:
        by_others: whether another thread has drawn from those of Python and NumPy.
    """

    def __init__(self, states: Any) -> None:
        self._traces = same_trace()
        self._of_trace = _with_states(states)
        self._of_threads: dict[int, dict[Any, Any]] = {}
        self.by_others = False

    @property
    def _generators(self) -> dict[Any, Any]:
        return self._of_threads.get(threading.get_ident(), self._of_trace)

    def get_states(self) -> Any:
        """The states of this thread's generators."""
        return self._generators[random].getstate(), self._generators[np.random].get_state()

    def set_states(self, states: Any) -> None:
        """Sets those of this thread, or of the trace."""
        self._generators[random].setstate(states[0])
        self._generators[np.random].set_state(states[1])

    @contextlib.contextmanager
    def thread_begins_at(self, states: Any) -> Iterator[None]:
        """Within the block, this thread has generators of its own."""
        thread = threading.get_ident()
        before = self._of_threads.get(thread)
        self._of_threads[thread] = _with_states(states)
        try:
            yield
        finally:
            del self._of_threads[thread]
            if before is not None:
                self._of_threads[thread] = before

    def functions(self, module: Any, kind: type) -> dict[str, Callable[..., Any]]:
        """The functions of a module that draw from these generators."""

        def drawing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def draw(*args: Any, **kwargs: Any) -> Any:
                if self._traces():
                    return getattr(self._generators[module], name)(*args, **kwargs)
                self.by_others = True
                return original(*args, **kwargs)

            return draw

        names = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(module, name, None))]
        return {name: drawing(name, getattr(module, name)) for name in names}


@contextlib.contextmanager
def _drawn_from(states: Any, *, goes_on: bool) -> Iterator[None]:
    """While tracing: numbers are drawn from generators that begin with given states.

    Args:
        goes_on: whether those of Python and NumPy go on where these end. Whatever has drawn from them meanwhile, such
            as functions that were imported by name, is put back, unless other threads have drawn from them, too: those
            would see numbers again.
    """
    before, outer, drawn = _get_states(), _get_current(), _Drawn(states)
    _current.drawn = drawn
    try:
        with attributes_of_each((module, drawn.functions(module, kind)) for module, kind in _KINDS):
            yield
    finally:
        _current.drawn = outer
        if not drawn.by_others:
            python, of_numpy = drawn.get_states() if goes_on else before
            random.setstate(python)
            np.random.set_state(of_numpy)


def _get_current() -> _Drawn | None:
    return getattr(_current, "drawn", None)


def _get_states() -> Any:
    return random.getstate(), np.random.get_state()


def _with_states(states: Any) -> dict[Any, Any]:
    """New generators of each module, with given states."""
    python, of_numpy = random.Random(), np.random.RandomState()
    python.setstate(states[0])
    of_numpy.set_state(states[1])
    return {random: python, np.random: of_numpy}
