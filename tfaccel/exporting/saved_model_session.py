"""Runs a SavedModel's signatures in a separate session, as TensorFlow Serving does.

The graph that runs is the one that was checked: it is read only once; besides, only the folder's variables and assets
are read. Models from TensorFlow 1 work too, including some that `tf.saved_model.load` cannot load.
"""

from __future__ import annotations

import copy
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pool, message_factory

from tfaccel.errors import ExportError, in_one_line
from tfaccel.exporting.graph_check import GraphWalk, Place, check_graph, own_files
from tfaccel.exporting.saved_model_files import GRAPH_FILE

_MAX_REASON_LENGTH = 300  # characters
_INTERNAL = "__saved_model_init_op"
_HOLDS_PATH = {"Const", "Placeholder", "PlaceholderWithDefault"}
_WRITES = ("Assign", "ResourceScatter", "ResourceApply", "Scatter", "LookupTableInsert", "LookupTableRemove", "Apply")
_RESTORING = ("AssignVariableOp", "Const", "Identity", "NoOp", "RestoreV2")  # without tables and other resources
_WRITES_NOTHING = {"ScatterNd", "ScatterNdNonAliasingAdd"}


def graph_error_reason(error: BaseException) -> str:
    """The reason in an error's message, on one line.

    Messages of graph errors contain the location and a traceback before the reason, and the node after it.

    Example:
        >>> graph_error_reason(ValueError("Detected at node a, defined at:\\n  File x\\n\\ntoo high\\n [[{{a}}]]"))
        'too high'
    """
    text = str(getattr(error, "message", "") or error).removeprefix("Graph execution error:")
    before = text.partition("[[")[0]
    lines = [" ".join(line.split()) for line in before.splitlines() if line.strip()]
    if "Detected at node" in before and lines:
        return lines[-1][:_MAX_REASON_LENGTH]
    plain = " ".join(lines) or " ".join(text.split()) or type(error).__name__
    return plain[:_MAX_REASON_LENGTH]


