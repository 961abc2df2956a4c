"""`Deferred`: a value that another process unpickles only when it first needs it.

Loading a Keras object creates variables, which starts TensorFlow. A worker must set its devices, its threads and its
cluster before that.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
_how: ContextVar[tuple[Callable[[Any], bytes], Callable[[Any], str]]] = ContextVar("how")


@contextlib.contextmanager
def pickled_with(dumps: Callable[[Any], bytes], get_signature: Callable[[Any], str]) -> Iterator[None]:
    """Allows `Deferred` objects to be pickled in the block: their values with `dumps`, signed with `get_signature`."""
    token = _how.set((dumps, get_signature))
    try:
        yield
    finally:
        _how.reset(token)


class Deferred(Generic[T]):
    """A value; unpickling this object leaves the value pickled until `get` is called.

    Example:
        >>> with pickled_with(pickle.dumps, repr):
        ...     sent = pickle.dumps(Deferred([1, 2]))
        >>> there = pickle.loads(sent)
        >>> there.signature, there.get()
        ('[1, 2]', [1, 2])
    """

    def __init__(self, value: T) -> None:
        self._value: T | None = value
        self._pickled: bytes | None = None
        self._signature = ""

    @property
    def signature(self) -> str:
        """The signature of a value that came from another process; empty for others."""
        return self._signature

    def get(self) -> Any:
        """The value, which is unpickled at the first call."""
        if self._value is None and self._pickled is not None:
            self._value = pickle.loads(self._pickled)
        return self._value

    def sent(self) -> Any:
        """The value that is pickled for another process."""
        return self._value

    def __getstate__(self) -> tuple[bytes, str, dict[str, Any]]:
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        if self._pickled is not None:
            return self._pickled, self._signature, public
        dumps, get_signature = _how.get()
        return dumps(self.sent()), get_signature(self._value), public

    def __setstate__(self, state: tuple[bytes, str, dict[str, Any]]) -> None:
        self._pickled, self._signature, public = state
        self._value = None
        vars(self).update(public)


class DeferredItems(Sequence[T]):
    """A sequence that is loaded when its items are first needed.

    Args:
        load: loads the items.

    Example:
        >>> list(DeferredItems(lambda: [1, 2]))
        [1, 2]
    """

    def __init__(self, load: Callable[[], Sequence[T]]) -> None:
        self._load = load
        self._items: Sequence[T] | None = None

    def _loaded(self) -> Sequence[T]:
        if self._items is None:
            self._items = self._load()
        return self._items

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._loaded()[index]

    def __len__(self) -> int:
        return len(self._loaded())
