"""Steps for the tests of the GPU suite, which run in processes of their own."""

import os
import signal
import time


def counts(run, number):
    run.record("half", number // 2)
    run.figure("count", "number", [float(number)], at_least=3.0)


def raises(run):
    run.record("before", 1)
    raise ValueError("first line\nthe cause")


def dies(run):
    run.record("before", 2)
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(run):
    run.record("before", 3)
    run.progress("about to hang")
    time.sleep(600)


def fills_memory(run):
    raise MemoryError


def adds(one, other):
    return one + other


def exits():
    os._exit(7)
