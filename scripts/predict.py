"""Predicts files and folders with a trained model, and writes one line per row.

tfaccel predict --run_dir=runs/digits --input=photos --output=classes.csv
tfaccel predict --run_dir=runs/chapters --input=texts.txt --output=chapters.jsonl
tfaccel predict --model=runs/digits/compressed/model.tflite --input=photos --output=classes.csv
tfaccel predict --model=digits --input=rows.npy --output=classes.csv       # a folder that `tfaccel export` wrote

Depending on the model, the input is images (PNG, JPEG, BMP, GIF), texts (.txt: one per line; a folder: one per file; a
table with a text column), tables (.csv, .parquet), arrays (.npy, .npz) or JSON lines (.jsonl: a text, a row of a table,
or the model's inputs per line). Rows that cannot be predicted are reported and skipped, and the exit status is then 1:
unreadable files, table rows without any value, and table rows with a missing value in a column that had none in
training, or with an unknown category (--unknown_values).
"""

import json
import sys
import time
from pathlib import Path

from absl import flags

from tfaccel.compressing.litert.file import is_litert_file
from tfaccel.errors import DataError
from tfaccel.processes.quiet_start import quiet_tensorflow
from tfaccel.scripts.command import run_command
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.model_flags import MODEL_FLAGS, chosen_place, clean_end

_FLAGS: dict[str, Flag] = {
    **MODEL_FLAGS,
    "input": (str, "a file or folder to predict"),
    "output": (str, "a file that ends in .csv or .jsonl"),
    "text_column": ("text", "column of a table, or name in JSON lines, that holds the texts"),
    "encoding": ("utf-8", "encoding of CSV and text files"),
    "unknown_values": (
        "skip",
        "how to treat table rows with a missing value in a column that had none in training, or with an unknown "
        "category: skip reports and skips them, fill predicts them with values filled in as in training",
    ),
    "allow_file_operations": (False, "use a SavedModel that may read and write files, if you trust it"),
    "rows_at_once": (64, "batch size, in rows"),
    "json": (False, "print the result as JSON"),
    "quiet": (False, "do not show progress"),
}
_QUIET_SECONDS = 2.0  # before progress is shown
_MAX_NAMED = 20  # max inputs to name that cannot be predicted


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    for name in ("input", "output"):
        if not values[name].value:
            raise DataError(f"Give --{name}={_FLAGS[name][1]}.")
    if values.rows_at_once < 1:
        raise DataError(f"--rows_at_once must be at least 1. Received: --rows_at_once={values.rows_at_once}.")
    if values.unknown_values not in ("skip", "fill"):
        raise DataError(f"--unknown_values must be skip or fill. Received: --unknown_values={values.unknown_values}.")
    if not Path(values.input).exists():
        raise DataError(f"There is no file or folder {values.input} (--input).")
    place, output = chosen_place(values), Path(values.output)
    if output.resolve() == Path(values.input).resolve():
        raise DataError(f"The output would replace the input. Received: {output} (--input and --output).")
    quiet_tensorflow()
    from tfaccel.exporting.file_rows import read_rows
    from tfaccel.exporting.predict_files import check_output, predict_files
    from tfaccel.exporting.predictor import LitertPredictor, Predictor

    check_output(output)
    allowed = values.allow_file_operations
    predictor = (
        LitertPredictor(place)
        if is_litert_file(place.path)
        else Predictor(place, modules=values.modules, allow_file_operations=allowed)
    )
    how = {name: values[name].value for name in ("text_column", "encoding", "unknown_values")}
    rows = read_rows(Path(values.input), predictor.inputs, predictor.raw_input, **how)
    progress = _Progress(is_quiet=values.quiet)
    with clean_end():
        found = predict_files(predictor, rows, output, rows_at_once=values.rows_at_once, progress=progress)
    progress.close()
    for line in rows.notes:
        print(f"predict: {line}", file=sys.stderr)
    for name, reason in list(found.unreadable.items())[:_MAX_NAMED]:
        print(f"predict: cannot predict {name}: {reason}", file=sys.stderr)
    if len(found.unreadable) > _MAX_NAMED:
        print(f"predict: and {len(found.unreadable) - _MAX_NAMED} more", file=sys.stderr)
    if values.json:
        print(
            json.dumps(
                {
                    "output": str(output),
                    "num_rows": found.num_rows,
                    "unreadable": dict(found.unreadable),
                    "notes": list(rows.notes),
                    "counts": dict(found.counts),
                },
                indent=2,
            )
        )
    else:
        classes = ", ".join(f"{name}: {count}" for name, count in found.counts.items())
        print(f"{found.num_rows} rows in {output}{f' ({classes})' if classes else ''}")
    return 1 if found.unreadable else 0


class _Progress:
    """Shows progress as one line on standard error, after two seconds."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._start, self._is_shown = time.monotonic(), False

    def __call__(self, done: int, total: int) -> None:
        if not self._is_quiet and time.monotonic() - self._start >= _QUIET_SECONDS and sys.stderr.isatty():
            print(f"\rpredicted {done:,} of {total:,}", end="", file=sys.stderr, flush=True)
            self._is_shown = True

    def close(self) -> None:
        if self._is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run(["predict", *sys.argv[1:]]))
