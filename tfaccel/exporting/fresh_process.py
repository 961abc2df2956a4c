"""A program that runs exported models on rows, loading only the format's runtime.

    python -m tfaccel.exporting.fresh_process \
        '{"jobs": [[FORMAT, MODEL, ROWS.npz, OUTPUTS.npz], ...], "may_fail": [], "modules": []}'

FORMAT is keras, saved_model, litert or onnx. ROWS has one array per input, by name; names with the prefix `raw:` are
inputs of the signature serving_raw, and under names that end in `:packed` are texts. OUTPUTS gets one array per output,
by name, or by number if the format has its own names. "may_fail" lists more such jobs; an error of one of them is
written in place of its outputs.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RAW_MARK = "raw:"
NEST = "nest:"
PACKED = ":packed"
ERROR = "error:"
Arrays = dict[str, np.ndarray]


def run_keras(path: str, rows: Arrays, modules: list[str]) -> Arrays:
    """Runs a `.keras` file, loaded in safe mode; `nest:` holds the structure of the inputs as JSON."""
    import keras

    from tfaccel.exporting.load_model import load_keras_model
    from tfaccel.training.private.private_api import call_model

    model = load_keras_model(path, modules=modules)
    names = json.loads(str(rows.pop(NEST)))
    nest = keras.tree.map_structure(as_inputs(rows).__getitem__, names)
    return _numbered(keras.tree.flatten(call_model(model, nest, training=False)))


def as_inputs(rows: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """What a Keras model takes in place of arrays: tensors, if some of them hold texts."""
    if all(array.dtype != object for array in rows.values()):
        return rows
    import tensorflow as tf

    return {
        name: tf.constant(array.ravel().tolist() if array.dtype == object else array, shape=array.shape)
        for name, array in rows.items()
    }


def run_saved_model(path: str, rows: Arrays, modules: list[str]) -> Arrays:
    """Runs both signatures of a SavedModel; outputs of serving_raw keep the prefix."""
    import tensorflow as tf

    del modules
    loaded = tf.saved_model.load(path)
    found: Arrays = {}
    for mark, name in (("", "serving_default"), (RAW_MARK, "serving_raw")):
        own = {key.removeprefix(mark): value for key, value in rows.items() if key.startswith(RAW_MARK) == bool(mark)}
        if own:
            tensors = {key: tf.constant(value) for key, value in as_inputs(own).items()}
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
    known = {name: _decoded(array) if array.dtype == object else array for name, array in known.items()}
    return _numbered(session.run(None, {name: known[name] for name in names}))


RUNTIMES: dict[str, Callable[[str, Arrays, list[str]], Arrays]] = {
    "keras": run_keras,
    "saved_model": run_saved_model,
    "litert": run_litert,
    "onnx": run_onnx,
}


def _decoded(texts: np.ndarray) -> np.ndarray:
    return np.array([text.decode("utf-8", "surrogateescape") for text in texts.ravel()], object).reshape(texts.shape)


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
        rows = with_texts({name: file[name] for name in file.files})
    outputs = RUNTIMES[kind](path, rows, modules)
    plain = {name: _plain(value) for name, value in outputs.items()}
    with Path(outputs_file).open("wb") as target:
        np.savez(target, **plain)  # type: ignore[arg-type]


def without_texts(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Arrays that `numpy.savez` takes: NumPy strips zeros from the end of byte strings, and pickles objects.

    Example:
        >>> texts = np.array([[b"a\\0", b""]], dtype=object)
        >>> with_texts(without_texts({"x": texts}))["x"].tolist()
        [[b'a\\x00', b'']]
    """
    found: Arrays = {}
    for name, array in arrays.items():
        if array.dtype == object:
            numbers = [array.ndim, *array.shape, *map(len, array.ravel())]
            header = np.array(numbers, np.int64).tobytes()
            found[name + PACKED] = np.frombuffer(header + b"".join(array.ravel()), np.uint8)
        else:
            found[name] = array
    return found


def with_texts(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """The arrays that `without_texts` took."""
    return {
        name.removesuffix(PACKED): _unpacked(array.tobytes()) if name.endswith(PACKED) else array
        for name, array in arrays.items()
    }


def _unpacked(content: bytes) -> np.ndarray:
    width = np.dtype(np.int64).itemsize
    num_axes = int(np.frombuffer(content, np.int64, 1)[0])
    shape = np.frombuffer(content, np.int64, num_axes, offset=width)
    lengths = np.frombuffer(content, np.int64, int(np.prod(shape)), offset=(1 + num_axes) * width)
    start, found = (1 + num_axes + len(lengths)) * width, np.empty(len(lengths), dtype=object)
    for place, length in enumerate(lengths.tolist()):
        found[place], start = content[start : start + length], start + length
    return found.reshape(shape)


def _plain(value: np.ndarray) -> np.ndarray:
    """Texts as numpy writes them without pickling; half precision as float32."""
    if value.dtype == object:
        return np.array([bytes(item) for item in value.ravel()]).reshape(value.shape)
    return value if value.dtype.kind in "biufcSU" else value.astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
