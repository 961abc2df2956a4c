"""A program that runs exported models on rows, loading only the format's runtime.

    python -m tfaccel.exporting.fresh_process \
        '{"jobs": [[FORMAT, MODEL, ROWS.npz, OUTPUTS.npz, MAY_FAIL], ...], "modules": []}'

FORMAT is keras, saved_model, litert or onnx. ROWS has one array per input, by name; names with the prefix `raw:` are
inputs of the signature serving_raw. OUTPUTS gets one array per output, by name, or by number if the format has its own
names. An error of a job that may fail is written in place of its outputs.
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.keras_file import load_checked

RAW_MARK = "raw:"
NEST = "nest:"
ERROR = "error:"
Arrays = dict[str, np.ndarray]


def run_keras(path: str, rows: Arrays, modules: list[str]) -> Arrays:
    """Runs a `.keras` file, loaded in safe mode; `nest:` holds the structure of the inputs as JSON."""
    import keras

    model = load_checked(Path(path), modules=modules)
    names = json.loads(str(rows.pop(NEST)))
    nest = keras.tree.map_structure(as_inputs(rows).__getitem__, names)
    options = {"training": False} if "training" in inspect.signature(model.call).parameters else {}
    return numbered(keras.tree.flatten(model(nest, **options)))


def as_inputs(rows: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """What a Keras model takes in place of arrays: tensors, if some of them hold texts."""
    if all(array.dtype != object for array in rows.values()):
        return rows
    import tensorflow as tf

    return {
        name: tf.constant(array.ravel().tolist() if array.dtype == object else array, shape=array.shape)
        for name, array in rows.items()
    }


def run_saved_model(path: str, rows: Arrays) -> Arrays:
    """Runs both signatures of a SavedModel; outputs of serving_raw keep the prefix."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    found: Arrays = {}
    for mark, name in (("", "serving_default"), (RAW_MARK, "serving_raw")):
        own = {key.removeprefix(mark): value for key, value in rows.items() if key.startswith(RAW_MARK) == bool(mark)}
        if own:
            tensors = {key: tf.constant(value) for key, value in as_inputs(own).items()}
            outputs = loaded.signatures[name](**tensors)
            found |= {f"{mark}{key}": value.numpy() for key, value in outputs.items()}
    return found


def run_litert(path: str, rows: Arrays) -> Arrays:
    """Runs the signature serving_default of a LiteRT file, row by row."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path)
    runner = interpreter.get_signature_runner("serving_default")
    num_rows = len(next(iter(rows.values())))
    outputs = [runner(**{key: value[row : row + 1] for key, value in rows.items()}) for row in range(num_rows)]
    return {key: np.concatenate([output[key] for output in outputs]) for key in outputs[0]}


def run_onnx(path: str, rows: Arrays) -> Arrays:
    """Runs an ONNX file; inputs are matched by name, or by order if it has its own names."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    known = rows if set(names) <= set(rows) else dict(zip(names, rows.values(), strict=True))
    known = {name: _decoded(array) if array.dtype == object else array for name, array in known.items()}
    return numbered(session.run(None, {name: known[name] for name in names}))


def _decoded(texts: np.ndarray) -> np.ndarray:
    return np.array([text.decode("utf-8", "surrogateescape") for text in texts.ravel()], object).reshape(texts.shape)


def numbered(values: Any) -> Arrays:
    """Arrays by their places, for outputs without names."""
    return {str(place): np.asarray(value) for place, value in enumerate(values)}


def main(arguments: list[str]) -> int:
    """Runs the program; an error ends it with its traceback and status 1."""
    order = json.loads(arguments[0])
    runtimes: dict[str, Callable[[str, Arrays], Arrays]] = {
        "keras": functools.partial(run_keras, modules=order["modules"]),
        "saved_model": run_saved_model,
        "litert": run_litert,
        "onnx": run_onnx,
    }
    for kind, path, rows_file, outputs_file, may_fail in order["jobs"]:
        rows = load_arrays(rows_file)
        try:
            outputs = {name: _plain(value) for name, value in runtimes[kind](path, rows).items()}
        except Exception as error:  # of any runtime
            if not may_fail:
                raise
            outputs = {ERROR: np.array(f"{type(error).__name__}: {error}"[:300])}
        save_arrays(outputs_file, outputs)
    return 0


def save_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name to a `.npz` file, under marked names, which are no arguments of `numpy.savez`.

    NumPy strips zeros from the end of byte strings, and pickles objects: texts are written as their lengths and bytes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_arrays(f"{folder}/a.npz", {"file": np.array([[b"a\\0", b""]], dtype=object)})
        ...     load_arrays(f"{folder}/a.npz")["file"].tolist()
        [[b'a\\x00', b'']]
    """
    stored: Arrays = {}
    for name, array in arrays.items():
        if array.dtype == object:
            lengths = [len(text) for text in array.ravel()]
            stored[f"lengths:{name}"] = np.array(lengths, np.int64).reshape(array.shape)
            stored[f"texts:{name}"] = np.frombuffer(b"".join(array.ravel()), np.uint8)
        else:
            stored[f"array:{name}"] = array
    np.savez(path, **stored)  # type: ignore[arg-type]


def load_arrays(path: str) -> Arrays:
    """The arrays that `save_arrays` wrote."""
    with np.load(path, allow_pickle=False) as file:
        stored = dict(file)
    found: Arrays = {}
    for key, array in stored.items():
        kind, _, name = key.partition(":")
        if kind == "array":
            found[name] = array
        elif kind == "lengths":
            content, ends = stored[f"texts:{name}"].tobytes(), np.cumsum(array).tolist()
            texts = [content[end - length : end] for end, length in zip(ends, array.ravel().tolist(), strict=True)]
            found[name] = np.array([*texts, None], object)[:-1].reshape(array.shape)
    return found


def _plain(value: np.ndarray) -> np.ndarray:
    """Texts as numpy writes them without pickling; half precision as float32."""
    if value.dtype == object:
        return np.array([bytes(item) for item in value.ravel()]).reshape(value.shape)
    return value if value.dtype.kind in "biufcSU" else value.astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
