"""Errors that tfaccel raises for users. Each message says what was received, what was expected and how to fix it."""

import inspect
import re
import sys
import warnings
from pathlib import Path
from typing import Any
from unicodedata import category

# TensorFlow also raises ResourceExhaustedError for a full disk, too many open files and long messages.
_SHORT_OF_MEMORY = re.compile(r"\bOOM\b|out of memory|failed to allocate|allocating \d+ bytes", re.IGNORECASE)
_TERMINAL_CODE = re.compile(r"\x1b\[[\d;]*m")
_CONTROL = ("Cc", "Cf", "Cs")  # control and format characters, and halves of characters


class TfaccelError(Exception):
    """Base class of all errors for users; commands print it on one line and exit with status 2.

    Attributes:
        exit_status: a command's exit status.
    """

    exit_status = 2

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    r"""A text without control characters: a name in a file from elsewhere may hold escape sequences for the terminal.

    Example:
        >>> printable("a\x1b[2Jb\n")
        'a\\x1b[2Jb\n'
    """
    return "".join(
        one.encode("unicode_escape").decode() if one not in "\n\t" and category(one) in _CONTROL else one
        for one in text
    )


def in_one_line(error: object, most: int | None = None) -> str:
    r"""The text of another library's error in one line, without Keras's bold letters and list of arguments.

    Args:
        most: characters; None for all.

    Example:
        >>> in_one_line(ValueError("\x1b[1mwrong\x1b[0m\n shape"))
        'wrong shape'
    """
    return " ".join(_TERMINAL_CODE.sub("", str(error)).split()).partition(" Arguments received by")[0][:most]


class PlanError(TfaccelError, ValueError):
    """A plan that cannot run: an invalid combination, or one that this machine or process cannot provide."""


class HardwareError(TfaccelError, ValueError):
    """A hardware description that cannot be read, or a missing device."""


class DataError(TfaccelError, ValueError):
    """Data that cannot be read or used for training."""


class CoupledRowsError(TfaccelError, ValueError):
    """A model on several replicas that couples the rows of a batch; the message names the component that does so."""


class RunDirError(TfaccelError, ValueError):
    """A run directory that cannot be used, for example because it holds another run."""


class WorkloadError(TfaccelError, ValueError):
    """A recipe or workload that does not exist, is invalid, or does not support the request."""


class ClusterError(TfaccelError, RuntimeError):
    """Workers of a cluster cannot start or continue together: one did not connect, or is lost.

    Commands exit with status 138: if all workers are started again with `--resume=auto`, they may continue.
    """

    exit_status = 138


class ClusterSettingsError(ClusterError):
    """Settings with which workers cannot train together, such as the same index twice; starting again does not help."""

    exit_status = 2


class LaunchError(TfaccelError, ValueError):
    """Workers that cannot be launched as requested."""


class CompressionError(TfaccelError, ValueError):
    """A model that cannot be compressed as requested; the message names the layer, method or data that prevents it."""


class ExportError(TfaccelError, ValueError):
    """A model that cannot be loaded or written; the message names the file, layer or signature that prevents it."""


class ServeError(TfaccelError, ValueError):
    """A server that cannot start as requested."""


class SearchError(TfaccelError, ValueError):
    """A hyperparameter search that cannot start or continue."""


class ReportError(TfaccelError, ValueError):
    """A report that cannot be written, or measurements for it that cannot be read."""


class RunStopped(TfaccelError, RuntimeError):
    """Training was stopped by SIGTERM after a checkpoint was saved; the message says where it is and how to continue.

    Commands exit with status 138, which asks whoever started them to start them again.

    Attributes:
        step: number of batches that the run has trained.
        checkpoint: path of the checkpoint, on the worker that writes the run directory.
    """

    exit_status = 138
    step: int
    checkpoint: Path


class NonFiniteLossError(TfaccelError, ArithmeticError):
    """The loss, a gradient or a weight became NaN or infinite; the message names the step and, if known, the cause.

    Attributes:
        epoch, step: the epoch, and the batch in it, counted from 1; None if several steps failed.
        examples: the row numbers, in the data, of the examples that cause it; empty if they are not known.
        is_explained: whether the message names a cause.
    """

    epoch: int | None = None
    step: int | None = None
    examples: tuple[int, ...] = ()
    is_explained: bool = False


class OutOfMemoryError(TfaccelError, RuntimeError):
    """A training step that does not fit into memory and may not be split further; the message names what helps."""


class VersionError(TfaccelError, RuntimeError):
    """An installed package lacks an attribute that tfaccel needs; the message names versions that have it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of TensorFlow means that memory is short, on the host or on a device.

    Example:
        >>> import tensorflow as tf
        >>> is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9]"))
        True
        >>> is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "model.keras; No space left on device"))
        False
    """
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        return False
    is_shortage = isinstance(error, tf.errors.ResourceExhaustedError | tf.errors.InternalError)
    return is_shortage and _SHORT_OF_MEMORY.search(str(error)) is not None


def warn_user(text: str) -> None:
    """A `UserWarning` at the line that called tfaccel."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tfaccel":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
