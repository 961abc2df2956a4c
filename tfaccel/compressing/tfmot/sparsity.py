"""Pruning and clustering by TFMOT: which layers are wrapped, and their weights afterwards. In a child process only."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfaccel.compressing.methods import TfmotOptions
from tfaccel.compressing.tfmot import private_tfmot
from tfaccel.compressing.tfmot.flat_model import FlatModel
from tfaccel.compressing.tfmot.translation import TranslatedLayers, assemble
from tfaccel.errors import CompressionError

_M_BY_N = (2, 4)
_PART_OF_STEPS = 0.5  # in which sparsity grows; it is constant in the rest
_MASK_UPDATES = 40
_KERNELS = ("kernel", "recurrent_kernel", "embeddings", "pointwise_kernel")


@dataclass
class Wrapped:
    """A model with wrapped layers, and how to read its weights.

    Args:
        model: the `tf_keras` model to train.
        callbacks: to train with.
        variables: path -> the layer's variables, in Keras 3's order, for each layer that has some.
        wrappers: path -> the layer's wrapper.
        notes: for the user.
    """

    model: Any
    callbacks: list[Any]
    variables: dict[str, list[Any]]
    wrappers: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def changed(self) -> dict[str, list[int]]:
        """Path -> indices of the layer's weights that were pruned or clustered."""
        found = {}
        for path, wrapper in self.wrappers.items():
            clustered = getattr(wrapper, "original_clusterable_weights", {})
            chosen = {id(variable) for variable in clustered.values() or wrapper.layer.get_prunable_weights()}
            found[path] = [place for place, variable in enumerate(self.variables[path]) if id(variable) in chosen]
        return found

    def weights(self) -> dict[str, list[np.ndarray]]:
        """Each layer's current weights, without its wrapper."""
        replacements: dict[int, Any] = {}
        for wrapper in self.wrappers.values():
            clustered = getattr(wrapper, "original_clusterable_weights", {})
            if clustered:
                wrapper.update_clustered_weights_associations()
            for name, variable in clustered.items():
                replacements[id(variable)] = wrapper.get_weight_from_layer(name)
        return {
            path: [np.asarray(replacements.get(id(variable), variable)) for variable in variables]
            for path, variables in self.variables.items()
        }


