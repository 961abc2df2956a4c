"""A workload's train step, traced for a TPU on the CPU, and what is found in it.

The step is all of Keras's `train_step`, or of the model's own: forward pass, backward pass, optimizer and metrics, in
mixed_bfloat16, on one replica. With several replicas the engine also sums gradients, which does not depend on the
model.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfaccel.costs.graph_operations import needed_operations
from tfaccel.extras.tpu.graph_findings import Finding, Node, find_in_nodes, find_in_program, place_finder
from tfaccel.planning.load_workload import load_recipe, load_workload
from tfaccel.planning.run_length import compile_arguments, num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.training.private import private_api, private_models
from tfaccel.training.private.private_tensorflow import operations_of_xla
from tfaccel.training.steps.model_parts import get_optimizers

# Max time to read batches and compare their shapes.
READING_SECONDS = 20.0
_REFUSED = re.compile(r"(\w+) \(No registered '\w+' OpKernel .*?\{\{node ([^}]+)\}\}\)")


@dataclass
class TracedStep:
    """A workload's model, built and compiled as in `train`, and its train step for batches of any size."""

    workload: Workload
    replica_batch_size: int
    dataset: Any = field(init=False)
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        self.dataset = self.workload.train_data(self.replica_batch_size, seed=0, epoch=0)
        self.model = self.workload.build_model()
        num_steps = num_optimizer_steps(self.workload) or 1
        arguments = {**compile_arguments(self.workload, num_steps=num_steps), "jit_compile": False}
        self.runs_eagerly = bool(arguments.pop("run_eagerly", False))
        self.model.compile(**arguments)
        with contextlib.suppress(Exception):  # a step that cannot be traced is reported later
            private_models.build_model(self.model, self.dataset.element_spec)

    @cached_property
    def batch_specs(self) -> list[Any]:
        """The specs of a batch's tensors; taken from the first batch if the dataset has unknown dimensions."""
        specs = tf.nest.flatten(self.dataset.element_spec, expand_composites=True)
        if all(spec.shape.is_fully_defined() for spec in specs):
            return list(specs)
        first = tf.nest.flatten(next(iter(self.dataset)), expand_composites=True)
        return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in first]

    @cached_property
    def function(self) -> Any:
        """The train step as a function of a batch's tensors."""
        structure = self.dataset.element_spec

        def step(*flat: Any) -> Any:
            return self.model.train_step(tf.nest.pack_sequence_as(structure, flat, expand_composites=True))

        return tf.function(step, jit_compile=True, autograph=False)

    def specs(self, replica_batch_size: int) -> list[Any]:
        """The specs of a batch's tensors, with this number of rows in all tensors that have a batch dimension."""

        def resized(spec: Any) -> Any:
            shape = spec.shape.as_list()
            if shape and shape[0] == self.replica_batch_size:
                shape[0] = replica_batch_size
            return tf.TensorSpec(shape, spec.dtype)

        return [resized(spec) for spec in self.batch_specs]

    def program(self, replica_batch_size: int, stage: str) -> Any:
        """The XLA program of the step, at a stage of TensorFlow's compiler IR ("hlo", "hlo_serialized")."""
        return self.function.experimental_get_compiler_ir(*self.specs(replica_batch_size))(stage=stage)


_steps: dict[tuple[str, str], TracedStep] = {}


def traced_step(kind: str, name: str, folder: str, replica_batch_size: int) -> TracedStep:
    """The step of a recipe or workload; the model is built once per process."""
    if (kind, name) not in _steps:
        if folder not in sys.path:
            sys.path.insert(0, folder)
        workload = load_recipe(name) if kind == "recipe" else load_workload(name)
        _steps[kind, name] = TracedStep(workload, replica_batch_size)
    return _steps[kind, name]


