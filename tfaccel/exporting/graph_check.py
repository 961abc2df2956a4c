"""Checks what a SavedModel's graph could do with files and processes, before it runs: operations, calls, sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfaccel.errors import ExportError

ALLOW_FLAG = "--allow_file_operations"
# Operations that read a file named by one of their inputs (index): safe for the model's own files.
_READERS = {
    "InitializeTableFromTextFile": 1,
    "InitializeTableFromTextFileV2": 1,
    "ReadFile": 0,
    "Restore": 0,
    "RestoreSlice": 0,
    "RestoreV2": 0,
}
_SAVERS = {"MergeV2Checkpoints", "Save", "SaveSlices", "SaveV2"}
# Operations that are safe with these values of an attribute.
_HARMLESS: dict[str, tuple[str, tuple[bytes, ...]]] = {
    "DecodeProtoV2": ("descriptor_source", (b"", b"local://")),
    "EncodeProto": ("descriptor_source", (b"", b"local://")),
    "FixedUnigramCandidateSampler": ("vocab_file", (b"",)),
    "PrintV2": ("output_stream", (b"", b"stdout", b"stderr", b"log(info)", b"log(warning)", b"log(error)")),
}
_MAX_NAMED = 6  # operations in a message
_INIT = "__saved_model_init_op"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_PASSING_ON = {"Identity", "StopGradient", "PlaceholderWithDefault"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_OF_VARIABLES = {"ReadVariableOp", "VarIsInitializedOp", "AssignVariableOp"}
# Operations allowed in untrusted graphs: computation, control flow, and state in a session's memory. None of these uses
# a file, a process or the network, whatever its attributes. Operations that block (queues, barriers) or end the process
# (`Abort`), and those of input pipelines and TPUs, are excluded too. Anything not listed is rejected, including
# operations of later TensorFlow versions.
SAFE_OPERATIONS = frozenset(files_of("tfaccel.exporting").joinpath("safe_operations.txt").read_text().split())


@dataclass(frozen=True)
class Place:
    """A node and its location.

    Args:
        node: a `NodeDef`.
        function: the name of its function; "" for the graph itself.
    """

    node: Any
    function: str = ""


class GraphWalk:
    """Analyzes a graph without running it."""

    def __init__(self, meta_graph: Any) -> None:
        self.meta_graph = meta_graph
        self.nodes = {node.name: node for node in meta_graph.graph_def.node}
        self.functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
        self._nodes_of = {
            name: {node.name: node for node in function.node_def} for name, function in self.functions.items()
        }
        self._references: dict[str, list[Place]] = defaultdict(list)
        for place in self.places():
            for name in self.get_functions(place.node):
                self._references[name].append(place)

    def places(self) -> Iterator[Place]:
        """All nodes, including those of functions."""
        for node in self.nodes.values():
            yield Place(node)
        for name, nodes in self._nodes_of.items():
            for node in nodes.values():
                yield Place(node, name)

    def get_functions(self, node: Any) -> list[str]:
        """The functions that a node can call."""
        found = [node.op] if node.op in self.functions else []
        for value in node.attr.values():
            found += [value.func.name] if value.HasField("func") else []
            found += [function.name for function in value.list.func]
        return [name for name in found if name in self.functions]

    def init_operations(self) -> list[str]:
        """Names of the operations that run once when the model is loaded."""
        if _INIT in self.meta_graph.signature_def:
            return [_node_name(info.name) for info in self.meta_graph.signature_def[_INIT].outputs.values()]
        for key in _INIT_COLLECTIONS:
            names = self.meta_graph.collection_def[key].node_list.value if key in self.meta_graph.collection_def else ()
            if names:
                return [_node_name(name) for name in names]
        return []

    def outputs(self, signature_name: str) -> list[str]:
        """Names of the nodes that produce a signature's outputs."""
        signature = self.meta_graph.signature_def[signature_name]
        return [_node_name(name) for info in signature.outputs.values() for name in tensor_names(info)]

    def needed_for(self, names: Iterable[str]) -> set[str]:
        """Names of all nodes of the graph that these nodes depend on, including themselves."""
        waiting, found = [_node_name(name) for name in names], set()
        while waiting:
            name = waiting.pop()
            if name in self.nodes and name not in found:
                found.add(name)
                waiting += map(_node_name, self.nodes[name].input)
        return found

    def called_by(self, names: Iterable[str]) -> set[str]:
        """The functions that these nodes of the graph call, directly or indirectly."""
        waiting = [function for name in names for function in self.get_functions(self.nodes[name])]
        found: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [called for node in self._nodes_of[name].values() for called in self.get_functions(node)]
        return found

    def operations_for(self, names: Iterable[str]) -> set[str]:
        """The types of all operations that run when these nodes do."""
        needed = self.needed_for(names)
        nodes = [self.nodes[name] for name in needed]
        nodes += [node for function in self.called_by(needed) for node in self._nodes_of[function].values()]
        return {node.op for node in nodes}

    def sources(self, place: Place, number: int) -> set[str] | None:
        """Names of the graph's nodes that an input of a node can take its value from; None if unknown.

        Traces through identities, function calls and variables that are only assigned such values.
        """
        inputs = _data_inputs(place.node)
        return self._sources(inputs[number], place.function, set()) if number < len(inputs) else None

    def constant(self, place: Place, number: int) -> Any:
        """The `TensorProto` of a node's input; None if it is not a constant."""
        names, inputs = self.sources(place, number), _data_inputs(place.node)
        node = None
        if names and len(names) == 1:
            node = self.nodes[next(iter(names))]
        elif number < len(inputs):
            node = self._nodes_of.get(place.function, {}).get(_node_name(inputs[number]))
        return node.attr["value"].tensor if node is not None and node.op == "Const" else None

    def _sources(self, tensor: str, function: str, seen: set[tuple[str, str]]) -> set[str] | None:
        if (function, tensor) in seen:
            return None
        seen = {*seen, (function, tensor)}
        name = _node_name(tensor)
        node = (self._nodes_of[function] if function else self.nodes).get(name)
        if node is None:
            return self._of_argument(name, function, seen) if function else None
        inputs = _data_inputs(node)
        if node.op in _PASSING_ON and inputs and (function or node.op != "PlaceholderWithDefault"):
            return self._sources(inputs[0], function, seen)
        if node.op == "ReadVariableOp" and not function:
            return self._of_variable(inputs[0], seen)
        return None if function else {name}

    def _of_argument(self, name: str, function: str, seen: set[tuple[str, str]]) -> set[str] | None:
        """The sources of a function's argument, over all of its calls."""
        names = [argument.name for argument in self.functions[function].signature.input_arg]
        found: set[str] = set()
        for place in self._references[function]:
            inputs = _data_inputs(place.node)
            plain = place.node.op in _CALLS or place.node.op == function
            number = names.index(name) if name in names else len(inputs)
            if not plain or number >= len(inputs):
                return None
            sources = self._sources(inputs[number], place.function, seen)
            if sources is None:
                return None
            found |= sources
        return found or None

    def _of_variable(self, handle: str, seen: set[tuple[str, str]]) -> set[str] | None:
        """The sources assigned to a variable, if it is only assigned and read."""
        name = _node_name(handle)
        node = self.nodes.get(name)
        if node is None or node.op != "VarHandleOp":
            return None
        shared = node.attr["shared_name"].s or name.encode()
        handles = [
            place
            for place in self.places()
            if place.node.op == "VarHandleOp"
            and (place.node.attr["shared_name"].s or place.node.name.encode()) == shared
        ]
        users = [other for other in self.nodes.values() if name in map(_node_name, other.input)]
        if len(handles) != 1 or any(user.op not in _OF_VARIABLES for user in users):
            return None
        found: set[str] = set()
        for user in users:
            if user.op == "AssignVariableOp":
                sources = self._sources(user.input[1], "", seen)
                if sources is None:
                    return None
                found |= sources
        return found or None


