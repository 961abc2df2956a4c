"""The picture at the top of the README: losses of one device, and of four replicas with `Model.fit` and `tfaccel.fit`.

    python -m tfaccel.benchmarks.losses_picture --picture=docs/pictures/losses.svg --out=benchmarks/losses.json

Trains a small network on the digits three times, which takes a minute, and draws what comes out, for light and dark
pages. The data have sample weights and an uneven last batch, and the gradients are clipped: what many scripts have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.svg import grid_line, svg
from tfaccel.files import write_json, write_text
from tfaccel.processes.child import run_program

ONE, PLAIN, OURS = "one device", "4 replicas, Model.fit", "4 replicas, tfaccel.fit"
_NUM_REPLICAS, _EPOCHS = 4, 12
_MODULE = "tfaccel.benchmarks.losses_picture"
_WIDTH, _HEIGHT = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 36, 64, 46  # margins of the chart, in pixels
# Colors that are told apart with any kind of color vision, on light pages and on dark ones.
_LIGHT = """\
.axis { stroke: #d0d7de } .one { stroke: #8c959f; stroke-width: 7 }
.plain { stroke: #d1570a; stroke-width: 2.5 } .ours { stroke: #0550ae; stroke-width: 2.5; stroke-dasharray: 7 5 }
polyline, .key { fill: none; stroke-linejoin: round; stroke-linecap: round }"""
_DARK = ".axis { stroke: #3d444d } .one { stroke: #6e7681 } .plain { stroke: #ff9b50 } .ours { stroke: #79c0ff }"
_LABEL = "Losses of 12 epochs: four replicas with tfaccel.fit lie on those of one device; Model.fit's do not."
_CLASSES = {ONE: "one", PLAIN: "plain", OURS: "ours"}


def train(how: str) -> dict[str, Any]:
    """Trains the network in this process: the losses of its epochs, and its weights in one list."""
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits

    parts = [tf.config.LogicalDeviceConfiguration()] * _NUM_REPLICAS
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    images, digits = load_digits(return_X_y=True)
    x, sample_weight = np.float32(images / 16), np.where(digits < 3, 4.0, 0.5).astype(np.float32)
    keras.utils.set_random_seed(0)
    replicas = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(_NUM_REPLICAS)])
    with (tf.distribute.get_strategy() if how == ONE else replicas).scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.8, global_clipnorm=1.0), loss)
    options: dict[str, Any] = {
        "batch_size": 100,
        "epochs": _EPOCHS,
        "sample_weight": sample_weight,
        "shuffle": False,
        "verbose": 0,
    }
    if how == OURS:
        import tfaccel

        history = tfaccel.fit(model, x, digits, **options)
    else:
        history = model.fit(x, digits, **options)
    weights = np.concatenate([np.ravel(weight.numpy()) for weight in model.trainable_variables])
    return {"loss": [float(loss) for loss in history.history["loss"]], "weights": weights.tolist()}


def difference(found: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """The largest difference of a weight, relative to the largest weight.

    Example:
        >>> difference({"weights": [1.0, 3.0]}, {"weights": [1.0, 4.0]})
        0.25
    """
    ours, theirs = np.array(found["weights"]), np.array(reference["weights"])
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def picture(losses: Mapping[str, Sequence[float]]) -> str:
    """The SVG of losses by program, of which `ONE` is drawn first and widest."""
    highest = max(max(values) for values in losses.values())
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(epoch: int, loss: float) -> str:
        return f"{_LEFT + width * epoch / (_EPOCHS - 1):.1f},{_TOP + height * (1 - loss / highest):.1f}"

    parts = [f'<text class="title" x="{_LEFT}" y="24">Training loss, the same model and data</text>']
    ticks = [tick for tick in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0) if tick <= highest]
    for tick in ticks:
        y = _TOP + height * (1 - tick / highest)
        parts += grid_line(f"{tick:g}", left=_LEFT, right=_WIDTH - _RIGHT, y=y)
    for epoch in range(1, _EPOCHS, 2):
        x = place(epoch, 0.0).split(",")[0]
        parts.append(f'<text class="small" x="{x}" y="{_HEIGHT - 22}" text-anchor="middle">epoch {epoch + 1}</text>')
    for number, (name, values) in enumerate(losses.items()):
        points = " ".join(place(epoch, loss) for epoch, loss in enumerate(values))
        parts.append(f'<polyline class="{_CLASSES[name]}" points="{points}"/>')
        key = _LEFT + 210 * number
        parts.append(f'<path class="key {_CLASSES[name]}" d="M{key} 44h34"/><text x="{key + 42}" y="49">{name}</text>')
    return svg(parts, width=_WIDTH, height=_HEIGHT, label=_LABEL, light=_LIGHT, dark=_DARK)


def main(arguments: list[str]) -> int:
    """Trains as often as there are lines in the picture, each time in a new process, and draws them."""
    values = flags.FlagValues()
    flags.DEFINE_string("picture", "losses.svg", "the file to draw", flag_values=values)
    flags.DEFINE_string("out", "losses.json", "the file for losses and differences", flag_values=values)
    values(arguments)
    options = SuiteOptions(repetitions=1, progress=lambda line: sys.stderr.write(f"{line}\n"))
    found = {}
    for how in (ONE, PLAIN, OURS):
        options.progress(f"{how} …")
        found[how] = json.loads(run_program([sys.executable, "-m", _MODULE, how]).splitlines()[-1])
    losses = {how: one["loss"] for how, one in found.items()}
    differences = {how: difference(one, found[ONE]) for how, one in found.items() if how != ONE}
    write_json(Path(values.out), {**options.machine(), "loss": losses, "difference_of_weights": differences})
    write_text(Path(values.picture), picture(losses))
    for how, found_difference in differences.items():
        sys.stdout.write(f"{how}: weights differ from one device's by {found_difference:.1e}\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in _CLASSES:
        sys.stdout.write(json.dumps(train(sys.argv[1])) + "\n")
    else:
        sys.exit(main(sys.argv))
