"""Calls of the user's functions in a workload: their arguments, and errors reported with file and line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tfaccel.errors import TfaccelError, WorkloadError
from tfaccel.known_names import did_you_mean, hint_of_keras_error
from tfaccel.planning.plan import plan_field_names

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
# Arguments of `Model.fit` that have another place here.
_OF_FIT = {
    "steps_per_epoch": "An epoch is all of the data: give `dataset.take(n)`.",
    "initial_epoch": 'A run goes on by itself: tfaccel.train(..., resume="auto").',
    "validation_steps": "Validation uses all of its data: give `dataset.take(n)`.",
    "validation_batch_size": "Validation uses the batch size of training, or that of its own dataset.",
    "validation_freq": "Validation comes after each epoch.",
    "verbose": "It is an argument of tfaccel.train.",
}
# Names that other libraries have for fields of a plan.
OTHER_NAMES = {
    **dict.fromkeys(("precision", "mixed_precision", "dtype"), "dtype_policy"),
    **dict.fromkeys(("distribution", "distribute", "distribute_strategy", "distribution_strategy"), "strategy"),
    "xla": "jit_compile",
    **dict.fromkeys(("gpus", "num_gpus", "device", "accelerator"), "devices"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "accumulation_steps"),
}
_VALUES = {
    "dtype_policy": "mixed_bfloat16",
    "strategy": "mirrored",
    "jit_compile": True,
    "devices": ["GPU:0", "GPU:1"],
    "accumulation_steps": 2,
}
# Arguments of `train` and `Workload.of` that stand beside those of `Model.compile`.
_BESIDE = (
    *("run_dir", "plan", "epochs", "seed", "resume", "checkpoint_interval", "callbacks", "batch_size", "shuffle"),
    *("validation_data", "validation_split", "sample_weight", "class_weight", "on_nonfinite", "num_workers"),
)


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


def advice(name: str, known: tuple[str, ...]) -> str:
    """What to write in place of an unknown argument, as the end of a sentence.

    Args:
        name: the unknown argument.
        known: those that it may be instead, such as the ones of `Model.compile`.

    Example:
        >>> advice("optimiser", ("optimizer", "loss"))
        ". Did you mean 'optimizer'?"
    """
    if name in _OF_FIT:
        return f". {_OF_FIT[name]}"
    if name in OTHER_NAMES:
        field = OTHER_NAMES[name]
        return f". Here it is a field of the plan: tfaccel.train(..., {field}={_VALUES[field]!r})."
    if name in plan_field_names():
        return f", since it is a field of the plan. Pass it to the verb: tfaccel.train(..., {name}=...)."
    field = did_you_mean(name, plan_field_names(), closeness=0.8)
    return "." + (field or did_you_mean(name, (*known, *_BESIDE)) or f" Options: {', '.join(known)}.")