class SavedModelSession:
    """A loaded SavedModel.

    Args:
        folder: folder of the SavedModel.
        allow_file_operations: whether its graph may contain operations that are not known to be safe, such as those
            that write files.

    Attributes:
        signatures: name -> `SignatureDef`, for signatures of plain tensors.
        walk: the graph in the file; it may be deleted to free its memory.
    """

    def __init__(self, folder: Path, *, allow_file_operations: bool = False) -> None:
        meta_graph = _read(folder)
        self.walk = GraphWalk(meta_graph)
        files = own_files(meta_graph, folder)
        if not allow_file_operations:
            check_graph(self.walk, files, folder)
        self.signatures = {
            name: copy.deepcopy(signature)  # one that belongs to the graph would keep all of it
            for name, signature in sorted(meta_graph.signature_def.items())
            if name != _INTERNAL and _is_plain(signature)
        }
        try:
            self._graph, self._session = _session(self.walk, self.signatures.values(), files, folder)
            self._tensors = {name: self._of_signature(signature) for name, signature in self.signatures.items()}
        except Exception as error:  # TensorFlow raises many kinds of errors for files that it cannot load
            raise ExportError(f"The SavedModel in {folder} cannot be loaded: {graph_error_reason(error)}") from error

    def input_specs(self, name: str) -> dict[str, tf.TensorSpec]:
        """A signature's input specs, by name, from the graph, since old signatures may lack shapes."""
        inputs = self._tensors[name][0]
        return {key: tf.TensorSpec(tensor.shape, tensor.dtype, name=key) for key, tensor in inputs.items()}

    def run(self, name: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs a signature on arrays by name.

        Raises:
            tensorflow.errors.OpError: if the model rejects them.
        """
        inputs, outputs = self._tensors[name]
        feeds = {tensor: arrays[key] for key, tensor in inputs.items()}
        found: dict[str, np.ndarray] = self._session.run(outputs, feeds)
        return {
            key: np.asarray(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)
            for key, value in found.items()
        }

    def writes(self, name: str) -> bool:
        """Whether a signature modifies variables or tables, so that each request must run exactly once, unbatched."""
        operations = self.walk.operations_for(self.walk.outputs(name)) - _WRITES_NOTHING
        return any(operation.startswith(_WRITES) for operation in operations)

    def _of_signature(self, signature: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, outputs = (
            {key: self._graph.get_tensor_by_name(info.name) for key, info in sorted(side.items())}
            for side in (signature.inputs, signature.outputs)
        )
        return inputs, outputs


def _is_plain(signature: Any) -> bool:
    infos = [*signature.inputs.values(), *signature.outputs.values()]
    return all(info.WhichOneof("encoding") == "name" for info in infos)


def _read(folder: Path) -> Any:
    """The graph for serving."""
    kind = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("tensorflow.SavedModel"))
    content: Any = kind()
    try:
        content.ParseFromString((folder / GRAPH_FILE).read_bytes())
    except Exception as error:  # the file is missing or invalid
        reason = in_one_line(error) or type(error).__name__
        raise ExportError(f"The SavedModel in {folder} cannot be loaded: {GRAPH_FILE}: {reason}") from error
    found = [graph for graph in content.meta_graphs if tf.saved_model.SERVING in graph.meta_info_def.tags]
    if not found:
        raise ExportError(f"The SavedModel in {folder} cannot be loaded: it has no graph with the tag 'serve'.")
    return found[0]


def _session(walk: GraphWalk, signatures: Iterable[Any], files: Mapping[str, str], folder: Path) -> tuple[Any, Any]:
    """Imports the graph, restores its variables and fills its tables."""
    meta_graph = walk.meta_graph
    has_values = meta_graph.saver_def.restore_op_name and (folder / "variables" / "variables.index").is_file()
    variables = _restored_variables(walk, meta_graph.saver_def.restore_op_name, files) if has_values else {}
    definition = _without_saving(walk, signatures) if variables else copy.deepcopy(meta_graph.graph_def)
    for node in definition.node:
        if node.name in files and node.op in _HOLDS_PATH:
            _hold(node, files[node.name])
    stripped = meta_graph.meta_info_def.stripped_op_list
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(definition, name="", producer_op_list=stripped if stripped.op else None)
    session = tf.compat.v1.Session(graph=graph)
    if variables:
        _restore(session, variables, folder)
    elif has_values:
        session.run(graph.get_operation_by_name(meta_graph.saver_def.restore_op_name))
    for name in walk.init_operations():
        session.run(graph.get_operation_by_name(name))
    return graph, session


def _without_saving(walk: GraphWalk, signatures: Iterable[Any]) -> Any:
    """The part of the graph that serves signatures."""
    infos = [info for one in signatures for side in (one.inputs, one.outputs) for info in side.values()]
    nodes = walk.needed_for([*walk.init_operations(), *(info.name for info in infos)])
    functions = walk.called_by(nodes)
    whole = walk.meta_graph.graph_def
    part = type(whole)(versions=whole.versions, node=[node for node in whole.node if node.name in nodes])
    part.library.function.extend(one for one in whole.library.function if one.signature.name in functions)
    part.library.gradient.extend(one for one in whole.library.gradient if one.function_name in functions)
    return part


def _restore(session: Any, variables: Mapping[str, str], folder: Path) -> None:
    """Gives the variables their values, in memory that the system gets back once they are gone.

    TensorFlow's allocator keeps all that it ever had: after a reload, a server would hold the weights of two models.
    """
    checkpoint = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    kinds, values, assigned = checkpoint.get_variable_to_dtype_map(), {}, []
    with session.graph.as_default():
        for handle, key in variables.items():
            try:
                resource = session.graph.get_tensor_by_name(handle)
            except KeyError:  # no signature needs it
                continue
            value = checkpoint.get_tensor(key)
            fed = tf.compat.v1.placeholder(kinds[key], np.shape(value))
            assigned.append(tf.raw_ops.AssignVariableOp(resource=resource, value=fed))
            values[fed] = value if kinds[key] == tf.string else _in_own_memory(value)
    session.run(assigned, values)


def _restored_variables(walk: GraphWalk, operation: str, files: Mapping[str, str]) -> dict[str, str]:
    """A variable's handle -> its name in the checkpoint; empty if what restores them is no function, or does more."""
    functions = [walk.functions[name] for name in walk.get_functions(walk.nodes[operation])]
    if len(functions) != 1 or any(node.op not in _RESTORING for node in functions[0].node_def):
        return {}
    [function] = functions
    nodes = {node.name: node for node in function.node_def}
    found = {}
    for node in function.node_def:
        if node.op != "AssignVariableOp":
            continue
        source = node.input[1]
        for _ in nodes:
            name, _, place = source.partition(":")
            if name not in nodes or nodes[name].op != "Identity":
                break
            source = nodes[name].input[0]
        if name not in nodes or nodes[name].op != "RestoreV2":
            return {}
        reading, assigning = (Place(one, function.signature.name) for one in (nodes[name], node))
        names, slices = walk.constant(reading, 1), walk.constant(reading, 2)
        handles, prefixes = walk.sources(assigning, 0) or set(), walk.sources(reading, 0)
        is_variable = len(handles) == 1 and all(walk.nodes[one].op == "VarHandleOp" for one in handles)
        is_whole = names is not None and slices is not None and not any(_texts(slices))
        if not (is_variable and is_whole and prefixes and prefixes <= set(files)):
            return {}
        found[f"{handles.pop()}:0"] = _texts(names)[int(place.removeprefix("tensors:"))]
    return found


def _texts(tensor: Any) -> list[str]:
    return [text.decode() for text in tf.make_ndarray(tensor).tolist()]


def _in_own_memory(value: Any) -> np.ndarray:
    """A copy in pages of its own, which TensorFlow uses as they are."""
    array = np.asarray(value)
    if array.nbytes < mmap.PAGESIZE:
        return array
    pages = mmap.mmap(-1, array.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    copied = np.frombuffer(pages, array.dtype, array.size).reshape(array.shape)
    np.copyto(copied, array)
    return copied


def _hold(node: Any, path: str) -> None:
    """Replaces a node that expects the path of a file by a constant."""
    node.op = "Const"
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(path, tf.string))
