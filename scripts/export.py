"""Exports a trained model for deployment; each file is compared with the model in a fresh process.

tfaccel export --run_dir=runs/digits --out=digits
tfaccel export --run_dir=runs/digits --formats=saved_model,litert --out=digits
tfaccel export --model=model.keras --formats=onnx --out=line --name=line

The formats are keras, saved_model (TensorFlow Serving's layout), litert and onnx (pip install 'tfaccel[onnx]').
Exporting to the same folder again adds a version of the SavedModel. Exit status 2 if nothing was written.
"""

import contextlib
import json
import sys

from absl import flags
from rich.table import Table

from tfaccel.errors import ExportError
from tfaccel.exporting.export_result import DEFAULT_FORMATS, FORMATS, ExportResult
from tfaccel.processes.quiet_start import quiet_tensorflow
from tfaccel.scripts.command import run_command, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.model_flags import MODEL_FLAGS, chosen_place, clean_end, shown_log

_FLAGS: dict[str, Flag] = {
    **MODEL_FLAGS,
    "formats": (list(DEFAULT_FORMATS), f"formats to write, separated by commas: {', '.join(FORMATS)}"),
    "out": (str, "a new folder, or the folder of an earlier export"),
    "version": (int, "version of the SavedModel (default: 1, or one more than the highest in --out)"),
    "json": (False, "print the result as JSON"),
    "quiet": (False, "print only the result, no progress"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    if not values.out:
        raise ExportError("Give --out=DIR, a new folder for the export.")
    place = chosen_place(values)
    quiet_tensorflow()
    from tfaccel.exporting.export import check_formats, export

    formats = check_formats(values.formats)
    if place.path.is_dir():
        raise ExportError(f"{place.path} is a SavedModel; export takes a run directory or a .keras file.")
    with clean_end(), contextlib.nullcontext() if values.quiet else shown_log(program="export"):
        result = export(
            values.run_dir or place.path,
            formats,
            out=values.out,
            name=place.name,
            version=values.version,
            modules=values.modules,
        )
    if values.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print_result(result)
    return 0


def print_result(result: ExportResult) -> None:
    """Prints a table of the files, and commands that use them."""
    console = table_console(highlight=False)
    table = Table(title=f"Exported {result.name} to {result.folder}", title_justify="left", box=None)
    table.add_column("format")
    table.add_column("file", overflow="fold")
    for heading in ("size", "max difference", "of outputs up to"):
        table.add_column(heading, justify="right")
    table.add_column("signatures")
    for file in result.files:
        table.add_row(
            file.format,
            f"{result.folder}/{file.path}",
            f"{file.num_bytes / 1024:,.0f} KiB",
            f"{file.max_difference:.2g}",
            f"{file.max_output:.3g}",
            ", ".join(file.signatures),
        )
    console.print(table)
    for file in result.files:
        if file.differs:
            print(f"\n{file.path} differs from the Keras model. {file.differs}")
    if result.float32_difference:
        print(
            "\nAll files except model.keras compute in float32, which changes outputs by at most "
            f"{result.float32_difference:.2g}."
        )
    for name, command in result.commands.items():
        print(f"\n{_USES[name]}\n  {command}")


_USES = {
    "serve": "Serve it with tfaccel:",
    "tensorflow_serving": "Serve the same folder with TensorFlow Serving (or run tensorflow_serving.sh there):",
    "litert": "Run the LiteRT file on a device with nothing but ai-edge-litert and numpy:",
}


if __name__ == "__main__":
    sys.exit(run(["export", *sys.argv[1:]]))
