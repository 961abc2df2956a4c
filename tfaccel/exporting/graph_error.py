"""Extracts the reason from errors in TensorFlow graphs."""

from __future__ import annotations

_MAX_REASON_LENGTH = 300  # characters


def graph_error_reason(error: BaseException) -> str:
    """The reason in an error's message, on one line.

    Messages of graph errors contain the location and a traceback before the reason, and the node after it.

    Example:
        >>> graph_error_reason(ValueError("Detected at node a, defined at:\\n  File x\\n\\ntoo high\\n [[{{a}}]]"))
        'too high'
    """
    text = str(getattr(error, "message", "") or error).removeprefix("Graph execution error:")
    before = text.partition("[[")[0]
    lines = [" ".join(line.split()) for line in before.splitlines() if line.strip()]
    if "Detected at node" in before and lines:
        return lines[-1][:_MAX_REASON_LENGTH]
    plain = " ".join(lines) or " ".join(text.split()) or type(error).__name__
    return plain[:_MAX_REASON_LENGTH]