def pruned_model(
    flat: FlatModel, layers: TranslatedLayers, method: str, options: TfmotOptions, num_steps: int
) -> Wrapped:
    """A model whose smallest weights are gradually set to zero during training.

    Raises:
        CompressionError: if no layer can be pruned.
    """
    import tensorflow_model_optimization as tfmot

    end = max(1, int(num_steps * _PART_OF_STEPS))
    frequency = max(1, end // _MASK_UPDATES)
    schedule = tfmot.sparsity.keras.PolynomialDecay(
        initial_sparsity=0.0,
        final_sparsity=options.sparsity,
        begin_step=0,
        end_step=-(-end // frequency) * frequency,
        frequency=frequency,
    )
    singly: list[str] = []

    def wrap(path: str, layer: Any) -> Any:
        kernels = _prunable(layer)
        if not kernels or not layer.trainable:
            return layer
        arguments: dict[str, Any] = {"pruning_schedule": schedule}
        if method == "prune_2_4":
            if not all(_has_fours(kernel) for kernel in kernels):
                return layer
            arguments["sparsity_m_by_n"] = _M_BY_N
        elif method == "prune_block":
            if any(len(kernel.shape) != 2 for kernel in kernels):
                singly.append(path)
            else:
                arguments |= {"block_size": options.block_size, "block_pooling_type": "AVG"}
        return tfmot.sparsity.keras.prune_low_magnitude(layer, **arguments)

    wrapped = _wrapped(flat, layers, wrap, "pruned")
    wrapped.callbacks = [tfmot.sparsity.keras.UpdatePruningStep()]
    if singly:
        wrapped.notes.append(f"TFMOT prunes blocks of matrices only; weight by weight it pruned {_listed(singly)}")
    return wrapped


def clustered_model(flat: FlatModel, layers: TranslatedLayers, options: TfmotOptions) -> Wrapped:
    """A model whose kernels hold few distinct values, which are trained.

    Raises:
        CompressionError: if no layer can be clustered.
    """
    import tensorflow_model_optimization as tfmot

    centroids = tfmot.clustering.keras.CentroidInitialization.KMEANS_PLUS_PLUS

    def wrap(path: str, layer: Any) -> Any:
        if path in layers.kept or not layer.trainable or not _clusterable(layer, options.num_clusters):
            return layer
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tfmot.clustering.keras.cluster_weights(
                layer, number_of_clusters=options.num_clusters, cluster_centroids_init=centroids
            )

    return _wrapped(flat, layers, wrap, "clustered")


def _wrapped(flat: FlatModel, layers: TranslatedLayers, wrap: Callable[[str, Any], Any], done: str) -> Wrapped:
    wrappers: dict[str, Any] = {}
    variables = {
        path: [one.value for one in getattr(layer.operation, "weights", ())] if path in layers.kept else layer.weights
        for path, layer in layers.by_path.items()
    }
    unwrapped = []

    def kept_wrap(path: str, layer: Any) -> Any:
        result = wrap(path, layer)
        if result is not layer:
            wrappers[path] = result
            _hand_on_masks(result, layer)
        elif any(len(variable.shape) >= 2 for variable in layer.trainable_variables):
            unwrapped.append(path)
        return result

    model = assemble(flat, layers, kept_wrap)
    if not wrappers:
        kinds = sorted({type(layer).__name__ for layer in layers.by_path.values()})
        raise CompressionError(
            f"No layer of the model can be {done} by TFMOT. Received layers: {', '.join(kinds)}. Use a post-training "
            "method (float16, dynamic, int8)."
        )
    notes = [f"not {done}: {_listed(unwrapped)}"] if unwrapped else []
    return Wrapped(model, [], {path: found for path, found in variables.items() if found}, wrappers, notes)


def _hand_on_masks(wrapper: Any, layer: Any) -> None:
    """Propagates a mask: TFMOT's wrappers pass it to every layer, whether it takes one or not, and return none."""
    wrapper.supports_masking, wrapper.compute_mask = layer.supports_masking, layer.compute_mask
    call, taken = layer.call, inspect.signature(layer.call).parameters

    def of_several(*args: Any, mask: Any = None, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def in_training(inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        return call(inputs, training=training, **kwargs)

    if "mask" not in taken:
        takes_one = type(layer).__name__ != "MultiHeadAttention" and "training" in taken
        layer.call = functools.wraps(call)(in_training if takes_one else of_several)  # its signature is inspected


def _prunable(layer: Any) -> list[Any]:
    """The variables of a layer to prune; adds the method by which TFMOT asks for them."""
    found = private_tfmot.prunable_weights(layer)
    if found is None:
        layer.get_prunable_weights = lambda: [
            variable for variable in layer.trainable_weights if _short_name(variable) in _KERNELS
        ]
        found = layer.get_prunable_weights()
    return found


def _has_fours(kernel: Any) -> bool:
    """Whether 2:4 sparsity makes some weights of a kernel zero."""
    return len(kernel.shape) in (2, 4) and kernel.shape[-2] > _M_BY_N[1] - _M_BY_N[0]


def _clusterable(layer: Any, num_clusters: int) -> bool:
    kernels = [v for v in layer.trainable_weights if _short_name(v) in _KERNELS]
    enough = bool(kernels) and all(int(np.prod(v.shape)) > num_clusters for v in kernels)
    return enough and private_tfmot.can_be_clustered(layer)


def _short_name(variable: Any) -> str:
    return str(variable.name.split(":")[0].split("/")[-1])


def _listed(paths: list[str]) -> str:
    shown = ", ".join(paths[:6])
    return shown + (f" and {len(paths) - 6} more" if len(paths) > 6 else "")
