"""The child process in which TFMOT trains a model: TFMOT supports Keras 2 only, and changes its process.

`methods` starts it with a folder, sends batches, and takes reports. The folder holds the job (`job.json`,
`weights.npz`, `check.npz`), and receives the results (`weights_out.npz`, `predictions.npz`, `model.tflite`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.compressing.tfmot.options import TfmotOptions, get_stages
from tfaccel.compressing.tfmot.training import TrainingJob, tf_optimizer, train
from tfaccel.compressing.tfmot.translation_model import assemble, check_outputs, translate
from tfaccel.compressing.tfmot.translation_source import FlatModel, arrays_by_path, named_arrays, save_arrays
from tfaccel.errors import TfaccelError
from tfaccel.processes.child import connect_to_parent


class Program:
    """One job.

    Args:
        folder: holds the job, and receives its results.
        parent: sends batches, and receives reports.
    """

    def __init__(self, folder: Path, parent: Connection) -> None:
        self._folder = folder
        self._parent = parent
        self._job: dict[str, Any] = json.loads((folder / "job.json").read_text())
        self._options = TfmotOptions.from_json(self._job["options"])
        with np.load(folder / "check.npz") as check:
            self._check = {name: check[name] for name in check.files}
        self._inputs = [
            self._check[f"in{number}"] for number in range(sum(name.startswith("in") for name in self._check))
        ]

    def report(self, **message: Any) -> None:
        """Sends a report."""
        self._parent.send(message)

    def run(self) -> None:
        """Translates the model, checks the translation, and runs the stages of the method."""
        import tf_keras

        tf_keras.utils.set_random_seed(self._options.seed)
        with np.load(self._folder / "weights.npz") as saved:
            weights = arrays_by_path(saved)
        stages = get_stages(self._job["method"])
        for stage in stages:
            self.report(stage=stage)
            weights = self._stage(stage, weights, is_first=stage == stages[0])

    def _stage(self, stage: str, weights: dict[str, list[np.ndarray]], *, is_first: bool) -> Any:
        from tfaccel.compressing.tfmot.quantizing import begin_with_ranges, quantized_model
        from tfaccel.compressing.tfmot.sparsity import clustered_model, pruned_model

        flat = FlatModel.from_json(self._job["model"])
        layers = translate(flat, weights, self._inputs)
        if is_first:
            expected = [self._check[f"out{n}"] for n in range(len(flat.outputs))]
            difference = check_outputs(assemble(flat, layers), flat, self._inputs, expected)
            self.report(difference=difference, kept=layers.kept)
        job = TrainingJob(**self._job["training"][stage])
        if is_first and tf_optimizer(job)[1]:
            self.report(note=tf_optimizer(job)[1])
        if stage in ("qat", "pqat", "cqat"):
            quantized = quantized_model(flat, layers, stage)
            self._notes(quantized.notes)
            begin_with_ranges(quantized.model, self._inputs)
            train(quantized.model, job, flat, self._part(), report=self._parent.send)
            self._finish_quantized(quantized.model, flat)
            return weights
        if stage == "cluster":
            wrapped = clustered_model(flat, layers, self._options)
        else:
            wrapped = pruned_model(flat, layers, stage, self._options, job.num_steps)
        self._notes(wrapped.notes)
        train(wrapped.model, job, flat, self._part(), callbacks=wrapped.callbacks, report=self._parent.send)
        weights = wrapped.weights()
        save_arrays(self._folder / "weights_out.npz", named_arrays(weights))
        self.report(changed=wrapped.changed())
        return weights

    def _finish_quantized(self, model: Any, flat: FlatModel) -> None:
        """Predicts on the held-out data, and converts the model."""
        from tfaccel.compressing.tfmot.quantizing import litert_file

        rows = [_outputs(model, batch[: len(flat.inputs)]) for batch in self._part()]
        save_arrays(self._folder / "predictions.npz", named_arrays({str(n): row for n, row in enumerate(rows)}))
        self.report(stage="convert")
        (self._folder / "model.tflite").write_bytes(litert_file(model, flat, self._job["signature"]))

    def _part(self) -> Iterator[list[np.ndarray]]:
        """The batches up to the end of a part (for example, the training data)."""
        while (batch := self._parent.recv()) is not None:
            yield batch

    def _notes(self, notes: list[str]) -> None:
        for note in notes:
            self.report(note=note)


def _outputs(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    import tensorflow as tf

    outputs = model.predict_on_batch(inputs if len(inputs) > 1 else inputs[0])
    return [np.asarray(output) for output in tf.nest.flatten(outputs)]


def main(argv: list[str]) -> None:
    """Runs the job, and reports how it ended."""
    folder = Path(argv[2])
    parent = connect_to_parent(argv, on_orphaned=partial(shutil.rmtree, folder, ignore_errors=True))
    settings = json.loads((folder / "job.json").read_text())
    sys.path.extend(path for path in settings["sys_path"] if path not in sys.path)
    program = Program(folder, parent)
    try:
        for module in settings["modules"]:
            import_module(module)
        program.run()
        program.report(done=True)
    except TfaccelError as error:
        program.report(error=str(error))
    except Exception as error:
        traceback.print_exc()
        program.report(error=f"{type(error).__name__}: {' '.join(str(error).split())[:600]}", unexpected=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips the libraries' exit handlers, which may hang


if __name__ == "__main__":
    main(sys.argv)
