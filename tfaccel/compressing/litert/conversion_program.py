"""The child process that converts SavedModels to LiteRT: receives conversions, sends files.

TensorFlow's converter leaks memory; in a child process, the leak ends with the process.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from tfaccel.compressing.litert.conversion import Converter
from tfaccel.processes.child import connect_to_parent


def main(argv: list[str]) -> NoReturn:
    """Answers each conversion with the file's content or an error message; exits with its parent."""
    parent = connect_to_parent(argv)
    converter = Converter()
    while True:
        conversion, kept = parent.recv()
        try:
            answer: bytes | str = converter.content(conversion, kept)
        except Exception as error:  # The converter raises many types of errors.
            answer = str(error) or type(error).__name__
        parent.send(answer)


if __name__ == "__main__":
    main(sys.argv)