def probe_batches(*source: Any) -> dict[str, Any]:
    """Builds the model and inspects its batches; returns their distinct "shapes", "num_seen", and other facts."""
    step = traced_step(*source)
    specs = tf.nest.flatten(step.dataset.element_spec, expand_composites=True)
    shapes = {_in_words(specs): 0}
    num_seen, deadline = 0, time.monotonic() + READING_SECONDS
    if not all(spec.shape.is_fully_defined() for spec in specs):
        shapes = {}
        for batch in step.dataset:
            num_seen += 1
            text = _in_words(tf.nest.flatten(batch, expand_composites=True))
            shapes[text] = shapes.get(text, 0) + 1
            if time.monotonic() > deadline:
                break
    composite = [type(spec).__name__.removesuffix("Spec") for spec in tf.nest.flatten(step.dataset.element_spec)]
    return {
        "shapes": list(shapes),
        "num_seen": num_seen,
        "num_parameters": sum(int(weight.shape.num_elements() or 0) for weight in _trainable(step.model)),
        "composite": sorted({name for name in composite if name != "Tensor"}),
        "strings": sum(spec.dtype == tf.string for spec in specs),
    }


def probe_step(*source: Any) -> dict[str, Any]:
    """Traces the step; returns "findings", "num_operations" and "refusal" (why XLA cannot compile it, or "")."""
    step = traced_step(*source)
    layers = private_api.all_layers(step.model)
    get_place = place_finder([layer.name for layer in layers if layer is not step.model])
    size = step.replica_batch_size
    nodes = get_nodes(step.function.get_concrete_function(*step.specs(size)).graph)
    refusal = ""
    try:
        findings = find_in_program(step.program(size, "hlo"), get_place)
        compilable = None
    except Exception as error:  # TensorFlow raises ValueError here, or an error of the operation
        refusal = str(error)
        compilable = operations_of_xla()
        findings = [Finding("operation", what, get_place(name)) for what, name in _REFUSED.findall(refusal)]
    in_graph = find_in_nodes(nodes, get_place, compilable=compilable)
    named = {(finding.what, finding.where) for finding in in_graph}
    findings = in_graph + [finding for finding in findings if (finding.what, finding.where) not in named]
    findings += _settings(step)
    return {
        "findings": [finding.to_json() for finding in dict.fromkeys(findings)],
        "num_operations": len(nodes),
        "refusal": " ".join(refusal.split("The op is created at")[0].split())[:600],
    }


def probe_program(replica_batch_size: int, path: str, *source: Any) -> dict[str, Any]:
    """Writes the XLA program of the step for this batch size to a file, for the TPU compiler."""
    program = traced_step(*source).program(replica_batch_size, "hlo_serialized")
    Path(path).write_bytes(program)
    return {"num_bytes": len(program)}


def get_nodes(graph: Any) -> list[Node]:
    """The operations that results and side effects of a traced `tf.function` need, including nested functions."""
    needed = {operation.name for operation in needed_operations(graph)}
    graph_def = graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph_def.library.function}
    nodes: list[Node] = []
    queue = [[node for node in graph_def.node if node.name in needed]]
    while queue:
        for node in queue.pop():
            dtypes: set[str] = set()
            for value in node.attr.values():
                types = [value.type] if value.HasField("type") else list(value.list.type)
                dtypes |= {tf.dtypes.as_dtype(t).name for t in types if t}
                called = [value.func.name] if value.HasField("func") else [f.name for f in value.list.func]
                queue += [functions.pop(name) for name in called if name in functions]
            nodes.append(Node(node.name, node.op, frozenset(dtypes)))
    return nodes


def _settings(step: TracedStep) -> list[Finding]:
    """Findings in the model's settings, which its graph does not show."""
    findings = [
        Finding("loss scale", type(optimizer).__name__, f"model.{name}")
        for name, optimizer in get_optimizers(step.model).items()
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor
    ]
    for layer in private_api.all_layers(step.model):
        if layer.compute_dtype == "float16":
            findings.append(Finding("float16", type(layer).__name__, f"layer {layer.name!r}"))
    return findings + ([Finding("eager", "run_eagerly=True", "compile_args")] if step.runs_eagerly else [])


def _in_words(tensors: list[Any]) -> str:
    """Dtypes and shapes, such as "float32 64x8x8x1, int32 64"."""
    return ", ".join(f"{t.dtype.name} {'x'.join(map(str, t.shape.as_list())) or 'scalar'}" for t in tensors)


def _trainable(model: Any) -> list[Any]:
    return [private_api.tf_variable(variable) for variable in model.trainable_variables]


PROBES = {"batches": probe_batches, "step": probe_step, "program": probe_program}
