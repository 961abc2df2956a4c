"""The program of the child process that converts SavedModels to LiteRT: conversions come in, and files go out.

TensorFlow's converter does not give back all memory that a conversion takes; in a process of its own it does, at the
end of that process.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from tfaccel.compressing.conversion import Converter
from tfaccel.processes.connection import connect_to_parent


def main(argv: list[str]) -> NoReturn:
    """Answers each conversion with the content of a file, or with the text of an error; ends with its parent."""
    parent = connect_to_parent(argv)
    converter = Converter()
    while True:
        conversion, kept = parent.recv()
        try:
            answer: bytes | str = converter.content(conversion, kept)
        except Exception as error:  # The converter raises errors of many kinds.
            answer = str(error) or type(error).__name__
        parent.send(answer)


if __name__ == "__main__":
    main(sys.argv)
