"""The figures of the input pipeline: tfaccel's images against plain `tf.data`, from the times of their epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfaccel.benchmarks.figure import Figure

INPUT_FIGURE = "input"
OURS, UNCACHED, PLAIN, KERAS = "tfaccel", "tfaccel, without a cache", "tf.data", "image_dataset_from_directory"
SERVED = {1: "tfaccel, 1 data worker", 2: "tfaccel, 2 data workers"}
NUM_EPOCHS = 3


def input_figures(found: Mapping[str, Any] | None) -> tuple[Figure, ...]:
    """Throughput of the pipelines, as reported by `input_program`; none if they were not measured.

    Example:
        >>> runs = {OURS: [[2.0, 1.0]], UNCACHED: [[2.0, 2.0]], PLAIN: [[2.0, 4.0]], KERAS: [[3.0, 3.0]]}
        >>> [figure.median for figure in input_figures({"epoch_seconds": runs, "num_images": 128})]
        [2.0, 1.0, 1.5, 2.0]
    """
    if found is None:
        return ()
    runs: Mapping[str, Sequence[Sequence[float]]] = found["epoch_seconds"]
    num_epochs = len(runs[OURS][0])

    def ratio(of: str, to: str, *, epochs: int, at_least: float | None) -> Figure:
        pairs = zip(runs[of], runs[to], strict=True)
        values = tuple(sum(other[:epochs]) / sum(own[:epochs]) for own, other in pairs)
        text = "the first epoch" if epochs == 1 else f"{epochs} epochs, the first one included"
        quantity = f"images / s, {of} / {to}, {text}"
        return Figure(name=INPUT_FIGURE, quantity=quantity, values=values, at_least=at_least)

    served = (ratio(name, UNCACHED, epochs=num_epochs, at_least=None) for name in SERVED.values() if name in runs)
    return (
        ratio(OURS, PLAIN, epochs=num_epochs, at_least=1.4),
        ratio(OURS, PLAIN, epochs=1, at_least=0.97),
        ratio(UNCACHED, PLAIN, epochs=num_epochs, at_least=0.97),
        ratio(OURS, KERAS, epochs=num_epochs, at_least=None),
        *served,
    )
