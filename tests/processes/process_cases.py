"""What tests of processes share."""

import os
import sys
import time


def python(code):
    return [sys.executable, "-c", code]


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def wait_until_ended(pid, seconds=10):
    for _ in range(100 * seconds):  # turns and not a deadline: while a virtual machine is paused, nothing can end
        if not is_running(pid):
            return True
        time.sleep(0.01)
    return False
