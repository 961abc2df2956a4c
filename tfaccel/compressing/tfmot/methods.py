"""Methods that fine-tune a model with TFMOT: quantization-aware training, pruning, clustering, and combinations.

TFMOT supports Keras 2 only and changes the process that imports it. It runs in a child process on the model translated
to `tf_keras`, and returns weights or a LiteRT file.

Sources:
    Jacob et al., Quantization and training of neural networks for efficient integer-arithmetic-only inference, 2018,
        https://arxiv.org/abs/1712.05877
    Zhu and Gupta, To prune, or not to prune, 2017, https://arxiv.org/abs/1710.01878
    Han et al., Deep compression, 2016, https://arxiv.org/abs/1510.00149 (clustering)
"""

from __future__ import annotations

import importlib.util
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.call_signature import CallSignature, get_signature
from tfaccel.compressing.examples import Batches
from tfaccel.compressing.tfmot.job import TrainingBatches, as_sendable_array, write_job
from tfaccel.compressing.tfmot.options import TRAINED_METHODS, TfmotOptions, get_stages
from tfaccel.compressing.tfmot.training import TrainingJob
from tfaccel.compressing.tfmot.translation_source import FlatModel, arrays_by_path, flatten_model
from tfaccel.errors import CompressionError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.workload import Workload
from tfaccel.processes.child import ConnectedChild, last_words
from tfaccel.tested_versions import installed_version, warn_if_untested

