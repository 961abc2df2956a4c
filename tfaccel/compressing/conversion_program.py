"""The program of the child process that converts SavedModels to LiteRT: requests come in, one a line, and files go out.

TensorFlow's converter does not give back all memory that a conversion takes; in a process of its own it does, at the
end of that process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from tfaccel.compressing.conversion import Conversion, converted, debugger_of, quantized


def main(arguments: list[str]) -> int:
    """Answers requests on standard input until it is closed.

    Arguments:
        arguments: the descriptor to write answers to.
    """
    debuggers: dict[str, Any] = {}
    with os.fdopen(int(arguments[0]), "w") as answers:
        for line in sys.stdin:
            _answer(json.loads(line), debuggers, answers)
    return 0


def _answer(request: dict[str, Any], debuggers: dict[str, Any], answers: TextIO) -> None:
    conversion = Conversion(**request["conversion"])
    try:
        if request["kept"] is None:
            content = converted(conversion)
        else:
            key = json.dumps(request["conversion"])
            if key not in debuggers:
                debuggers.clear()
                debuggers[key] = debugger_of(conversion)
            content = quantized(debuggers[key], request["kept"])
        Path(request["path"]).write_bytes(content)
        answer = {"error": ""}
    except Exception as error:  # The converter raises errors of many kinds.
        answer = {"error": str(error) or type(error).__name__}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
