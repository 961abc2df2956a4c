#!/usr/bin/env python3
"""Runs a LiteRT file on examples; needs ai-edge-litert and numpy, and nothing else.

    pip install ai-edge-litert numpy
    python run_litert.py model.tflite examples.npy
    python run_litert.py model.tflite                 # prints the model's inputs

examples.npy holds one example per row, as model inputs; for several inputs, pass a .npz file with one array per name.
The output is one JSON line per row: each output by name, and the predicted class, if the file contains class names.
"""

import json
import sys
import zipfile
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

SIGNATURE = "serving_default"


def read_labels(path: str) -> list[str]:
    """The class names: `labels.txt` in the ZIP archive appended to the model."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.read("labels.txt").decode().splitlines() if "labels.txt" in archive.namelist() else []


def read_rows(path: str, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays by name, converted to the inputs' dtypes."""
    loaded = np.load(path, allow_pickle=False)
    arrays = {next(iter(inputs)): loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    for name, detail in inputs.items():
        shape = tuple(map(int, detail["shape"][1:]))
        if name not in arrays or arrays[name].shape[1:] != shape:
            found = "nothing" if name not in arrays else f"rows of shape {arrays[name].shape[1:]}"
            sys.exit(f"{path}: input {name!r} takes rows of shape {shape}. Received: {found}.")
    return {name: arrays[name].astype(detail["dtype"]) for name, detail in inputs.items()}


def main(arguments: list[str]) -> int:
    """Runs the program."""
    if len(arguments) not in (1, 2):
        sys.exit("usage: run_litert.py MODEL.tflite [EXAMPLES.npy | EXAMPLES.npz]")
    runner = Interpreter(model_path=arguments[0]).get_signature_runner(SIGNATURE)
    inputs, labels = runner.get_input_details(), read_labels(arguments[0])
    if len(arguments) == 1:
        described = {
            name: [list(map(int, detail["shape"])), np.dtype(detail["dtype"]).name] for name, detail in inputs.items()
        }
        sys.stdout.write(json.dumps({"inputs": described, "classes": labels}) + "\n")
        return 0
    rows = read_rows(arguments[1], inputs)
    for row in range(len(next(iter(rows.values())))):
        outputs = runner(**{name: array[row : row + 1] for name, array in rows.items()})
        line = {name: value[0].tolist() for name, value in outputs.items()}
        first = next(iter(outputs.values()))[0]
        if labels and first.shape == (len(labels),):
            line["class"] = labels[int(first.argmax())]
        sys.stdout.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
