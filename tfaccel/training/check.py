"""`check`: what a user's own script loses on several replicas with plain Keras, and with tfaccel."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.argument_types import checks_types
from tfaccel.errors import TfaccelError
from tfaccel.known_names import suggests_names
from tfaccel.local_path import local_path
from tfaccel.planning.option_checks import check_counts
from tfaccel.processes.child import ProcessError, run_program
from tfaccel.records import Record
from tfaccel.short_repr import noun

_PROGRAM = "tfaccel.training.check_program"
_NO_FIT = 3
MAX_DIFFERENCE = 2e-3  # of a weight, relative to its norm
_ROUNDED = "rounded"  # a fourth run: one device again, from weights that are moved by rounding
_MAX_NOISE = 3.0  # times what that has made of a weight: with Adam all, where its gradient is nothing but rounding
_NOTHING = 1e-4  # of the largest weights; what is smaller, such as a bias that no gradient moves, is compared with that
WAYS = {"one": "Model.fit, 1 device", "keras": "Model.fit, {} replicas", "tfaccel": "tfaccel.fit, {} replicas"}
_LOADED = """
import keras, tensorflow as tf
model = keras.models.load_model({model!r})
data = tf.data.Dataset.load({data!r})
model.fit(data)
"""


@noun
class CheckRow:
    """What one way of training has given.

    Attributes:
        way: "Model.fit, 1 device", "Model.fit, N replicas" or "tfaccel.fit, N replicas".
        losses: the logs after the steps.
        loss_difference: relative difference of the loss from one device's; None for that one, or after a failure.
        weight_difference: the largest distance of a weight that rounding does not move as far, relative to its norm.
        first_different: the first weight, in the model's order, that differs by more than rounding; empty if none does.
        steps_per_second: speed, after the graph was traced.
        failure: why it did not train; empty if it did.
    """

    way: str
    losses: dict[str, float]
    loss_difference: float | None = None
    weight_difference: float | None = None
    first_different: str = ""
    steps_per_second: float = 0.0
    failure: str = ""


@noun
class CheckResult(Record):
    """A comparison of one device with several replicas.

    Attributes:
        rows: plain Keras on one device and on several replicas, and tfaccel on several replicas.
        causes: what in the model and its data is known to differ with plain Keras, and what was left out.
        num_steps: how many steps were trained.
    """

    _derived = ("is_equal",)

    rows: tuple[CheckRow, ...]
    causes: tuple[str, ...]
    num_steps: int

    @property
    def is_equal(self) -> bool:
        """Whether tfaccel gives what one device gives."""
        last = self.rows[-1]
        return not last.failure and not last.first_different


@suggests_names
@checks_types(TfaccelError, checks_numbers=True)
def check(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int = 32,
    sample_weight: Any = None,
    replicas: int = 2,
    steps: int = 10,
) -> CheckResult:
    """Compares one device with several replicas, with `Model.fit` and with `tfaccel.fit`, over a few steps.

    Everything runs in processes of their own, on logical CPUs; the model stays as it is.

    Args:
        model: a compiled model that `model.save` can save; or the path of a script that calls `Model.fit`.
        x, y, sample_weight: arrays to train on, also in dicts, lists and tuples, or a `tf.data.Dataset` as `x` alone;
            None for a script.
        batch_size: rows of a global batch; a script and a dataset have their own.
        replicas: how many.
        steps: how many steps to train.

    Raises:
        TfaccelError: if plain Keras does not train on one device.
        TypeError, ValueError: for anything else than a compiled model or a path.

    Example:
        >>> import keras, numpy as np, tfaccel
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
        >>> tfaccel.check(model, x, x[:, :1], batch_size=8, steps=3).is_equal
        True
    """
    check_counts(replicas=replicas, steps=steps)
    if isinstance(model, str | os.PathLike):
        return check_script(str(local_path(model, TfaccelError)), num_replicas=replicas, num_steps=steps)
    from tfaccel.training.front import prepared_model

    prepared_model(model, "check")
    batches = _make_batches(x, y, sample_weight, batch_size)
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
        saved, data, script = (Path(folder, name) for name in ("model.keras", "data", "script.py"))
        model.save(saved)
        batches.take(steps).save(str(data))
        script.write_text(_LOADED.format(model=str(saved), data=str(data)))
        return check_script(str(script), num_replicas=replicas, num_steps=steps, name="The model")


def _make_batches(x: Any, y: Any, sample_weight: Any, batch_size: int) -> Any:
    import tensorflow as tf

    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise TfaccelError("A dataset yields (inputs, targets) or (inputs, targets, weights): leave out `y`.")
        return x
    if x is None:
        raise TfaccelError("Give `x`, and `y`, to train the model on: check(model, x, y).")
    parts = (x, y, sample_weight)[: 1 if y is None else 2 if sample_weight is None else 3]
    try:
        return tf.data.Dataset.from_tensor_slices(parts if y is not None else x).batch(batch_size)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise TfaccelError(
            f"`x` must be arrays with equal numbers of rows, as `y` and `sample_weight`, or a tf.data.Dataset. "
            f"Received: x of {type(x).__name__}, y of {type(y).__name__} ({str(error).splitlines()[0]:.100})."
        ) from error


def check_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    num_replicas: int = 2,
    num_steps: int = 10,
    name: str | None = None,
    time_limit_seconds: float = 300.0,
    progress: Callable[[str], None] = lambda text: None,
) -> CheckResult:
    """The same for a script: it runs up to its first `Model.fit`, four times.

    Args:
        name: what messages call it; None for the path.
        time_limit_seconds: of each run.
        progress: called with a line before each.
    """
    if not Path(script).is_file():
        raise TfaccelError(f"There is no script {script!r}. Name a Python file that calls `Model.fit`.")
    outcomes: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
        for way, text in {**WAYS, _ROUNDED: f"{WAYS['one']}, from rounded weights"}.items():
            progress(f"{text.format(num_replicas)}, up to {num_steps} steps")
            order = {"script": script, "arguments": list(arguments), "way": way, "num_replicas": num_replicas}
            order |= {"num_steps": num_steps, "out": str(Path(folder, way))}
            outcomes[way] = _outcome(order, time_limit_seconds)
            if way == "one" and "failure" in outcomes[way]:
                raise TfaccelError(f"{name or script} does not train on one device: {outcomes[way]['failure']}")
    one = outcomes["one"]
    noise = {} if "failure" in outcomes[_ROUNDED] else _distances(outcomes[_ROUNDED], one)
    rows = tuple(_row(text.format(num_replicas), outcomes[way], one, noise) for way, text in WAYS.items())
    moved = [name for name, distance in noise.items() if distance > MAX_DIFFERENCE]
    causes = (*one["causes"], *outcomes["tfaccel"].get("unproven", ()))
    if moved:
        causes += (f"weights that rounding alone moves on one device, which do not count: {', '.join(moved[:3])}",)
    return CheckResult(rows=rows, causes=causes, num_steps=one["num_steps"])


def _outcome(order: dict[str, Any], time_limit_seconds: float) -> dict[str, Any]:
    environment = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-m", _PROGRAM, json.dumps(order)]
    try:
        run_program(
            command, environment={**environment, "TF_CONFIG": None}, given=None, time_limit_seconds=time_limit_seconds
        )
    except ProcessError as error:
        if f"status {_NO_FIT}" in str(error):
            raise TfaccelError(f"{order['script']} ended without calling `Model.fit`.") from error
        return {"failure": _reason(error)}
    if not Path(order["out"]).exists():  # os._exit(0)
        raise TfaccelError(f"{order['script']} ended without calling `Model.fit`.")
    found: dict[str, Any] = json.loads(Path(order["out"]).read_text())
    with np.load(order["out"] + ".npz") as weights:
        found["weights"] = {name.partition(":")[2]: weights[name] for name in weights}
    return found


def _row(way: str, found: dict[str, Any], one: dict[str, Any], noise: dict[str, float]) -> CheckRow:
    if "failure" in found:
        return CheckRow(way=way, losses={}, failure=found["failure"])
    row = {"way": way, "losses": found["losses"], "steps_per_second": found["steps_per_second"]}
    if found is one:
        return CheckRow(**row)
    distances = {
        name: distance
        for name, distance in _distances(found, one).items()
        if noise.get(name, 0.0) <= MAX_DIFFERENCE or distance > _MAX_NOISE * noise[name]
    }
    first = next((name for name, distance in distances.items() if distance > MAX_DIFFERENCE), "")
    loss, of_one = found["losses"].get("loss", 0.0), one["losses"].get("loss", 0.0)
    relative, largest = abs(loss - of_one) / max(abs(of_one), 1e-6), max(distances.values(), default=0.0)
    return CheckRow(**row, loss_difference=relative, weight_difference=largest, first_different=first)


def _distances(found: dict[str, Any], one: dict[str, Any]) -> dict[str, float]:
    """Weight -> its distance from one device's, relative to the norm."""
    floats = [value for value in one["weights"].values() if value.dtype.kind == "f" and value.size]
    least = _NOTHING * max((float(np.linalg.norm(value)) / value.size**0.5 for value in floats), default=1.0)
    distances: dict[str, float] = {}
    for (name, expected), value in zip(one["weights"].items(), found["weights"].values(), strict=False):
        if expected.shape == value.shape and expected.dtype.kind == "f":
            expected, value = expected.astype(np.float64), value.astype(np.float64)
            norm = max(float(np.linalg.norm(expected)), least * expected.size**0.5, 1e-6)
            distances[name] = float(np.linalg.norm(value - expected)) / norm
    return distances


def _reason(error: ProcessError) -> str:
    """The last error that a process has named, in one sentence; else its last line, or how it ended."""
    named = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception)\b.*)", error.output, re.MULTILINE)
    lines = [line for line in error.output.splitlines() if line.strip()] if "with status" in error.how else []
    return (named[-1] if named else lines[-1] if lines else str(error)).strip().partition(". ")[0][:300]
