"""Writes a trained model for those who deploy it; each file is compared with the model in a fresh process.

tfaccel export --run_dir=runs/digits --out=digits
tfaccel export --run_dir=runs/digits --formats=saved_model,litert --out=digits
tfaccel export --model=model.keras --formats=onnx --out=line --name=line

The formats are keras, saved_model (TensorFlow Serving's layout), litert and onnx (pip install 'tfaccel[onnx]'). A
folder that was exported to before gets another version of the SavedModel. The exit status is 2 where nothing was
written.
"""

import contextlib
import json
import sys
from pathlib import Path

from absl import flags
from rich.table import Table

from tfaccel.errors import ExportError
from tfaccel.exporting.export_result import DEFAULT_FORMATS, FORMATS, ExportResult
from tfaccel.scripts.command import run_command, table_console
from tfaccel.scripts.command_flags import Flag, command_flags
from tfaccel.scripts.model_flags import MODEL_FLAGS, chosen_place, clean_end, quiet_tensorflow, shown_log

_FLAGS: dict[str, Flag] = {
    **MODEL_FLAGS,
    "formats": (list(DEFAULT_FORMATS), f"what to write: {', '.join(FORMATS)}"),
    "out": (str, "a new folder, or one that was exported to before"),
    "version": (int, "of the SavedModel; by default 1, or one more than the highest in --out"),
    "json": (False, "print the result as JSON"),
    "quiet": (False, "no progress; the result alone"),
}


def run(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    if not values.out:
        raise ExportError("Give --out=DIR, a new folder for what is exported.")
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
    """A table of the files, and what to do with them."""
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
            str(Path(result.folder, file.path)),
            f"{file.num_bytes / 1024:,.0f} KiB",
            f"{file.max_difference:.2g}",
            f"{file.max_output:.3g}",
            ", ".join(file.signatures),
        )
    console.print(table)
    if result.float32_difference:
        print(f"\nAll but model.keras calculate in float32; outputs change by at most {result.float32_difference:.2g}.")
    for name, command in result.commands.items():
        print(f"\n{_USES[name]}\n  {command}")


_USES = {
    "serve": "Serve it with tfaccel:",
    "tensorflow_serving": "Serve the same folder with TensorFlow Serving (or run tensorflow_serving.sh there):",
    "litert": "Run the LiteRT file on a device with nothing but ai-edge-litert and numpy:",
}


if __name__ == "__main__":
    sys.exit(run(["export", *sys.argv[1:]]))
