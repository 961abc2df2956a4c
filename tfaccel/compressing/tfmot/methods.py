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
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.call_signature import CallSignature, get_signature
from tfaccel.compressing.compress_source import Batches
from tfaccel.compressing.methods import TRAINING, TfmotOptions
from tfaccel.compressing.tfmot.flat_model import FlatModel, TfmotJob, TrainingStage, flatten_model
from tfaccel.errors import CompressionError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.run_length import compile_arguments, num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.processes.child import ConnectedChild, last_words
from tfaccel.tested_versions import installed_version, warn_if_untested
from tfaccel.training.steps.model_parts import inner_optimizer

_PACKAGES = {"tensorflow_model_optimization": "tensorflow-model-optimization", "tf_keras": "tf-keras"}
# A file holds kernels with folded batch normalizations, in units of their scales.
_IN_FILES = "in a file per channel, where channels have their own scales or normalization"
_SPARSE = 0.05  # fraction of zeros above which weights were pruned, not clustered
_PROGRAM = "tfaccel.compressing.tfmot.program"
_LAST_LINES = 3
_LOOKS = 200  # samples of the schedule, to find its peak
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


class _Reports:
    """What the child reported."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._doing = ""
        self.notes: list[str] = []
        self.results: dict[str, Any] = {"weights": {}, "changed": {}}

    def __call__(self, report: Mapping[str, Any]) -> None:
        if "doing" in report:
            self._doing = report["doing"]
            self._say(f"{self._doing} ...")
        elif "epoch" in report:
            place = f"epoch {report['epoch']}/{report['epochs']}, step {report['step']}/{report['steps']}"
            self._say(f"{self._doing}: {place}, loss {report['loss']:.4g}")
        elif "note" in report:
            if report["note"] not in self.notes:
                self.notes.append(report["note"])
        elif report.get("kept"):
            names = [f"{path} ({why})" for path, why in report["kept"].items()]
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            self.notes.append(f"kept as Keras 3 layers: {'; '.join(names[:4])}{more}")
        else:
            self.results |= report


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
        method: one of `TRAINING`.
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
    job = make_job(batches, method=method, options=options, signature=signature)
    run_child(_messages(job, batches, held_out), reports)
    return _outcome(flat, signature, reports)


def check_method(method: str) -> None:
    """Raises CompressionError for an unknown method, or where TFMOT is not installed.

    Example:
        >>> check_method("qat")
    """
    if method not in TRAINING:
        hint = did_you_mean(method, TRAINING) or f" Methods: {', '.join(TRAINING)}."
        raise CompressionError(f"There is no training method {method!r}.{hint}")
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise CompressionError(
            f"Method {method} needs {' and '.join(missing)}. Install the extra: pip install 'tfaccel[tfmot]'."
        )
    for package in _PACKAGES.values():
        warn_if_untested(package, installed_version(package))


def _messages(job: TfmotJob, batches: TrainingBatches, held_out: Batches | None) -> Iterator[Any]:
    """What the child is sent: the job, training batches for each stage, and held-out inputs, with None after each."""
    yield job
    first_epoch = 0
    for stage in job.stages.values():
        yield from batches.steps(stage.num_steps, first_epoch)
        yield None
        first_epoch += stage.epochs
    for x, _, _ in held_out() if held_out is not None else ():
        yield [as_sendable_array(leaf, "the held-out data") for leaf in batches.flat.get_inputs(x)]
    yield None


def _outcome(flat: FlatModel, signature: CallSignature, reports: _Reports) -> TfmotOutcome:
    found, notes = reports.results, list(reports.notes)
    weights, places = found["weights"], found["changed"]
    sparsity, changed = 0.0, tuple(sorted(places))
    if changed:
        kernels = [weights[path][place] for path in changed for place in places[path]]
        sparsity = float(sum((kernel == 0).sum() for kernel in kernels) / sum(kernel.size for kernel in kernels))
        most = max(len(np.unique(kernel)) for kernel in kernels)
        said = f"{sparsity:.1%} of the weights are zero in {len(changed)} layers"
        if sparsity <= _SPARSE:
            said = f"at most {most} values in each kernel of {len(changed)} layers, {_IN_FILES}"
        notes.insert(0, said)
    if "litert" not in found:
        return TfmotOutcome(flat.with_weights(weights), None, [], changed, sparsity, tuple(notes))
    predictions = [keras.tree.pack_sequence_as(signature.output_nest, row) for row in found["predictions"]]
    return TfmotOutcome(None, found["litert"], predictions, changed, sparsity, tuple(notes))


def run_child(messages: Iterator[Any], on_report: Callable[[dict[str, Any]], None]) -> None:
    """Runs a job to its end.

    Args:
        messages: what the child is sent, made as it consumes them; see `_messages`.
        on_report: called with each report.
    """
    errors: list[Exception] = []
    end: dict[str, Any] = {}

    def send() -> None:
        try:
            for message in messages:
                if not child.send(message):
                    return
        except Exception as error:
            errors.append(error)
            child.kill()

    with ConnectedChild(_PROGRAM, environment=_ENVIRON) as child:
        sender = threading.Thread(target=send, daemon=True, name="tfaccel-tfmot-batches")
        try:
            sender.start()
            while not end.keys() & {"done", "error"}:
                end = child.receive()
                on_report(end)
        except EOFError:
            end = {"ended": True}
        finally:
            child.kill()
            sender.join()
        if errors:
            raise errors[0]
        if "ended" in end:
            words = last_words(child.output(), _LAST_LINES)
            raise CompressionError(f"TFMOT's process {child.how_it_ended()}. Its last output: {words}")
        if end.get("unexpected"):
            raise CompressionError(
                f"TFMOT's process failed: {end['error']}. Use a post-training method, or other options."
            )
        if "error" in end:
            raise CompressionError(str(end["error"]))


class TrainingBatches:
    """The training data of a workload as lists of arrays: inputs, targets, sample weights.

    Args:
        workload: its training data are used.
        flat: the model, which determines their order.
        seed: shuffles them.
    """

    def __init__(self, workload: Workload, flat: FlatModel, *, seed: int) -> None:
        self.workload = workload
        self.flat = flat
        self._seed = seed
        first = next(iter(self._dataset(0).take(1).as_numpy_iterator()), None)
        if first is None:
            raise CompressionError(f"The training data of workload {workload.name!r} are empty.")
        self.first_x = keras.utils.unpack_x_y_sample_weight(first)[0]
        self.first = self._leaves(first)
        num_inputs, num_outputs = len(flat.inputs), len(flat.outputs)
        self.num_sample_weights = len(self.first) - num_inputs - num_outputs
        if self.num_sample_weights not in (0, 1, num_outputs):
            raise CompressionError(
                f"Workload {workload.name!r} gives {self.num_sample_weights} more arrays than the {num_inputs} inputs "
                f"and {num_outputs} outputs of the model. Give a target for each output, and "
                "sample weights for all outputs or none."
            )
        num_batches = int(self._dataset(0).cardinality())
        self.steps_per_epoch = num_batches if num_batches > 0 else sum(1 for _ in self._epoch(0))

    def steps(self, num_steps: int, first_epoch: int) -> Iterator[list[np.ndarray]]:
        """This many batches, over as many epochs as needed."""
        endless = itertools.chain.from_iterable(map(self._epoch, itertools.count(first_epoch)))
        return itertools.islice(endless, num_steps)

    def _epoch(self, epoch: int) -> Iterator[list[np.ndarray]]:
        return map(self._leaves, self._dataset(epoch).as_numpy_iterator())

    def _dataset(self, epoch: int) -> Any:
        return self.workload.train_data(self.workload.global_batch_size, seed=self._seed, epoch=epoch)

    def _leaves(self, batch: Any) -> list[np.ndarray]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        leaves = self.flat.get_inputs(x)
        for part in (y, sample_weight):
            leaves = leaves + (self.flat.get_outputs(part) if part is not None else [])
        return [as_sendable_array(leaf, f"workload {self.workload.name!r}") for leaf in leaves]


def make_job(batches: TrainingBatches, *, method: str, options: TfmotOptions, signature: CallSignature) -> TfmotJob:
    """The job of the child.

    Args:
        batches: the training data, the model, and the workload, which gives loss and optimizer.
        method: one of `TRAINING`.
        options: how to train.
        signature: the model's call signature.
    """
    flat, workload = batches.flat, batches.workload
    num_steps = num_optimizer_steps(workload, num_batches=batches.steps_per_epoch)
    arguments = compile_arguments(workload, num_steps=num_steps)
    losses, weights = _losses(arguments, flat)
    optimizer = inner_optimizer(keras.optimizers.get(arguments.get("optimizer", "rmsprop")))
    settings = optimizer.get_config().items()
    config = {name: value for name, value in settings if isinstance(value, (int, float, str, bool))}
    stages = {
        stage: TrainingStage(
            losses=losses,
            loss_weights=weights,
            optimizer={"class_name": type(optimizer).__name__, "config": config},
            learning_rate=options.learning_rate or TRAINING[stage].rate_part * _highest_rate(optimizer, workload),
            steps_per_epoch=batches.steps_per_epoch,
            epochs=options.get_epochs(stage),
            num_sample_weights=batches.num_sample_weights,
        )
        for stage in TRAINING[method].stages or (method,)
    }
    modules = {*flat.modules, *(saved["import"][0] for saved in losses if isinstance(saved, Mapping))}
    outputs = keras.tree.flatten(flat.model(batches.first_x, training=False))
    return TfmotJob(
        model=flat.serialized,
        weights=flat.weights(),
        inputs=batches.first[: len(flat.inputs)],
        outputs=[np.asarray(array) for array in outputs],
        stages=stages,
        options=options,
        sys_path=list(sys.path),
        modules=sorted(modules),
        input_names=flat.get_inputs(signature.input_nest),
        output_names=signature.output_names,
    )


def saved_loss(loss: Any) -> Any:
    """A loss as JSON for another process: a name, or the import path of its class or function.

    Raises:
        CompressionError: if the loss cannot be serialized; the message names it.

    Example:
        >>> saved_loss(keras.losses.Huber())["import"][1]
        'Huber'
    """
    if loss is None or isinstance(loss, str):
        return loss
    is_object = isinstance(loss, keras.losses.Loss)
    target = type(loss) if is_object else loss
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    try:
        found = getattr(import_module(str(module)), name, None)
        saved: dict[str, Any] = {"import": [module, name]}
        if is_object:
            saved["config"] = json.loads(json.dumps(loss.get_config()))
    except (ImportError, TypeError, ValueError, RuntimeError) as error:
        raise _no_loss(name or repr(loss), str(error)) from error
    if module == "__main__" or found is not target:
        raise _no_loss(name or repr(loss), f"it is not found as {module}.{name}")
    return saved


def _no_loss(name: str, why: str) -> CompressionError:
    return CompressionError(
        f"The loss {name} cannot be sent to another process: {why}. Define it at the top level of a module (a class "
        "with get_config), or use a post-training method."
    )


def _losses(arguments: Mapping[str, Any], flat: FlatModel) -> tuple[list[Any], list[float]]:
    """The loss and the loss weight of each output."""
    names = flat.output_names
    loss, factors = arguments.get("loss"), arguments.get("loss_weights")
    if loss is None:
        raise CompressionError("The workload has no loss to fine-tune with (`compile_args` gives none).")
    of_outputs = _spread(loss, names)
    of_factors = [1.0] * len(names) if factors is None else _spread(factors, names)
    return [saved_loss(one) for one in of_outputs], [1.0 if one is None else float(one) for one in of_factors]


def _spread(given: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise CompressionError(f"There is no output {unknown[0]!r}. Outputs: {', '.join(names)}.")
        return [given.get(name) for name in names]
    if isinstance(given, (list, tuple)):
        if len(given) != len(names):
            raise CompressionError(
                f"{len(given)} losses or loss weights for {len(names)} outputs ({', '.join(names)})."
            )
        return list(given)
    return [given] * len(names)


def _highest_rate(optimizer: keras.optimizers.Optimizer, workload: Workload) -> float:
    """The peak learning rate of the workload's schedule."""
    rate = optimizer.get_config().get("learning_rate")
    if not isinstance(rate, Mapping):
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    schedule = keras.optimizers.schedules.deserialize(dict(rate))
    examples = workload.num_train_examples or workload.global_batch_size * 1000
    num_steps = max(_LOOKS, 100 * -(-examples // workload.global_batch_size))
    looks = {0, *np.geomspace(1, num_steps, _LOOKS).astype(int).tolist()}
    return max(float(schedule(step)) for step in looks)


def as_sendable_array(leaf: Any, what: str) -> np.ndarray:
    """An array that can be sent to another process."""
    array = np.asarray(leaf)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise CompressionError(
            f"Batches of {what} are of {array.dtype}, which TFMOT cannot train on. Give numeric arrays."
        )
    return array