def tensor_names(info: Any) -> list[str]:
    """The names of the tensors in a `TensorInfo`."""
    if info.HasField("coo_sparse"):
        sparse = info.coo_sparse
        return [sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name]
    if info.HasField("composite_tensor"):
        return [name for part in info.composite_tensor.components for name in tensor_names(part)]
    return [info.name]


def _data_inputs(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _node_name(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]


def own_files(meta_graph: Any, folder: Path) -> dict[str, str]:
    """The files of a model that its graph may read: name of the node that holds the path -> path."""
    files = {}
    for tensor, name in _assets(meta_graph):
        path = folder / "assets" / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ExportError(f"The SavedModel in {folder} is refused: its asset {name!r} lies outside of it.")
        files[tensor.partition(":")[0]] = str(path)
    saver = meta_graph.saver_def.filename_tensor_name
    if saver:
        files[saver.partition(":")[0]] = str(folder / "variables" / "variables")
    return files


def check_graph(walk: GraphWalk, files: dict[str, str], folder: Path) -> None:
    """Rejects a graph that could do more than compute.

    All operations of the graph and its functions, used or not, must be known to be safe. Reading a file is allowed if
    its path can only be that of one of the model's own files. Writing checkpoints is allowed in the part of the graph
    that saves the model, which is never run.
    """
    nodes, functions = _for_saving_only(walk)
    found: dict[str, str] = {}
    for place in walk.places():
        operation = place.node.op
        if operation in SAFE_OPERATIONS or operation in found:
            continue
        if operation in walk.functions and not hasattr(tf.raw_ops, operation):
            continue
        for_saving = place.function in functions if place.function else place.node.name in nodes
        if not (
            _has_harmless_attribute(place)
            or _reads_own_files(walk, place, files)
            or (for_saving and operation in _SAVERS)
        ):
            within = f" of function {place.function!r}" if place.function else ""
            found[operation] = f"{operation} (node {place.node.name!r}{within})"
    if found:
        named = ", ".join(list(found.values())[:_MAX_NAMED])
        more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        raise ExportError(
            f"The SavedModel in {folder} is refused: it holds operations that may use files or processes, or are not "
            f"known to be safe: {named}{more}. If you trust it, allow them with {ALLOW_FLAG}."
        )


def _assets(meta_graph: Any) -> list[tuple[str, str]]:
    """Pairs of a tensor's name and a file's; older SavedModels have them in a collection."""
    known = list(meta_graph.asset_file_def)
    if not known and "saved_model_assets" in meta_graph.collection_def:
        for packed in meta_graph.collection_def["saved_model_assets"].any_list.value:
            known.append(type(meta_graph)().asset_file_def.add())
            known[-1].ParseFromString(packed.value)
    return [(asset.tensor_info.name, asset.filename) for asset in known]


def _for_saving_only(walk: GraphWalk) -> tuple[set[str], set[str]]:
    """Names of the nodes and functions that run only to save the model."""
    saver, signatures = walk.meta_graph.saver_def, walk.meta_graph.signature_def
    saving = walk.needed_for([saver.save_tensor_name])
    running = [name for signature in signatures for name in walk.outputs(signature)]
    nodes = saving - walk.needed_for([*running, *walk.init_operations(), saver.restore_op_name])
    others = walk.called_by(set(walk.nodes) - nodes)
    return nodes, walk.called_by(nodes) - others


def _reads_own_files(walk: GraphWalk, place: Place, files: dict[str, str]) -> bool:
    if place.node.op not in _READERS:
        return False
    sources = walk.sources(place, _READERS[place.node.op])
    return bool(sources) and sources is not None and sources <= set(files)


def _has_harmless_attribute(place: Place) -> bool:
    name, values = _HARMLESS.get(place.node.op, ("", ()))
    return name != "" and place.node.attr[name].s in values
