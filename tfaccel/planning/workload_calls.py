"""Calls of the user's functions in a workload, whose errors are reported with file and line."""

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tfaccel.errors import TfaccelError, WorkloadError
from tfaccel.known_names import hint_of_keras_error

# The arguments that tfaccel calls each function of a workload with.
_CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "build_model": ("build_model()", (), {}),
    "compile_args": ("compile_args(num_steps) or compile_args()", (), {}),
    "train_data": ("train_data(global_batch_size, *, seed, epoch)", (1,), {"seed": 0, "epoch": 0}),
    "validation_data": ("validation_data(global_batch_size)", (1,), {}),
    "callbacks": ("callbacks()", (), {}),
    "augment": ("augment(batch)", (None,), {}),
    "judge": ("judge(model)", (None,), {}),
    "show_result": ("show_result(workload, result)", (None, None), {}),
}


def check_parameters(name: str, function: Any) -> None:
    """Raises WorkloadError if a workload's function does not take the arguments that tfaccel passes.

    Example:
        >>> check_parameters("validation_data", lambda global_batch_size: None)
    """
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return
    text, positional, named = _CALLS[name]
    signature = inspect.signature(function)
    if name == "compile_args" and takes_num_steps(function):
        named = {"num_steps": 1}
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        raise WorkloadError(
            f"A workload's {name} is called as {text}. Received a function of {signature}: {error}."
        ) from error


def takes_num_steps(function: Callable[..., Any]) -> bool:
    """Whether a workload's `compile_args` has the parameter `num_steps`.

    Example:
        >>> takes_num_steps(lambda num_steps: {}), takes_num_steps(dict)
        (True, False)
    """
    try:
        return "num_steps" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a class or builtin without a signature
        return False


def call_own(of: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a user's function.

    Args:
        of: a description of the function, such as "build_model of workload 'digits'".
        function: the function, which is called with the other arguments.

    Raises:
        WorkloadError: for any error of the function except tfaccel's; the message names the line.

    Example:
        >>> call_own("the sum", sum, [1, 2])
        3
    """
    try:
        return function(*args, **kwargs)
    except TfaccelError:
        raise
    except Exception as error:
        rest = error.__traceback__ and error.__traceback__.tb_next  # this function is of no interest
        text = " ".join(str(error).split()) or "no message"
        raise WorkloadError(
            f"{of} raised {type(error).__name__}: {text:.1000}{hint_of_keras_error(text)}{_place(rest)}"
        ) from error.with_traceback(rest)


def _is_own(file: Path) -> bool:
    return "site-packages" not in file.parts and file.exists()


def _place(trace: TracebackType | None) -> str:
    """The innermost line outside of libraries, such as " (mine.py, line 3, in build_model)"."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if _is_own(Path(frame.filename))]
    if not own:
        return ""
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name})"
