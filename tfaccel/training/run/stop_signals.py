"""SIGTERM and Ctrl-C during training: noticed at once, obeyed when the steps in progress have ended.

Python runs a signal's handler between two operations of the main thread, but a graph call that traces and compiles may
take minutes. So a thread learns of each signal from the file descriptor of `signal.set_wakeup_fd`: it says what will
happen, and ends the process when a signal is repeated or the grace time is over.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from tfaccel.errors import TfaccelError
from tfaccel.processes.launched import RETRY

logger = logging.getLogger("tfaccel")

GRACE_VARIABLE = "TFACCEL_GRACE_SECONDS"
DEFAULT_GRACE_SECONDS = 15.0
_SAME_SIGNAL_SECONDS = 0.5  # a launcher may forward a signal that the scheduler has sent to its workers as well
_MAIN_THREAD_SECONDS = 1.0  # for the main thread to raise KeyboardInterrupt after a second Ctrl-C
_END = 0  # written to the thread's pipe

_FIRST = {
    signal.SIGTERM: "Received SIGTERM: training saves a checkpoint after the steps in progress, and stops. A second "
    "SIGTERM ends the process at once.",
    signal.SIGINT: "Ctrl-C: training saves a checkpoint after the steps in progress, and stops. Press Ctrl-C again to "
    "stop now, without saving.",
}
_SECOND = "Stopped without saving."
_CONTINUES = "The same command with --resume=auto continues from the newest checkpoint."

_active: StopSignals | None = None


def grace_seconds(environ: Mapping[str, str] | None = None) -> float:
    """The time between SIGTERM and the end of the process: the value of `TFACCEL_GRACE_SECONDS`, or 15 seconds.

    Example:
        >>> grace_seconds({}), grace_seconds({"TFACCEL_GRACE_SECONDS": "120"})
        (15.0, 120.0)
    """
    text = (os.environ if environ is None else environ).get(GRACE_VARIABLE, "").strip()
    try:
        seconds = float(text) if text else DEFAULT_GRACE_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 10**8:
        raise TfaccelError(f"{GRACE_VARIABLE} must be a number of seconds above 0. Received: {GRACE_VARIABLE}={text}.")
    return seconds


class StopSignals:
    """A context manager that notices SIGTERM and Ctrl-C; the earlier handlers are called too, and are back afterwards.

    Outside the main thread, where Python allows no handlers, and for signals that the process ignores, it does nothing.

    A second SIGTERM ends the process with status 143, and a second Ctrl-C raises KeyboardInterrupt; if the main thread
    is inside a graph call, the process ends with status 130 after a second, except in a notebook or at a prompt. If
    training has not stopped when the grace time after SIGTERM is over, and is not saving, the process ends with the
    status 138, which asks for another start.

    Args:
        continues: a sentence that says how to continue after a stop.

    Attributes:
        asked: the first signal that was received; None if there was none.
    """

    def __init__(self, grace_seconds: float, continues: str = _CONTINUES) -> None:
        self._grace_seconds, self._continues = grace_seconds, continues
        self.asked: signal.Signals | None = None
        self._before: dict[int, Any] = {}
        self._passed_on: set[int] = set()  # signals that a handler of the user's was called for
        self._raised: BaseException | None = None  # by such a handler
        self._handled_at: dict[int, float] = {}  # when the handler first ran
        self._noticed_at: dict[int, float] = {}  # when the thread first learned of a signal
        self._repeated: set[int] = set()
        self._interrupted = threading.Event()  # KeyboardInterrupt is raised
        self._saving = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        global _active
        _active = self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._outer = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="tfaccel stop signals", daemon=True)
        self._thread.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        global _active
        _active = None
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        signal.set_wakeup_fd(self._outer)
        os.write(self._write, bytes([_END]))
        self._thread.join()
        os.close(self._write)
        os.close(self._read)
        if kind is None:  # training has ended before it could stop
            self.raise_what_handlers_raised()
            if self.asked is not None and self.asked not in self._passed_on:
                signal.raise_signal(self.asked)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Within the block, the end of the grace time does not end the process."""
        self._saving = True
        try:
            yield
        finally:
            self._saving = False

    def raise_what_handlers_raised(self) -> None:
        """Raises what the user's handler raised, for example SystemExit, which had to wait for the checkpoint."""
        if self._raised is not None:
            raise self._raised

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of both signals, in the main thread."""
        now = time.monotonic()
        is_first = number not in self._handled_at
        began = min(self._handled_at.setdefault(number, now), self._noticed_at.get(number, now))
        if number in self._repeated or (not is_first and now - began >= _SAME_SIGNAL_SECONDS):
            if number == signal.SIGINT:
                self._interrupted.set()
                raise KeyboardInterrupt(f"{_SECOND} {self._continues}")
            return
        if self.asked is None:
            self.asked = signal.Signals(number)
        before = self._before.get(number)
        if callable(before) and before is not signal.default_int_handler and number not in self._passed_on:
            self._passed_on.add(number)
            try:
                before(number, frame)
            except BaseException as error:  # it must not prevent the checkpoint
                self._raised = error

    # --- In the thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        ends_at: float | None = None
        while True:
            seconds = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            if not select.select([self._read], [], [], seconds)[0]:
                if not self._saving:
                    self._end_late()
                ends_at = time.monotonic() + _MAIN_THREAD_SECONDS
                continue
            for number in os.read(self._read, 256):
                if number == _END:
                    return
                if self._outer >= 0:  # such as the event loop of a notebook
                    with contextlib.suppress(OSError):
                        os.write(self._outer, bytes([number]))
                if number in self._before:
                    self._notice(number)
                    if number == signal.SIGTERM and ends_at is None:
                        ends_at = time.monotonic() + self._grace_seconds

    def _notice(self, number: int) -> None:
        now = time.monotonic()
        if number not in self._noticed_at:
            self._noticed_at[number] = now
            logger.warning(_FIRST[signal.Signals(number)])
        elif now - self._noticed_at[number] >= _SAME_SIGNAL_SECONDS:
            self._repeated.add(number)
            if number == signal.SIGTERM:
                logger.warning("Received SIGTERM again: the process ends now. The newest checkpoint stays.")
                _end_process(128 + number)
            if not self._interrupted.wait(_MAIN_THREAD_SECONDS) and not _is_interactive():
                logger.warning("%s %s", _SECOND, self._continues)
                _end_process(128 + number)

    def _end_late(self) -> None:
        logger.warning(
            "The steps in progress have not ended within %g seconds (%s): the process ends without a new checkpoint. "
            "%s",
            self._grace_seconds,
            GRACE_VARIABLE,
            self._continues,
        )
        _end_process(RETRY)


def _is_interactive() -> bool:
    """Whether the process holds a user's session, which must not end."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules


def _end_process(status: int) -> NoReturn:
    """Ends the process from a thread, as a signal would: whatever the main thread does is not finished."""
    os._exit(status)


def _forget_in_child() -> None:
    """In a process that was forked while training, such as one that loads data: signals work as they did before."""
    global _active
    if _active is not None:
        active, _active = _active, None
        signal.set_wakeup_fd(-1)
        for number, before in active._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


os.register_at_fork(after_in_child=_forget_in_child)
