"""Checks, before running it, what a SavedModel's graph could do with files and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tfaccel.errors import ExportError
from tfaccel.exporting.graph_walk import GraphWalk, Place
from tfaccel.exporting.safe_operations import SAFE_OPERATIONS

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


def own_files(meta_graph: Any, folder: Path) -> dict[str, str]:
    """The files of a model that its graph may read: name of the node that holds the path -> path.

    Args:
        meta_graph: a `MetaGraphDef`.
        folder: folder of the SavedModel.

    Raises:
        ExportError: if an asset lies outside the folder.
    """
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

    Args:
        walk: the graph.
        files: the result of `own_files`.
        folder: folder of the SavedModel, for messages.

    Raises:
        ExportError: if there are unsafe operations; the message names them and their nodes.
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
            found[operation] = f"{operation} ({_where(place)})"
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


def _where(place: Place) -> str:
    within = f" of function {place.function!r}" if place.function else ""
    return f"node {place.node.name!r}{within}"
