"""The `tfaccel` command: runs the program of a subcommand.

Nothing heavy is imported before the subcommand is known, so `tfaccel --help` is fast.
"""

import io
import sys
from importlib import import_module

from tfaccel.known_names import did_you_mean
from tfaccel.processes.quiet_start import collect_less_often

COMMANDS = {
    "env": "describe this machine and installation, to paste into a bug report",
    "doctor": "check imports, every device and XLA; suggest a remedy for each problem",
    "plan": "print the candidate plans for a recipe on this (or another) machine, with every reason",
    "find-fastest": "measure plans on this machine, and pick the fastest one that computes the same",
    "estimate-memory": "estimate the memory that training takes, and the largest batch that fits",
    "find-batch-size": "find the largest batch that fits into memory, and the fastest one, by training some steps",
    "find-learning-rate": "test a range of learning rates, and suggest one",
    "estimate-scaling": "predict speed, efficiency and cost on more devices",
    "roofline": "measure how close a workload comes to the limits of this machine, by layer",
    "recipes": "list the ready training recipes",
    "train": "train a recipe or your own workload",
    "launch": "run a training command as several workers, and start them again when one is lost",
    "search": "search for the best hyperparameters, with parallel trials",
    "report": "write one HTML page about runs: curves, speed, plan, pictures, trials, compressed variants",
    "compress": "make smaller variants of a run's model, compare them, and pick one",
    "export": "export a trained model for deployment: SavedModel, LiteRT, ONNX, each compared with the model",
    "serve": "serve models with TensorFlow Serving's REST and gRPC protocols",
    "predict": "predict files and folders with a trained model",
    "inspect-data": "inspect a dataset: missing values, duplicates, leaks, probable label errors",
    "check": "compare your own script on one device and on several replicas, with Keras and with tfaccel",
    "test": "test parity: N replicas must match one device",
    "benchmark": "measure tfaccel's speed and overhead compared with plain Keras and a custom training loop",
    "completion": "print a script that completes commands and flags in bash, zsh or fish",
}

# What three commands were called in version 0.1; those names still work, until version 0.3.
OLD_NAMES = {"autotune": "find-fastest", "lr-find": "find-learning-rate", "tune": "search"}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = ["usage: tfaccel COMMAND [--flag=value ...]", "", "commands:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "`tfaccel COMMAND --help` lists the flags of a command."])


def main(argv: list[str] | None = None) -> int:
    """Runs one subcommand; returns its exit status (2 for a command that does not exist)."""
    argv = list(sys.argv if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    if len(argv) < 2 or argv[1] in ("-h", "--help", "help"):
        return _printed(usage(), 0 if len(argv) > 1 else 2)
    if argv[1] == "--version":
        import tfaccel

        return _printed(f"tfaccel {tfaccel.__version__}", 0)
    name = OLD_NAMES.get(argv[1], argv[1])
    if name != argv[1]:
        print(f"`tfaccel {argv[1]}` is now `tfaccel {name}`; use that name.", file=sys.stderr)
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        print(f"tfaccel: unknown command {name!r}.{hint} Commands: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    collect_less_often()
    try:
        program = import_module(f"tfaccel.scripts.{name.replace('-', '_')}")
        status: int = program.run([f"tfaccel {name}", *argv[2:]])
    except KeyboardInterrupt as error:  # while the command or the workload is loaded
        from tfaccel.scripts.command import interrupted

        return interrupted(f"tfaccel {name}", error)
    return status


def _printed(text: str, status: int) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        from tfaccel.scripts.command import unread

        unread()
    return status


if __name__ == "__main__":
    sys.exit(main())