_PACKAGES = {"tensorflow_model_optimization": "tensorflow-model-optimization", "tf_keras": "tf-keras"}
# A file holds kernels with folded batch normalizations, in units of their scales.
_IN_FILES = "in a file per channel, where channels have their own scales or normalization"
_SPARSE = 0.05  # fraction of zeros above which weights were pruned, not clustered
_DOING = {
    "qat": "quantization-aware training",
    "pqat": "quantization-aware training, zeros kept",
    "cqat": "quantization-aware training, clusters kept",
    "prune": "pruning",
    "prune_2_4": "pruning 2 of 4",
    "prune_block": "pruning blocks",
    "cluster": "clustering",
    "convert": "converting",
}
_PROGRAM = "tfaccel.compressing.tfmot.program"
_LAST_LINES = 3
Parts = Sequence[Callable[[], Iterable[Sequence[np.ndarray]]]]
# TFMOT looks up recurrent cells in `tf.keras`, which has to be Keras 2; `keras` stays Keras 3.
_ENVIRON = {
    "TF_USE_LEGACY_KERAS": "1",
    "KERAS_BACKEND": "tensorflow",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclass(frozen=True)
class TfmotOutcome:
    """The result of a method.

    Attributes:
        model: the Keras 3 model in float32 with the changed weights (prune, cluster); None otherwise.
        litert: the LiteRT file (qat, pqat, cqat); None otherwise.
        predictions: outputs of the fake-quantized model for each batch of held-out data, structured as the Keras
            model's outputs (qat, pqat, cqat).
        changed: layers that were pruned or clustered, by path.
        sparsity: fraction of zeros in those layers' kernels.
        notes: one line each.
    """

    model: keras.Model | None = None
    litert: bytes | None = None
    predictions: list[Any] = field(default_factory=list)
    changed: tuple[str, ...] = ()
    sparsity: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass
class _Reports:
    """What the child reported."""

    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    changed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    stage: str = ""

    def __call__(self, report: Mapping[str, Any]) -> None:
        if "stage" in report:
            self.stage = _DOING[report["stage"]]
            self.say(f"{self.stage} ...")
        elif "epoch" in report:
            place = f"epoch {report['epoch']}/{report['epochs']}, step {report['step']}/{report['steps']}"
            self.say(f"{self.stage}: {place}, loss {report['loss']:.4g}")
        elif "note" in report:
            if report["note"] not in self.notes:
                self.notes.append(report["note"])
        elif "changed" in report:
            self.changed = report["changed"]
        elif report.get("kept"):
            names = [f"{path} ({why})" for path, why in report["kept"].items()]
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            self.notes.append(f"kept as Keras 3 layers: {'; '.join(names[:4])}{more}")


def tfmot_variant(
    model: keras.Model,
    method: str,
    *,
    workload: Workload,
    signature: CallSignature | None = None,
    held_out: Batches | None = None,
    options: TfmotOptions | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> TfmotOutcome:
    """Fine-tunes a model with a TFMOT method in a child process.

    The given model is not changed.

    Args:
        model: a built functional or sequential Keras 3 model, of any dtype policy; it is fine-tuned in float32.
        method: one of `TRAINED_METHODS`.
        workload: training data, loss and optimizer.
        signature: the call signature of the LiteRT file; None to infer it.
        held_out: iterates over examples to predict with the fake-quantized model; None for none.
        options: how to fine-tune; None for the method's defaults.
        say: called with lines of progress.

    Raises:
        CompressionError: if TFMOT is not installed, the model cannot be translated (the message names the layer and
            the fix), the loss cannot be sent to the child, or training fails.

    Example:
        >>> from tfaccel.recipes import image_classification
        >>> work = image_classification.workload()
        >>> outcome = tfmot_variant(work.build_model(), "prune", workload=work, options=TfmotOptions(epochs=1))
        >>> round(outcome.sparsity, 2)
        0.8
    """
    check_method(method)
    options = options or TfmotOptions()
    flat = flatten_model(model)
    batches = TrainingBatches(workload, flat, seed=options.seed)
    signature = signature or get_signature(flat.model, batches.first_x)
    reports = _Reports(say)
    with tempfile.TemporaryDirectory(prefix="tfaccel-tfmot-") as name:
        folder = Path(name)
        training = write_job(
            folder, flat, batches, method=method, workload=workload, options=options, signature=signature
        )
        run_child(folder, _parts(method, training, batches, flat, held_out), reports)
        return _outcome(folder, flat, signature, reports)


def check_method(method: str) -> None:
    """Raises CompressionError for an unknown method, or where TFMOT is not installed.

    Example:
        >>> check_method("qat")
    """
    if method not in TRAINED_METHODS:
        hint = did_you_mean(method, TRAINED_METHODS) or f" Methods: {', '.join(TRAINED_METHODS)}."
        raise CompressionError(f"There is no training method {method!r}.{hint}")
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise CompressionError(
            f"Method {method} needs {' and '.join(missing)}. Install the extra: pip install 'tfaccel[compress]'."
        )
    for package in _PACKAGES.values():
        warn_if_untested(package, installed_version(package))


def _parts(
    method: str,
    training: Mapping[str, TrainingJob],
    batches: TrainingBatches,
    flat: FlatModel,
    held_out: Batches | None,
) -> Parts:
    """The parts sent to the child: training batches for each stage, then held-out inputs."""
    parts: list[Callable[[], Iterator[Sequence[np.ndarray]]]] = []
    first_epoch = 0
    for stage in get_stages(method):
        job = training[stage]
        parts.append(lambda job=job, first=first_epoch: batches.steps(job.num_steps, first))  # type: ignore[misc]
        first_epoch += job.epochs

    def inputs() -> Iterator[list[np.ndarray]]:
        for x, _, _ in held_out() if held_out is not None else ():
            yield [as_sendable_array(leaf, "the held-out data") for leaf in flat.get_inputs(x)]

    return [*parts, inputs]


def _outcome(folder: Path, flat: FlatModel, signature: CallSignature, reports: _Reports) -> TfmotOutcome:
    """Reads the child's results from the folder."""
    notes, weights = list(reports.notes), {}
    sparsity, changed = 0.0, tuple(sorted(reports.changed))
    if (folder / "weights_out.npz").exists():
        with np.load(folder / "weights_out.npz") as saved:
            weights = arrays_by_path(saved)
        kernels = [weights[path][place] for path in changed for place in reports.changed[path]]
        sparsity = float(sum((kernel == 0).sum() for kernel in kernels) / sum(kernel.size for kernel in kernels))
        most = max(len(np.unique(kernel)) for kernel in kernels)
        said = f"{sparsity:.1%} of the weights are zero in {len(changed)} layers"
        if sparsity <= _SPARSE:
            said = f"at most {most} values in each kernel of {len(changed)} layers, {_IN_FILES}"
        notes.insert(0, said)
    if not (folder / "model.tflite").exists():
        return TfmotOutcome(flat.with_weights(weights), None, [], changed, sparsity, tuple(notes))
    with np.load(folder / "predictions.npz") as saved:
        rows = arrays_by_path(saved)
    predictions = [keras.tree.pack_sequence_as(signature.output_nest, rows[str(number)]) for number in range(len(rows))]
    litert = (folder / "model.tflite").read_bytes()
    return TfmotOutcome(None, litert, predictions, changed, sparsity, tuple(notes))


def run_child(folder: Path, parts: Parts, on_report: Callable[[dict[str, Any]], None]) -> None:
    """Runs the job in a folder to its end.

    Args:
        folder: holds the job; see `program`.
        parts: functions that give the batches of each part, called in order as the child consumes them.
        on_report: called with each report.

    Raises:
        CompressionError: if the job failed, or the child died.
    """
    with ConnectedChild(_PROGRAM, str(folder), environment=_ENVIRON) as child:
        sender = _Sender(child, parts)
        try:
            sender.start()
            end = _listen(child, on_report)
        finally:
            child.kill()
            sender.join()
        if sender.error is not None:
            raise sender.error
        if end is None:
            words = last_words(child.output(), _LAST_LINES)
            raise CompressionError(f"TFMOT's process {child.how_it_ended()}. Its last output: {words}")
        if end.get("unexpected"):
            raise CompressionError(
                f"TFMOT's process failed: {end['error']}. Use a post-training method, or other options."
            )
        if "error" in end:
            raise CompressionError(str(end["error"]))


class _Sender(threading.Thread):
    """Sends the batches of all parts, None after each; ends early if the child stops reading."""

    def __init__(self, child: ConnectedChild, parts: Parts) -> None:
        super().__init__(daemon=True, name="tfaccel-tfmot-batches")
        self._child = child
        self._parts = parts
        self.error: BaseException | None = None

    def run(self) -> None:
        """Sends."""
        try:
            for part in self._parts:
                for batch in part():
                    if not self._child.send([np.asarray(array) for array in batch]):
                        return
                self._child.send(None)
        except Exception as error:
            self.error = error
            self._child.kill()


def _listen(child: ConnectedChild, on_report: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """The last report: done, or an error; None if the child ended without one."""
    while True:
        try:
            report: dict[str, Any] = child.receive()
        except EOFError:
            return None
        if "done" in report or "error" in report:
            return report
        on_report(report)
