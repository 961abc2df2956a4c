"""A program that runs exported models on rows, loading only the format's runtime.

    python -m tfaccel.exporting.fresh_process \
        '{"jobs": [[FORMAT, MODEL, ROWS.npz, OUTPUTS.npz], ...], "may_fail": [], "modules": []}'

FORMAT is keras, saved_model, litert or onnx. ROWS has one array per input, by name; names with the prefix `raw:` are
inputs of the signature serving_raw. OUTPUTS gets one array per output, by name, or by number if the format has its own
names. "may_fail" lists more such jobs; an error of one of them is written in place of its outputs.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RAW_MARK = "raw:"
NEST = "nest:"
ERROR = "error:"
Arrays = dict[str, np.ndarray]


def run_keras(path: str, rows: Arrays, modules: list[str]) -> Arrays:
    """Runs a `.keras` file, loaded in safe mode; `nest:` holds the structure of the inputs as JSON."""
    import keras

    from tfaccel.exporting.load_model import load_keras_model
    from tfaccel.training.private.private_api import call_model

    model = load_keras_model(path, modules=modules)
    nest = keras.tree.map_structure(lambda name: rows[name], json.loads(str(rows[NEST])))
    return _numbered(keras.tree.flatten(call_model(model, nest, training=False)))


def run_saved_model(path: str, rows: Arrays, modules: list[str]) -> Arrays:
    """Runs both signatures of a SavedModel; outputs of serving_raw keep the prefix."""
    import tensorflow as tf

    del modules
    loaded = tf.saved_model.load(path)
    found: Arrays = {}
    for mark, name in (("", "serving_default"), (RAW_MARK, "serving_raw")):
        own = {key.removeprefix(mark): value for key, value in rows.items() if key.startswith(RAW_MARK) == bool(mark)}
        if own:
            tensors = {
                key: tf.constant(value.tolist() if value.dtype == object else value) for key, value in own.items()
            }
            outputs = loaded.signatures[name](**tensors)
            found |= {f"{mark}{key}": value.numpy() for key, value in outputs.items()}
    return found


def run_litert(path: str, rows: Arrays, modules: list[str]) -> Arrays:
    """Runs the signature serving_default of a LiteRT file, row by row."""
    from ai_edge_litert.interpreter import Interpreter

    del modules
    interpreter = Interpreter(model_path=path)
    runner = interpreter.get_signature_runner("serving_default")
    num_rows = len(next(iter(rows.values())))
    outputs = [runner(**{key: value[row : row + 1] for key, value in rows.items()}) for row in range(num_rows)]
    return {key: np.concatenate([output[key] for output in outputs]) for key in outputs[0]}


def run_onnx(path: str, rows: Arrays, modules: list[str]) -> Arrays:
    """Runs an ONNX file; inputs are matched by name, or by order if it has its own names."""
    import onnxruntime

    del modules
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    known = rows if set(names) <= set(rows) else dict(zip(names, rows.values(), strict=True))
    return _numbered(session.run(None, {name: known[name] for name in names}))


RUNTIMES: dict[str, Callable[[str, Arrays, list[str]], Arrays]] = {
    "keras": run_keras,
    "saved_model": run_saved_model,
    "litert": run_litert,
    "onnx": run_onnx,
}


def _numbered(values: Any) -> Arrays:
    return {str(place): np.asarray(value) for place, value in enumerate(values)}


def main(arguments: list[str]) -> int:
    """Runs the program; an error ends it with its traceback and status 1."""
    order = json.loads(arguments[0])
    for kind, path, rows_file, outputs_file in order["jobs"]:
        run(kind, path, (rows_file, outputs_file), order["modules"])
    for kind, path, rows_file, outputs_file in order["may_fail"]:
        try:
            run(kind, path, (rows_file, outputs_file), order["modules"])
        except Exception as error:  # of any runtime
            with Path(outputs_file).open("wb") as target:
                np.savez(target, **{ERROR: np.array(f"{type(error).__name__}: {error}"[:300])})  # type: ignore[arg-type]
    return 0


def run(kind: str, path: str, files: tuple[str, str], modules: list[str]) -> None:
    """Runs one model on the rows in one file, and writes its outputs into another."""
    rows_file, outputs_file = files
    with np.load(rows_file, allow_pickle=False) as file:
        rows = {name: _as_bytes(file[name]) for name in file.files}
    outputs = RUNTIMES[kind](path, rows, modules)
    plain = {name: _plain(value) for name, value in outputs.items()}
    with Path(outputs_file).open("wb") as target:
        np.savez(target, **plain)  # type: ignore[arg-type]


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Unpacks encoded files from lengths followed by all bytes: NumPy strips trailing zeros from strings."""
    return unpacked(array) if array.dtype == np.uint8 and array.ndim == 1 else array


def packed(contents: np.ndarray) -> np.ndarray:
    """Byte strings as one array of bytes; see `unpacked`."""
    parts = [len(contents).to_bytes(8, "little"), *(len(c).to_bytes(8, "little") for c in contents), *contents]
    return np.frombuffer(b"".join(parts), np.uint8)


def unpacked(array: np.ndarray) -> np.ndarray:
    """The byte strings that `packed` packed, as an array of objects.

    Example:
        >>> unpacked(packed(np.array([b"a\\0", b""], dtype=object))).tolist()
        [b'a\\x00', b'']
    """
    content = array.tobytes()
    numbers = [int.from_bytes(content[place : place + 8], "little") for place in range(0, len(content) - 7, 8)]
    start, found = 8 * (1 + numbers[0]), []
    for length in numbers[1 : 1 + numbers[0]]:
        found.append(content[start : start + length])
        start += length
    result = np.empty(len(found), dtype=object)
    result[:] = found
    return result


def _plain(value: np.ndarray) -> np.ndarray:
    """Texts as numpy writes them without pickling; half precision as float32."""
    if value.dtype == object:
        return np.array([bytes(item) for item in value.ravel()]).reshape(value.shape)
    return value if value.dtype.kind in "biufcS" else value.astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
